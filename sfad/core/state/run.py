"""One run: its transition table, what is saved of it, and its place in the tree.

The table is the only place that says what may follow what; docs/states.md is generated from it.
Every end goes through `stopping`: there a run waits until none of its processes is alive, which
takes no time if there is none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from signal import SIGINT
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ...protocol.types import (
    ENDED,
    Action,
    After,
    ApiTrouble,
    Bound,
    Limit,
    LimitKind,
    Reason,
    Repetition,
    RunId,
    Status,
    StoppedChildren,
    Word,
)
from .access import FULL, Permissions
from .account import OF_AGENT, Account
from .grants import Lease, Remote
from .limits import ActiveLimit, Limits
from .policy import Invalid
from .request import Asked
from .vocabulary import ReasonKind

# ---- The stop ladder of a run: signal, grace, SIGKILL until its containment is empty, then a
# survey of what survived
#
# A ladder empties one run's containment, and with it every descendant's. Time takes it from rung to
# rung; it ends as soon as the containment is empty. Where the policy names a run's program, there
# is one more rung first: its main process alone is interrupted, and has `stop.polite` seconds to
# end.

MAX_GRACE = 60.0
"""Seconds that a request may ask for at most."""

SURVEY_AGAIN = 1.0
"""Seconds between two looks for what a kill has left alive."""


def check_grace(grace: float | None) -> None:
    """Raise `Invalid` for seconds that no stop may take."""
    if grace is not None and not 0 <= grace <= MAX_GRACE:
        raise Invalid(f"a grace of {grace:g} s is outside 0 s to {MAX_GRACE:g} s")


class Rung(Word):
    INTERRUPTED = "interrupted"
    """Main processes were interrupted; no other process has had a signal."""
    SIGNALLED = "signalled"
    KILLED = "killed"


class Ladder(Struct):
    """A stop under way. Times are those of the core's clock."""

    signal: int
    grace_ends_at: float
    kill_wait: float
    rung: Rung = Rung.SIGNALLED
    killed_at: float | None = None
    interrupted: frozenset[RunId] = frozenset()
    """Runs whose main process was interrupted and has not ended yet, while on
    `Rung.INTERRUPTED`."""
    polite_ends_at: float = 0.0
    """When every process is signalled at the latest; only meaningful on `Rung.INTERRUPTED`."""
    overdue: bool = False
    """`kill_wait` has passed since SIGKILL and the containment is still not empty."""

    emptied: bool = False
    """The containment is empty, and runs of other nodes that are below it have not ended."""

    def shorten(self, grace_ends_at: float) -> bool:
        """End the grace sooner, never later. Return whether that changed anything."""
        if self.rung is not Rung.SIGNALLED or grace_ends_at >= self.grace_ends_at:
            return False
        self.grace_ends_at = grace_ends_at
        return True

    def kill(self, at: float) -> None:
        if self.rung is not Rung.KILLED:
            self.rung, self.killed_at = Rung.KILLED, at

    @property
    def overdue_at(self) -> float:
        """When to look for survivors; an estimate until SIGKILL was sent."""
        return (
            self.killed_at if self.killed_at is not None else self.grace_ends_at
        ) + self.kill_wait


# ---- One run: its transition table, what is saved of it, and its place in the tree

PATH = " › "
"""Between the runs through which a failure came."""

Token = int
"""Names a request that waits for an `AnswerRequest`. The shell chooses it; the core only hands it
back."""

TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.ACCEPTED: frozenset({Status.QUEUED, Status.STARTING, Status.STOPPING}),
    Status.QUEUED: frozenset({Status.STARTING, Status.STOPPING}),
    Status.STARTING: frozenset({Status.RUNNING, Status.STOPPING}),
    Status.RUNNING: frozenset({Status.PAUSED, Status.RETRYING, Status.STOPPING}),
    Status.PAUSED: frozenset({Status.RUNNING, Status.STOPPING}),
    Status.RETRYING: frozenset({Status.STARTING, Status.STOPPING}),
    Status.STOPPING: ENDED,
} | {status: frozenset() for status in Status if status.terminal}


class IllegalTransition(Exception):
    """The core has a bug: the table does not allow this transition. Nothing was changed."""

    def __init__(self, run: RunId, old: Status, new: Status) -> None:
        super().__init__(f"run {run} cannot go from {old} to {new}")


