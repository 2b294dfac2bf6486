"""One run and its transition table (SPEC section 6).

The table is the only place that says what may follow what; docs/states.md is generated from it. Every end goes through
`stopping`: that is where a run waits until nothing of it is alive, for no time at all if nothing is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..protocol.types import ENDED, Action, ApiTrouble, Bound, LimitKind, Reason, RunId, Status
from .access import FULL, Permissions
from .account import Account
from .limits import ActiveLimit, Limits
from .stop import Stop

if TYPE_CHECKING:
    from .events import Asked, Token

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
    """A bug in the core: the table does not allow this. Nothing was changed."""

    def __init__(self, run: RunId, old: Status, new: Status) -> None:
        super().__init__(f"run {run} cannot go from {old} to {new}")


@dataclass(slots=True)
class Clock:
    """Seconds that a run has been running, pauses excluded."""

    spent: float = 0.0
    since: float | None = None
    """When it last began to count; `None` while it stands."""

    def elapsed(self, at: float) -> float:
        """Seconds counted up to `at`."""
        return self.spent + (at - self.since if self.since is not None else 0.0)

    def reaches(self, seconds: float) -> float | None:
        """When it will have counted so many; `None` while it stands."""
        return self.since + seconds - self.spent if self.since is not None else None

    def start(self, at: float) -> None:
        """Counts from `at` on."""
        if self.since is None:
            self.since = at

    def halt(self, at: float) -> None:
        """Stands from `at` on."""
        self.spent = self.elapsed(at)
        self.since = None


@dataclass(slots=True)
class Exit:
    """How the main process of an attempt ended: by the one or the other; neither where that cannot be known, since it was no child
    of this daemon."""

    code: int | None
    signal: int | None

    @property
    def unknown(self) -> bool:
        """Nobody can tell."""
        return self.code is None and self.signal is None

    @property
    def success(self) -> bool:
        """Exit code 0."""
        return self.code == 0


@dataclass(slots=True, eq=False)
class Run:
    """A live run. Only the machine changes it; the shell reads it when a command hands it over."""

    id: RunId
    number: int
    name: str
    kind: str
    asked: Asked
    uid: int
    user: str
    channel: str
    parent: Run | None
    status: Status
    created_at: float
    max_depth: Bound
    max_descendants: Bound
    limits: Limits
    """In force on this run itself. Its ancestors' bind it too."""
    max_time: float
    """Seconds after which its clock ends it whatever its limits say."""
    permissions: Permissions = FULL
    children: dict[RunId, Run] = field(default_factory=dict)
    admitted: int = 0
    """Descendants admitted so far, ended ones included."""
    committed: bool = False
    """The ledger holds it."""
    attempt: int = 0
    """Attempts started so far."""
    origin: tuple[tuple[str | None, str], ...] = ()
    """Of a root: the chain it comes from, for the loop rule. What its peer claimed (of any kind: `None`), or the chain of
    the run that detached it."""
    claimed_depth: int = 0
    """Of a root: runs above it as its peer claimed. A detached run counts anew."""
    retry_at: float = 0.0
    """When the next attempt starts, while `retrying` and cleared."""
    pid: int | None = None
    exit: Exit | None = None
    clock: Clock = field(default_factory=Clock)
    started_at: float | None = None
    ended_at: float | None = None
    frozen: bool = False
    """Frozen itself, not only by an ancestor."""
    frozen_until: float | None = None
    """When the daemon gives up waiting for a resume."""
    suspended: bool = False
    """Frozen itself because its foreground client was suspended (Ctrl-Z)."""
    stop: Stop | None = None
    """The ladder that is emptying this run's containment, if it has one of its own."""
    clearing: bool = False
    """The ladder clears what a failed attempt left before the next attempt, and does not end the run."""
    account: Account = field(default_factory=Account)
    held_by: ActiveLimit | None = None
    """The limit that has paused it, until somebody gives more room or the daemon gives up waiting."""
    held_reason: Reason | None = None
    """The breach that `held_by` answers."""
    held_until: float | None = None
    """When the daemon gives up waiting."""
    out_of_money: Reason | None = None
    """Of a root: the budget that keeps its tree paused."""
    by_hand: bool = False
    """While `out_of_money`: it was paused by hand, too."""
    tools_said: set[str] = field(default_factory=set)
    """Forbidden tools that something has been said about."""
    said_finished: bool = False
    """This attempt has printed its final result."""
    said_failed: str | None = None
    """This attempt's own word that it failed, whatever its exit code."""
    api_trouble: ApiTrouble | None = None
    """This attempt cannot reach its model."""
    outcome: Status | None = None
    reason: Reason | None = None
    tied_to: int | None = None
    """The connection that it ends with."""
    admit_token: Token | None = None
    """The spawn request that still waits for its answer."""
    pause_tokens: list[Token] = field(default_factory=list)

    @property
    def root(self) -> Run:
        """The top of the tree."""
        run = self
        while run.parent is not None:
            run = run.parent
        return run

    @property
    def lineage(self) -> list[Run]:
        """The chain: root first, this run last."""
        chain = [self]
        while chain[-1].parent is not None:
            chain.append(chain[-1].parent)
        chain.reverse()
        return chain

    @property
    def depth(self) -> int:
        """Number of ancestors."""
        return len(self.lineage) - 1

    @property
    def identity(self) -> tuple[str, str]:
        """What the loop rule compares."""
        return (self.kind, self.asked.identity or self.name)

    @property
    def standing_still(self) -> bool:
        """Frozen, by itself or through an ancestor."""
        run: Run | None = self
        while run is not None:
            if run.frozen:
                return True
            run = run.parent
        return False

    @property
    def shown_reason(self) -> Reason | None:
        """Why it ended, is being stopped, or is paused."""
        reason = self.reason or self.held_reason or self.root.out_of_money
        if reason is None and self.suspended:
            words = f"suspended at its terminal; it continues with 'fg' there, or with: sfactl resume {self.id}"
            return Reason(kind="suspended", message=words)
        return reason

    @property
    def allowed_time(self) -> float:
        """Seconds that its clock may count before it ends the run. Only a limit that terminates ends it sooner than
        `max_time`."""
        time = self.limits.get(LimitKind.TIME)
        return min(time.limit.threshold, self.max_time) if time and time.action is Action.TERMINATE else self.max_time

    @property
    def deadline(self) -> float | None:
        """When its clock, or an ancestor's, ends it; `None` while its own does not run."""
        found = self.own_deadline
        above = self.parent
        while found is not None and above is not None:
            found = min(found, above.own_deadline or found)
            above = above.parent
        return found

    @property
    def own_deadline(self) -> float | None:
        """When its own clock ends it; `None` while that stands."""
        return self.clock.reaches(self.allowed_time) if self.clock.since is not None else None

    def subtree(self) -> list[Run]:
        """This run and all live descendants, parents before children."""
        found = [self]
        for run in found:
            found.extend(run.children.values())
        return found

    def move(self, to: Status) -> None:
        """Changes the status. Raises `IllegalTransition` and changes nothing where the table has no such arrow."""
        if to not in TRANSITIONS[self.status]:
            raise IllegalTransition(self.id, self.status, to)
        self.status = to


def mermaid() -> str:
    """The table as a Mermaid state diagram, for the docs."""
    lines = ["stateDiagram-v2", "    [*] --> accepted"]
    lines += [f"    {old} --> {new}" for old, news in TRANSITIONS.items() for new in sorted(news)]
    lines += [f"    {status} --> [*]" for status in sorted(ENDED)]
    lines += [f"    [*] --> {status}" for status in Status if status.rejected]
    return "\n".join(lines) + "\n"