class Clock(Struct, gc=False):
    """The seconds that a run has been running, pauses excluded."""

    counted: float = 0.0
    since: float | None = None
    """When it last began to count; `None` while it is halted."""

    def elapsed(self, at: float) -> float:
        return self.counted + (at - self.since if self.since is not None else 0.0)

    def reaches(self, seconds: float) -> float | None:
        """Return when it will have counted so many seconds; `None` while it is halted."""
        return self.since + seconds - self.counted if self.since is not None else None

    def start(self, at: float) -> None:
        if self.since is None:
            self.since = at

    def halt(self, at: float) -> None:
        self.counted = self.elapsed(at)
        self.since = None


class ProcessExit(Struct, gc=False):
    """How the main process of an attempt ended: by its exit code or by a signal. Neither is known
    if it was not this daemon's child."""

    code: int | None
    signal: int | None

    @property
    def unknown(self) -> bool:
        return self.code is None and self.signal is None

    @property
    def success(self) -> bool:
        return self.code == 0

    @property
    def interrupted(self) -> bool:
        """Whether SIGINT ended it, or it says so as shells do: programs that read the key
        themselves have no signal."""
        return self.signal == SIGINT or self.code == 128 + SIGINT


class StageEnd(Struct, frozen=True, omit_defaults=True, gc=False):
    """How a stage of an attempt has ended."""

    stage: int
    """As in `Attempt`."""
    seconds: float
    exit: ProcessExit | None = None
    """`None`: it could not be executed, or took too long."""
    failed: str = ""
    """How it failed, in words."""


class Attempt(Struct, omit_defaults=True, gc=False):
    """One execution of the run's command, and what its agent says of it."""

    number: int
    """1 is the first; 0 until the command is launched."""
    pid: int | None = None
    """Of the main process, while it is alive."""
    exit: ProcessExit | None = None
    said_finished: bool = False
    """The agent has printed its final result."""
    said_failed: str | None = None
    """Why the agent says that it failed, whatever its exit code."""
    trouble: ApiTrouble | None = None
    """The agent cannot reach its model, as it tells."""
    failing: ApiTrouble | None = None
    """The same, as the gateway tells."""
    failing_since: float | None = None
    """When it began to fail to reach its model, as either tells."""
    resumes: bool = False
    """It continues the agent session of the attempt before."""
    next_resumes: bool = False
    """The next attempt, if there is one, continues its agent session."""
    cut_short: str = ""
    """Why the daemon ended it for the next one, or what became of it."""
    failed_at: float | None = None
    """When another attempt was decided on; `None` also after a reboot."""
    last_call: Literal["under_way", "made"] | None = None
    """What has become of its last call, if a limit has concluded the run."""
    stage: int = 0
    """Which of `Asked.stages` is executed, or was last, counted from 1; 0: its command."""
    next_stage: int | None = None
    """What follows it in this attempt, once nothing of it is alive; `None`: nothing, or that is not
    decided yet."""
    stage_from: float = 0.0
    """What the run's clock had counted when the stage began."""
    stage_until: float | None = None
    """What it may count before the stage has failed; `None`: as much as the run may."""
    ended_stages: list[StageEnd] = []
    tells_next: str | None = None
    """What the agent is told if the next attempt continues its session."""
    told: str | None = None
    """What it was told so; `None`: to go on."""

    @property
    def known_trouble(self) -> ApiTrouble | None:
        return self.trouble or self.failing

    @property
    def knows_its_calls(self) -> bool:
        """Whether the agent has ended by itself, so that it knows what its calls have used."""
        return self.said_failed is None and (
            self.said_finished or (self.exit is not None and self.exit.success)
        )

    @property
    def succeeded(self) -> bool:
        return self.exit is not None and self.exit.success and self.said_failed is None


class Streak(Struct):
    """The tool call that the run's model asked for last, and how often in a row."""

    tool: str
    digest: str
    """Of its arguments."""
    count: int = 0
    said: bool = False
    """That it repeats was published."""


MAX_FREE, MAX_FREE_NAME = 16, 200


class Paused(Struct):
    """The run is paused itself, not only with an ancestor."""

    until: float | None
    """When the daemon stops waiting for a resume; `None` after a reboot, until `adopting` sets
    it."""
    suspended: bool = False
    """Its foreground client was suspended (Ctrl-Z)."""
    no_money: Reason | None = None
    """Of a root: the purse that keeps its tree paused."""
    by_hand: bool = False
    """While it `resumes_itself`, or is held until a reset: a request paused it as well."""
    frozen: bool = True
    """Its processes stand still. Where a call to its model was not made, only its calls do: a reply
    must not be frozen in its middle."""
    frozen_at: float | None = None
    """Since when they do."""
    by_giver: bool = False
    """The giver of its grant wants it; nothing else does."""
    since: float | None = None
    """When it began; `None` after a reboot."""


class LimitHold(Struct):
    """The breach of a limit that holds the run until a person decides, or `until`. Between two
    attempts nothing is frozen yet."""

    kind: LimitKind
    reason: Reason
    until: float | None
    """`None` as in `Paused`."""
    refused: float | None = None
    """What the call or reservation that it is held for takes at least."""
    since: float | None = None
    """As in `Paused`."""


class WindowHold(Struct):
    """What a run waits for: the reset of a window."""

    subscription: str
    message: str
    used: float | None
    allowed: float
    since: float
    """On the core's clock, as the next."""
    model: str | None = None
    """Of the call that waits."""
    goes_on_at: float | None = None
    """Its turn after the reset."""
    resets_at: float | None = None
    """When the window is reset, on the core's clock; `None` if that is unknown."""


class Ending(Struct, frozen=True):
    """How the run ends, as soon as none of its processes is alive."""

    outcome: Status
    reason: Reason | None


class AllowedModels(Struct, frozen=True):
    """Patterns of models, as a run was started with them. They bind all that it starts, detached
    runs too."""

    run: RunId
    patterns: tuple[str, ...]


class FailedBelow(Struct, frozen=True):
    """How a child has ended that did not complete: `sfactl run` prints it in the parent, and the
    parent often fails of it."""

    run: RunId
    name: str
    reason: Reason

    @property
    def path(self) -> list[RunId]:
        """The child, and the runs below it through which its failure came."""
        return [self.run, *self.reason.below]

    @property
    def cause(self) -> str:
        """Why the deepest of these ended."""
        inner = f"{PATH.join(self.reason.below)}: "
        return self.reason.message.partition(inner)[2] if self.reason.below else self.reason.message

    def is_told_by(self, line: str) -> bool:
        """Return whether this line on the parent's stderr is what `sfactl run` has printed at the
        end."""
        return line.startswith((f"sfactl: {self.run} ", f"[agent:{self.name}] "))


class Birth(Struct, frozen=True):
    id: RunId
    number: int
    name: str
    kind: str
    asked: Asked
    uid: int
    user: str
    channel: str
    parent: RunId | None
    created_at: float
    max_depth: Bound
    max_descendants: Bound
    permissions: Permissions = FULL
    origin: tuple[tuple[str | None, str], ...] = ()
    """Of a root: the chain it comes from, for the loop rule. What its peer claimed (of any kind:
    `None`), or the chain of the run that detached it."""
    claimed_depth: int = 0
    """Of a root: runs above it as its peer claimed. A detached run starts again at 0."""
    models: tuple[AllowedModels, ...] = ()
    """Each of them must allow a model; its own come last."""


class Seen(Struct, omit_defaults=True):
    """What was seen of a run's processes that the daemon was not asked about."""

    unadmitted: int = 0
    """Agent programs that were started within it without asking. Each counts in `State.admitted`,
    too."""
    started: dict[int, int] = {}
    """The last of these: when each started, by pid."""
    holds_agent: bool = False
    """An agent program was seen in it."""
    bypassed: set[str] = set()
    """How it was seen to use its model around the gateway: `stream`, `session`, `connection`;
    `below`: a run below it was."""
    handed_off: set[str] = set()
    """What was seen of work that it hands to servers outside of its tree."""


@dataclass(slots=True, eq=False)
class State:
    """What changes of a run, and is saved after each change."""

    status: Status
    limits: Limits
    """In force on this run itself. Its ancestors' bind it too."""
    max_time: float
    """Seconds after which its clock ends it whatever its limits say."""
    latest: Attempt
    committed: bool = False
    """The ledger holds it."""
    admitted: int = 0
    """Descendants admitted so far, ended ones included."""
    started_at: float | None = None
    ended_at: float | None = None
    clock: Clock = field(default_factory=Clock)
    account: Account = field(default_factory=Account)
    tools_said: set[str] = field(default_factory=set)
    """Forbidden tools whose use was published."""
    free_models: set[str] = field(default_factory=set)
    """Models of its calls that cost nothing, for what its agent tells of them."""
    paused: Paused | None = None
    limit_hold: LimitHold | None = None
    retry_at: float | None = None
    """When the next attempt is launched. While it is `retrying` and this is not set, the ladder
    clears what the last one left."""
    ladder: Ladder | None = None
    """What empties this run's containment. `None` where an ancestor's ladder does."""
    ending: Ending | None = None
    tied_to: int | None = None
    """The connection that it ends with."""
    admit_token: Token | None = None
    """The spawn request that still waits for its answer."""
    pause_tokens: list[Token] = field(default_factory=list)
    """Pause requests that wait until it is frozen."""
    seen: Seen = field(default_factory=Seen)
    streak: Streak | None = None
    called: bool = False
    """A call of it, or of a run below it, has come to the gateway."""
    misses_calls: bool = False
    """Its agent may have made calls that it does not know of: it failed, was interrupted, or stood
    still for long. They may be billed, so what its output and its session files tell is partial."""
    cut: Reason | None = None
    """Its last word was cut by a limit: a reply ended at a maximum that the gateway had lowered. So
    it cannot be completed."""
    failed_below: FailedBelow | None = None
    """The child that was the last to end without being completed."""
    awaits: tuple[After, ...] = ()
    """While it is queued: the runs that have to end before it starts."""
    agent_session: str | None = None
    """The id of its agent's session, once that is saved where its program can continue it."""
    window_hold: WindowHold | None = None
    """The window of a subscription whose reset it waits for: paused between two calls, or
    queued."""
    subscriptions: dict[str, str] = field(default_factory=dict)
    """The key of the subscription that its last call used, by provider."""
    window_shares: dict[str, float] = field(default_factory=dict)
    """What it has used itself of each window: by the key of the subscription, `/` and the window's
    name."""
    window_present: dict[str, float] = field(default_factory=dict)
    """What it and its descendants have used of the present shorter window, by the key of the
    subscription."""
    thawed_at: float | None = None
    """When it was last thawed after so long that the timers of its calls ran out."""
    remote: Remote | None = None
    """It executes on another node, to which it was granted."""
    lease: Lease | None = None
    """Another node has granted it."""
    stopped_children: StoppedChildren | None = None
    """What the end of its present attempt has stopped."""
    after_cut: str = ""
    """What follows, while `cut` is set."""
    partial_below: bool = False
    """A run below it has ended that may have used more than is known."""
    queued_at: float | None = None
    """When it began to wait for its start; `None` also after a reboot."""

    @property
    def attempt(self) -> int:
        return self.latest.number

    @property
    def pid(self) -> int | None:
        return self.latest.pid

    @property
    def unreachable_since(self) -> float | None:
        """When its calls of the model began to fail or to stay without an answer, if they do."""
        failing = self.latest.failing_since
        if not self.account.reservations:
            return failing
        return min(
            [
                *(silence.since for silence in self.account.silences),
                *([] if failing is None else [failing]),
            ],
            default=None,
        )

    @property
    def told(self) -> bool:
        """Whether more is known of it than that it runs: what it uses, or what its agent says."""
        return (
            self.account.known
            or self.latest.failing_since is not None
            or (self.streak is not None and self.streak.said)
            or any(active.near for active in self.limits.values())
        )

    @property
    def clearing(self) -> bool:
        """Whether the ladder clears what a failed attempt left, and does not end the run."""
        return self.status is Status.RETRYING and self.ladder is not None

    @property
    def held_by(self) -> ActiveLimit | None:
        return self.limits[self.limit_hold.kind] if self.limit_hold is not None else None

    @property
    def no_money(self) -> Reason | None:
        """The purse that keeps it paused."""
        return self.paused.no_money if self.paused is not None else None

    @property
    def resumes_itself(self) -> bool:
        """Whether it waits for a purse or a subscription, and goes on without a person."""
        return self.no_money is not None or self.window_hold is not None

    def has_used_windows(self, provider: str | None = None) -> bool:
        """Return whether a call of it was paid by a subscription, one of this provider if given."""
        return bool(self.subscriptions) if provider is None else provider in self.subscriptions

    @property
    def held_until_reset(self) -> bool:
        """Whether its limit of a subscription's window holds it."""
        return self.limit_hold is not None and self.limit_hold.kind is LimitKind.PLAN

    @property
    def repeating(self) -> Repetition | None:
        """The tool call that its model repeats, as long as it does."""
        return (
            Repetition(tool=self.streak.tool, count=self.streak.count)
            if self.streak is not None and self.streak.said
            else None
        )

    @property
    def suspended(self) -> bool:
        return self.paused is not None and self.paused.suspended

    @property
    def outcome(self) -> Status | None:
        return self.ending.outcome if self.ending is not None else None


class Run(State):
    """A live run: its state, its birth and its place in the tree. Only the machine changes it; the
    shell reads it."""

    __slots__ = (
        "ancestors",
        "asked",
        "asked_at",
        "asks",
        "birth",
        "chain",
        "children",
        "doing",
        "id",
        "identity",
        "lineage_ids",
        "name",
        "parent",
        "root",
        "user",
    )

    def __init__(self, birth: Birth, state: State, parent: Run | None) -> None:
        """Make a run of what was saved of it."""
        super().__init__(*_PARTS(state))
        self._place(birth, parent)

    @classmethod
    def born(cls, birth: Birth, parent: Run | None, limits: Limits, max_time: float) -> Run:
        """Return a new run."""
        run = cls.__new__(cls)
        State.__init__(run, Status.ACCEPTED, limits, max_time, Attempt(0))
        run._place(birth, parent)
        return run

    def _place(self, birth: Birth, parent: Run | None) -> None:
        self.birth = birth
        self.id, self.name, self.user, self.asked = birth.id, birth.name, birth.user, birth.asked
        self.identity = (birth.kind, birth.asked.identity.agent or birth.name)
        """What the loop rule compares."""
        self.doing = ""
        """As `events.LevelSeen` told it last."""
        self.asks = ""
        """What it asks a person for (`events.PersonAsked`)."""
        self.asked_at: float | None = None
        """Since when."""
        self.parent = parent
        self.ancestors: tuple[Run, ...] = (*parent.ancestors, parent) if parent is not None else ()
        """Root first."""
        self.root: Run = self.ancestors[0] if self.ancestors else self
        self.lineage_ids: tuple[RunId, ...] = (
            (*parent.lineage_ids, birth.id) if parent is not None else (birth.id,)
        )
        self.chain: tuple[str, ...] = (
            (*parent.chain, birth.name) if parent is not None else (birth.name,)
        )
        """Names, root first."""
        self.children: dict[RunId, Run] = {}

    def replace_request(self, asked: Asked) -> None:
        """Take another request, which the daemon has completed. Its name stays."""
        self.asked = asked
        self.birth = replace(self.birth, asked=asked)

    @property
    def lineage(self) -> list[Run]:
        return [*self.ancestors, self]

    @property
    def paused_in_lineage(self) -> bool:
        """Whether it is paused, by itself or with an ancestor."""
        return self.paused is not None or (
            self.parent is not None and self.parent.paused_in_lineage
        )

    @property
    def frozen_in_lineage(self) -> bool:
        """Whether its processes stand still, by themselves or with an ancestor's."""
        frozen = self.paused is not None and self.paused.frozen
        return frozen or (self.parent is not None and self.parent.frozen_in_lineage)

    @property
    def shown_reason(self) -> Reason | None:
        if self.ending is not None and self.ending.reason is not None:
            return self.ending.reason
        reason = self.limit_hold.reason if self.limit_hold is not None else self.root.no_money
        if reason is None and self.window_hold is not None:
            reason = Reason(
                kind=ReasonKind.PLAN,
                message=self.window_hold.message,
                limit_kind=LimitKind.PLAN,
                threshold=self.window_hold.allowed,
                used=self.window_hold.used,
            )
        if reason is None and self.paused is not None and self.paused.suspended:
            words = (
                "suspended at its terminal; it continues with 'fg' there, or with: "
                f"sfactl resume {self.id}"
            )
            return Reason(kind=ReasonKind.SUSPENDED, message=words)
        return reason

    @property
    def allowed_time(self) -> float:
        """Seconds that its clock may count before it ends the run. Only a limit that terminates
        ends it sooner than `max_time`."""
        time = self.limits.get(LimitKind.TIME)
        return (
            min(time.limit.threshold, self.max_time)
            if time and time.limit.action is Action.TERMINATE
            else self.max_time
        )

    @property
    def time_said(self) -> Limit | None:
        """The limit of time that was asked for: its own, else that of the nearest run above it that
        has one."""
        for each in reversed(self.lineage):
            for limit in each.asked.terms.limits:
                if limit.kind is LimitKind.TIME:
                    return limit
        return None

    @property
    def deadline(self) -> float | None:
        """When its clock, or an ancestor's, ends it; `None` while its own is halted."""
        own = self.own_deadline
        if not self.ancestors:
            return own
        return (
            min([own, *(above.own_deadline or own for above in self.ancestors)])
            if own is not None
            else None
        )

    @property
    def own_deadline(self) -> float | None:
        """When its own clock ends it; `None` while that is halted."""
        return self.clock.reaches(self.allowed_time) if self.clock.since is not None else None

    @property
    def needs_slot(self) -> bool:
        """Whether it takes one of the slots for trees: a root does that executes here and that no
        other node has granted."""
        return self.parent is None and self.remote is None and self.lease is None

    @property
    def share(self) -> int:
        """Descendants that it takes of each ancestor's bound: itself, and what was granted to
        it."""
        return 1 + (
            self.remote.descendants if self.remote is not None and self.parent is not None else 0
        )

    @property
    def claimed_chain(self) -> tuple[str, ...]:
        """Names of the runs above its root, as the guard counts them: on another node, or claimed
        by the root's client."""
        origin, depth = self.root.birth.origin, self.root.birth.claimed_depth
        return tuple(name for _, name in origin[-depth:]) if depth else ()

    @property
    def granted(self) -> bool:
        """Whether its tree was granted by another node, which has charged all that it may use."""
        return self.root.lease is not None

    @property
    def remote_below(self) -> bool:
        """Whether the run, or one below it, was offered to another node and has not ended there."""
        return any(
            each.remote is not None and each.remote.node is not None for each in self.subtree()
        )

    @property
    def waits_for_unreached(self) -> bool:
        """Whether nothing of the run is alive here, and what is below it on other nodes does not
        answer."""
        emptied = any(above.ladder is not None and above.ladder.emptied for above in self.lineage)
        return emptied and all(
            each.remote is None or each.remote.node is None or bool(each.remote.unreached)
            for each in self.subtree()
        )

    @property
    def goes_around(self) -> bool:
        """Whether the run itself has called its model around the gateway."""
        return bool(self.seen.bypassed - {"below"})

    @property
    def tree_can_spend(self) -> bool:
        """Whether the run or one below it may cost money: it has, something is to tell what it
        costs, or it holds an agent program. That calls would go through the gateway says nothing:
        so it is with most runs that never make one."""
        return bool(self.account.below) or any(
            run.asked.sources.agent_program
            or run.asked.sources.metered
            or run.seen.holds_agent
            or run.called
            or run.account.metered
            for run in self.subtree()
        )

    def subtree(self) -> list[Run]:
        """Return this run and all live descendants, parents before children."""
        found = [self]
        for run in found:
            found.extend(run.children.values())
        return found

    def move(self, to: Status) -> None:
        """Change the status. Raise `IllegalTransition`, and change nothing, where the table has no
        such arrow."""
        if to not in TRANSITIONS[self.status]:
            raise IllegalTransition(self.id, self.status, to)
        self.status = to

    def miss_calls(self) -> None:
        """Note that its agent may not know of all its calls, unless it has told each one by
        itself."""
        if self.asked.sources.tells_each_call:
            return
        self.misses_calls = True
        for source in OF_AGENT & self.account.sources.keys():
            self.account.sources[source] = replace(self.account.sources[source], partial=True)

    def adopt(self, pid: int | None) -> None:
        """Take the main process that an earlier daemon launched; `None`: it is not alive."""
        self.latest.pid = pid


_PARTS = attrgetter(*State.__match_args__)


# ---- Run numbers as text: base 32 after a letter that tells how many digits follow
#
# Plain base 32 stops being in order where a digit is added ("v" > "10") unless it is padded, and
# padded numbers make every short prefix ambiguous. With the letter, text order is number order, and
# the first 1 023 ids have at most three characters.

_DIGITS = "0123456789abcdefghijklmnopqrstuv"


def run_id(number: int) -> RunId:
    """`1` → `a1`, `31` → `av`, `32` → `b10`. Numbers start at 1."""
    if number < 1:
        raise ValueError(f"run numbers start at 1, got {number}")
    digits = ""
    while number:
        number, digit = divmod(number, 32)
        digits = _DIGITS[digit] + digits
    return chr(ord("a") + len(digits) - 1) + digits


@lru_cache(maxsize=4096)
def run_number(run: RunId) -> int:
    """The inverse of `run_id`. Raises `ValueError` for text that is not a whole id."""
    digits = run[1:]
    if (
        len(run) < 2
        or ord(run[0]) - ord("a") + 1 != len(digits)
        or digits[0] == "0"
        or not set(digits) <= set(_DIGITS)
    ):
        raise ValueError(f"{run!r} is not a run id")
    return int(digits, 32)


def number_or_zero(text: str) -> int:
    """Return the number of an id; 0, which no run has, for any other text."""
    try:
        return run_number(text)
    except ValueError:
        return 0
