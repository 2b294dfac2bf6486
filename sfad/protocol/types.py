"""The nouns of the protocol: a run as it is shown, limits, refusals, reasons.

Fields are a contract with clients: docs/protocol.md is made from their docstrings. Unknown is
`None`, never 0. Times are aware UTC datetimes: RFC 3339 in JSON, the timestamp extension in
msgpack. Operating-system strings that must not change (argv, environment, cwd) are bytes in
requests; they are shown as text in which bytes that are not UTF-8 appear as `\\xNN`.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Literal

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from .texts.units import format_elapsed

RunId = str
"""The ledger's running number in base 32 after a letter that tells how many digits follow (`a` one,
`b` two): `a1`, `bv0`, `c10a`. Short, never used twice, and sorted as text in the order of
admission."""

Kind = Literal["agent", "skill"]


class Word(StrEnum):
    """A word of the protocol, with the hash of its text: the core would call the hash method of an
    enum, which is written in Python, some forty times a run."""

    __hash__ = str.__hash__


class Status(Word):
    """Where a run is in its life (docs/states.md). Refused runs are `rejected_<rule>`, one member
    for each rule."""

    ACCEPTED = "accepted"
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    RETRYING = "retrying"
    STOPPING = "stopping"
    COMPLETED = "completed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    LOST = "lost"
    REJECTED_ENABLED = "rejected_enabled"
    REJECTED_PERMISSION = "rejected_permission"
    REJECTED_LOOP = "rejected_loop"
    REJECTED_DEPTH = "rejected_depth"
    REJECTED_BUDGET = "rejected_budget"
    REJECTED_UNENFORCEABLE = "rejected_unenforceable"
    REJECTED_RATE = "rejected_rate"
    REJECTED_CONCURRENCY = "rejected_concurrency"

    terminal: bool
    rejected: bool

    def __init__(self, word: str) -> None:
        # attributes, not properties: each run is asked some thirty times
        self.rejected = word.startswith("rejected_")
        self.terminal = self.rejected or word in (
            "completed",
            "failed",
            "timeout",
            "cancelled",
            "lost",
        )


ENDED = frozenset(status for status in Status if status.terminal and not status.rejected)


class Rule(Word):
    """The guard's rules in the order in which they are checked (docs/guard.md)."""

    ENABLED = "enabled"
    PERMISSION = "permission"
    LOOP = "loop"
    DEPTH = "depth"
    BUDGET = "budget"
    UNENFORCEABLE = "unenforceable"
    RATE = "rate"
    CONCURRENCY = "concurrency"

    @property
    def status(self) -> Status:
        return Status(f"rejected_{self.value}")


class Bound(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A number with where it was set, for refusals: `--max-depth`, `SFA_MAX_DEPTH`, `config
    guard.max_depth`, `default`."""

    value: int
    source: str


class Claim(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The chain that a client outside any run, as in a container, claims to come from
    (`SFA_CALL_CHAIN` and `SFA_NAME`, `SFA_DEPTH`). The daemon adds it to what it knows; it cannot
    loosen a rule."""

    names: list[str] = []
    """Root first, including the run that the client is in."""
    depth: int = 0
    """The larger of this and the number of names counts."""


class Action(Word):
    """The action that answers a breach (docs/limits.md)."""

    TERMINATE = "terminate"
    PAUSE = "pause"
    WARN = "warn"
    REQUEST_INCREASE = "request_increase"
    REFUSE = "refuse"
    CONCLUDE = "conclude"
    """The gateway lets one last call through, for which the limit has kept a part back, and says so
    in it; then the run ends. Only of `cost`, `tokens` and `turns`."""
    CONTINUE = "continue"
    """Stop the attempt, and have the next one continue the agent's session. Only of `silence`."""


class LimitKind(Word):
    """A kind of limit, in the order in which limits are shown (docs/limits.md#kinds)."""

    TIME = "time"
    TURNS = "turns"
    MESSAGES = "messages"
    TOKENS = "tokens"
    COST = "cost"
    PLANNING_COST = "planning_cost"
    EXECUTION_COST = "execution_cost"
    OUTPUT = "output"
    SILENCE = "silence"
    WAITING = "waiting"
    MEMORY = "memory"
    PIDS = "pids"
    CPU = "cpu"
    PLAN = "plan"


class Limit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A bound on what a started run may use (docs/limits.md)."""

    kind: LimitKind
    threshold: float
    """In the unit of the kind: seconds, USD, bytes, cores, or a plain number."""
    action: Action | None = None
    """`None` in a request: `on_limit`, else the profile's, else `terminate`. Never `None` in what
    is shown. `output` and `cpu` take none."""
    source: str = "default"
    """What set it: `--limit turns`, `type developer`, `config defaults.cost`. At most 128
    characters."""

    @property
    def typed(self) -> bool:
        """Whether it was asked for with the request, and not by the entry of a registered agent."""
        return not self.source.startswith("agent ")


class LimitState(
    Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True, gc=False
):
    """A limit that binds a run, and how far it is used."""

    kind: LimitKind
    threshold: float
    action: Action
    source: str
    """As in `Limit`."""
    used: float | None = None
    """Used so far; `None` if unknown."""
    scope: Literal["run", "tree"] = "run"
    """`tree`: what descendants use counts too."""
    enforced_by: Literal["clock", "gateway", "ready", "meter", "kernel", "watching", "nothing"] = (
        "clock"
    )
    """`gateway`: before each call; `ready`: the gateway would, but no call has come through it;
    `meter`: after each call; `nothing`: the run's use is not known, so the limit is not
    enforceable."""
    bound_by: RunId | None = None
    """The ancestor that has less."""
    bound: float | None = None
    """The threshold of that ancestor."""
    reserved: float | None = None
    """What is reserved beyond that, and rarely used in full. The limit counts both."""


Modality = Literal["audio", "image", "video"]


class Tokens(Struct, frozen=True, kw_only=True, gc=False):
    """Tokens of one model. Cached ones are part of `input`, as Codex and Gemini report them."""

    input: int = 0
    output: int = 0
    cached: int = 0
    cache_write: int = 0
    long_write: int = 0
    """The part of `cache_write` that is kept for an hour."""
    modes: dict[Modality, Tokens] = {}
    """The parts of all of these that are not text. A part has no parts of its own."""


Role = Literal["planning", "execution"]
"""The purpose of a report's tokens. Costs have limits by role too."""

Source = Literal["gateway", "around", "report", "stream", "session", "none"]
"""Where figures of usage come from, the best first (docs/metering.md). Two sources are never added,
but `around`: what session files tell of calls that went around the gateway. They are a part of
`session`, and no part of `gateway`."""


class Reason(
    Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True, gc=False
):
    """Why a run ended, is being stopped or is paused. `kind` is for programs, `message` for people
    and models."""

    kind: str
    """A word of the table in docs/states.md, or the rule that refused."""
    message: str
    """The reason in words, for people and models."""
    by: str | None = None
    """For `stop`, who requested it: `run ID` or `user NAME`. For `ancestor`, its id."""
    signal: int | None = None
    """The signal that killed the run (`signal`), or that was used to stop it (`stop`, `daemon`)."""
    errno: int | None = None
    """For `launch`, as `about`."""
    about: Literal["command", "directory"] | None = None
    """For `launch`: what `errno` is about."""
    limit_kind: str | None = None
    """For `limit`, as those after it: a kind of limit, `tool`, `unadmitted`, or `pause_max` (paused
    too long)."""
    threshold: float | None = None
    used: float | None = None
    """What was used then, without `reserved`."""
    reserved: float | None = None
    """What was reserved beyond that, if anything. The limit counts both."""
    exceeded_by: float | None = None
    """How far both together are above the threshold, with what was refused."""
    refused: bool = False
    """A reservation was refused: it is in `exceeded_by` alone."""
    turns: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None
    elapsed_s: float | None = None
    """What the run had used at that moment, as `turns`, `tokens` and `cost_usd`."""
    left_running: bool = False
    """It ended all the same, although its program had not ended what it does within the grace: a
    function in a process cannot be killed."""
    below: list[RunId] = []
    """For `exit`: the runs through which the failure came that `message` tells, from a child to the
    deepest."""
    command: str | None = None
    """For `check` and `setup`: what has failed, with the next two. `signal` and `elapsed_s` are its
    own, too."""
    exit_code: int | None = None
    """`None`: it took too long, or could not be executed."""
    lines: list[str] = []
    """The last lines of its output, at most 40."""

    def adding(self, words: str) -> Reason:
        return replace(self, message=f"{self.message}; {words}")


class Usage(
    Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True, gc=False
):
    """What a run itself used, without its descendants. Only `elapsed_s` is known without a
    source."""

    turns: int | None = None
    """Tool calls."""
    messages: int | None = None
    """Messages of the model."""
    input_tokens: int | None = None
    """With cached ones."""
    output_tokens: int | None = None
    cached_tokens: int | None = None
    """The part of `input_tokens` that was read from a cache."""
    tokens: int | None = None
    """Input and output."""
    cost_usd: float | None = None
    """`None` if neither the model nor its provider has a price."""
    cost_from: Literal["agent", "prices"] | None = None
    """Whether the agent told the cost, or it was computed from tokens."""
    unpriced_tokens: int | None = None
    """Tokens that `cost_usd` leaves out."""
    planning_cost_usd: float | None = None
    """The cost of one role (docs/metering.md#roles)."""
    execution_cost_usd: float | None = None
    """The cost of one role (docs/metering.md#roles)."""
    elapsed_s: float | None = None
    """Seconds, without pauses and waits between attempts."""
    source: Source = "none"
    """The best source that there is, or the one that tells a larger cost
    (docs/metering.md#sources)."""
    partial: bool = False
    """Tokens and costs are lower bounds: the agent has not told its final figures, and perhaps
    never will. Output tokens may be an estimate from the streamed text."""
    estimated: bool = False
    """A part of the cost is of a model without a price, and counts at that of another one."""
    at_most: bool = False
    """A part of tokens and costs is an upper bound, because nothing tells what became of a call.
    With `partial`: an estimate."""


_SMALL = ("three", "four", "five", "six", "seven", "eight", "nine")
_TIMES = ("no times", "once", "twice", *(f"{number} times" for number in _SMALL))


class ApiTrouble(Struct, frozen=True, kw_only=True, gc=False):
    """Failed model calls since the model's last answer, as the agent or the gateway tells them."""

    count: int
    status: int | None = None
    """The last HTTP status, if known."""
    error: str = ""
    """The agent's words for the last failure."""

    @property
    def sentence(self) -> str:
        """`the API answered 529 six times: overloaded`."""
        times = _TIMES[self.count] if self.count < len(_TIMES) else f"{self.count} times"
        what = f"answered {self.status}" if self.status is not None else "failed"
        return f"the API {what} {times}" + (f": {self.error}" if self.error else "")


class ApiSilence(Struct, frozen=True, kw_only=True, gc=False):
    """Model calls under way without a byte of a reply for 15 s or more, as the gateway tells."""

    host: str
    """Of the one that has waited longest."""
    since: datetime
    """When that went out."""
    calls: int = 1

    def sentence(self, now: datetime) -> str:
        """`waiting 33s for api.example.com's first byte`."""
        return (
            f"waiting {format_elapsed(max(0.0, (now - self.since).total_seconds()))} for "
            f"{self.host}'s first byte"
        )


SILENT_AFTER = 15.0
"""Seconds without a byte after which a call is shown as one that waits: models that think send
their headers before."""


class Repetition(Struct, frozen=True, kw_only=True, gc=False):
    """A tool call with the same arguments, so many times in a row, as the gateway saw it in the
    model's replies."""

    tool: str
    count: int

    @property
    def sentence(self) -> str:
        return (
            f"its model asked for the tool '{self.tool}' with the same arguments {self.count} "
            "times in a row"
        )


class AlertState(Struct, frozen=True, kw_only=True, gc=False):
    """An alert that is raised."""

    type: str
    """`alert_cost` and the like (docs/protocol.md#events)."""
    scope: Literal["run", "user", "team", "daemon"]
    value: float
    """When the alert was raised."""
    threshold: float
    message: str
    since: datetime
    window_s: float | None = None
    run_id: RunId | None = None
    user: str | None = None
    """For the scope `user`."""
    team: str | None = None
    """For the scope `team`."""


class After(Struct, frozen=True, kw_only=True, gc=False):
    """Another run, for whose end a run waits before it starts; or a time for which it waits."""

    run: RunId
    """In a request also a name, or a unique prefix of an id; NODE/ID of a run of another node.
    Empty with `at`."""
    ok: bool = False
    """Whether that run has to complete: otherwise the run that waits never starts."""
    at: datetime | None = None
    """The time."""

    @property
    def elsewhere(self) -> bool:
        """Whether the run is one of another machine."""
        return "/" in self.run

    @property
    def words(self) -> str:
        """As on the command line: `a3` or `a3:ok`; of a time `2026-01-31 02:00`, local."""
        if self.at is not None:
            return f"{self.at.astimezone():%Y-%m-%d %H:%M}"
        return f"{self.run}:ok" if self.ok else self.run


class Placing(Struct, frozen=True, kw_only=True):
    """Where in the fleet a run may execute, and what Ray reserves there for its tree."""

    node: str | None = None
    labels: dict[str, str] = {}
    cpus: float = 0.0
    gpus: float = 0.0
    memory: int = 0
    """Bytes."""
    restart_elsewhere: bool = False
    """A further attempt may begin on another node, once the lease of the one before is over."""


class Admitted(Struct, frozen=True, kw_only=True):
    """An agent that is a part of the calling program: no command is executed for its run. A client
    says only `stop`. The daemon fills in the rest."""

    stop: Literal["tell", "terminate_process"] = "tell"
    """What a stop of the run does: tell the program, or end its process by SIGTERM, and SIGKILL
    after the grace."""
    pid: int = 0
    """The program's process."""
    started: int = 0
    """When that started, in clock ticks since boot."""


class Grant(Struct, frozen=True, kw_only=True):
    """What a run on another node may take out of its tree. The giver has counted all of it as spent
    before it sends it.

    The limits that come with it are those of the request."""

    giver: str
    """The node that gives."""
    run: RunId
    """The run's id there, under which the fleet knows it."""
    root: str
    """Global ids of its root and its parent."""
    parent: str | None = None
    chain: list[tuple[str | None, str]] = []
    """Kinds and names of the runs above it, root first, for the loop rule. The kind is `None` where
    a peer has claimed the name."""
    names: list[str] = []
    """Names of the runs above it, root first, as they are shown."""
    depth: int = 0
    """Runs above it."""
    max_depth: int
    descendants: int
    """Runs that it and what is below it may start."""
    models: list[list[str]] = []
    """Patterns of models; each list must allow a model."""
    sessions: bool = False
    lease: float | None = None
    """Seconds without a sign of the giver after which the taker stops the run; `None`: it goes
    on."""
    stamp: str = ""
    """The taker's clock, as it has told the giver: the lease begins then."""
    typed: list[LimitKind] = []
    """Limits that a person has asked for, of it or of a run above it."""


class Wanted(Struct, frozen=True, kw_only=True):
    """What the giver of a grant wants of the run now. `number` grows with each change."""

    number: int
    paused: bool = False
    stop: int | None = None
    """The signal."""
    grace: float = 0.0


class WindowShare(Struct, frozen=True, kw_only=True, gc=False):
    """About how much of a subscription's window a run has used itself, without its descendants."""

    provider: str
    account: str
    window: str
    share: float
    """0.12 is 12 %. Of all windows of this name together, where the run lasted longer than one."""


class FleetPlace(Struct, frozen=True, kw_only=True, gc=False):
    """Where a run is in the fleet. Of a run that executes on another node: `node`, `run`. Of one
    that another node has granted: the rest."""

    node: str | None = None
    run: RunId = ""
    """Its id there."""
    infeasible: bool = False
    """No node that is there now could ever take it."""
    unreachable_since: datetime | None = None
    """When its node was heard of last, if that is long ago."""
    giver: str | None = None
    id: str = ""
    """The run's id on the node that gave it, under which the fleet knows it, as a global id."""
    root: str = ""
    parent: str | None = None
    depth: int = 0
    """Runs above it."""


class StoppedChildren(Struct, frozen=True, kw_only=True, gc=False):
    """The children of a run that had not ended when it did, and were stopped."""

    count: int
    names: list[str]
    """Different names, three at most."""
    message: str
    """`stopped 1 child that was still running: writer; wait for it`"""


class Check(Struct, frozen=True, kw_only=True, gc=False):
    """A command that has to succeed before a run is completed (docs/checks.md), and what became of
    it in the run's last attempt."""

    command: str
    state: Literal["not_run", "running", "passed", "failed"] = "not_run"
    """`not_run`: it was not executed to its end."""
    elapsed_s: float | None = None
    exit_code: int | None = None
    """`None` also if it took too long or could not be executed."""
    signal: int | None = None


Blocked = Literal["start", "processes", "call"]


class Hold(Struct, frozen=True, kw_only=True, gc=False):
    """A reason why a run, or a model call of it, waits (docs/states.md#holds)."""

    kind: str
    """One of the words in docs/states.md#holds. There may be new ones."""
    blocks: Blocked
    """`start`: the run, or its next attempt, does not start; `processes`: it is paused; `call`:
    model calls wait, and the run goes on."""
    words: str
    """The reason, for people."""
    ends: str
    """What ends it."""
    since: datetime | None = None
    until: datetime | None = None
    """When it ends at the latest, as far as that is known. Pauses end the run then."""
    clock_stops: bool = True
    """Whether the run's clock stands meanwhile."""
    command: str | None = None
    """What a person can do, or where to read more: a command line."""
    limit_kind: LimitKind | None = None
    """For `limit` and `approval`: the kind of limit."""


class PersonAwaited(Struct, frozen=True, kw_only=True):
    """That a run waits for a person (docs/terminals.md#waiting-for-a-person)."""

    since: datetime
    source: Literal["program", "bell", "notification", "title", "prompt"]
    """How that is known: the agent program says so, its terminal does (three ways), or a prompt
    stands still while a process reads the terminal."""
    words: str = ""
    """What the program says."""
    screen: list[str] = []
    """The last lines of the screen then."""


class Approval(Struct, frozen=True, kw_only=True):
    """A call of a tool that an agent asks for (docs/approvals.md)."""

    call: str
    """`call-1`: counts up in its run."""
    tool: str
    arguments: str
    """JSON, cut at 4 096 characters, without what looks like a secret."""
    cwd: str
    since: datetime


class RunInfo(
    Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True, gc=False
):
    """A run as it is shown. A field that only a live run has is `None` or empty when the run has
    ended."""

    id: RunId
    """A letter for the number of digits, then the run's number in base 32: `a1`, `bv0`. Text order
    is the order of admission."""
    name: str
    kind: str
    type: str | None = None
    """`run_type` of `Spawn`."""
    status: Status
    parent_id: RunId | None = None
    """`None` for a root."""
    root_id: RunId
    """A root has its own id."""
    depth: int
    """The number of its ancestors."""
    chain: list[str]
    """Names from the root to this run."""
    pid: int | None = None
    """The main process, while it exists."""
    argv: list[str]
    cwd: str
    user: str
    """The owner."""
    channel: str
    """As in `Spawn`."""
    exit_code: int | None = None
    """The exit code of the last attempt's main process."""
    signal: int | None = None
    """The signal that killed the main process."""
    reason: Reason | None = None
    """Why it ended, is being stopped or is paused; `None` for `completed`."""
    attempts: int
    """The number of attempts started so far."""
    limits: list[LimitState] = []
    """Its own limits. Those of its ancestors bind it too."""
    usage: Usage
    """Each figure comes from the source that tells the most (docs/metering.md#sources)."""
    processes: int | None = None
    """Live processes, with those of child runs. Only in the answers to `Info`, to `List` with
    `live`, and to `WatchRuns`."""
    memory_bytes: int | None = None
    """The memory of these processes (docs/containment.md#memory-processes-cpu)."""
    descendants: int
    """Runs admitted below it so far, and `unadmitted` agents."""
    deadline: datetime | None = None
    """The first of its own and its ancestors' deadlines; `None` while its clock stands."""
    milestone: str | None = None
    """The newest line `[agent:NAME] text` on its stderr."""
    created_at: datetime
    started_at: datetime | None = None
    """When it was executed first."""
    ended_at: datetime | None = None
    labels: dict[str, str] = {}
    """With inherited ones."""
    usage_by_source: dict[Source, Usage] = {}
    """Never add them up."""
    meter: str | None = None
    """The meter that reads the run's stdout."""
    api_trouble: ApiTrouble | None = None
    """Of a live run whose agent cannot reach its model. A run that ended so has it in its
    `reason`."""
    total_cost_usd: float | None = None
    """Of the run and its descendants, as far as it is known. Only in the answers to `List`, `Info`,
    `Wait`, `WatchRuns`."""
    total_tokens: int | None = None
    """As `total_cost_usd`."""
    unadmitted: int | None = None
    """Of a live run: agent programs that were started within it without asking; `None` if none was
    noticed. They count in `descendants`, too."""
    total_partial: bool = False
    """The totals are lower bounds: a part of them may still grow, or has no price."""
    total_at_most: bool = False
    """A part of the totals is an upper bound."""
    session: bool = False
    """A run of a registered agent that was started as a session."""
    repeating: Repetition | None = None
    """Of a live run whose model has asked for the same tool call at least `limits.repeats` times in
    a row."""
    cut: str | None = None
    """Of a live run: a reply of its model was cut, because a limit or budget had no room for more:
    at how many tokens, why, and what follows."""
    calls: int | None = None
    """Model calls that it made through the gateway, those under way included. Only in the answer to
    `Info`."""
    calls_refused: int | None = None
    """Those of `calls` that were refused."""
    last_refusal: str | None = None
    """Why the last of these was refused. Only in the answer to `Info`."""
    api_silence: ApiSilence | None = None
    """Of a live run whose model calls are not answered."""
    cpu_cores: float | None = None
    """Cores that its processes used on average in the last seconds. Only in answers to
    `WatchRuns`."""
    isolation: Literal["on", "net", "offline"] | None = None
    """`net`: it reaches nothing but the gateway; `offline`: nothing."""
    egress: tuple[str, ...] = ()
    """With `net`: what it reaches through the gateway beside its model."""
    alerts: tuple[AlertState, ...] = ()
    """Of a live run: the alerts about it that are raised."""
    direct: str | None = None
    """Of a live run: why its program goes without the gateway, which its tree may use."""
    after: tuple[After, ...] = ()
    """Of a queued run: the runs whose ends it still waits for."""
    group: str | None = None
    """The group whose slots its tree shares."""
    stdin: bool = False
    """Of a live run: `send` can write to its stdin."""
    terminal: bool = False
    """Of a live run: it has a terminal of its own (docs/terminals.md)."""
    worktree: str | None = None
    """The git worktree that it works in, if that was made for it or for a run above it."""
    branch: str | None = None
    """The branch that was made with the worktree."""
    last_heard_at: datetime | None = None
    """Of a live run: the last sign of life of it or a run below it that is known
    (docs/going-on.md)."""
    stopped: bool = False
    """Of a live run: a signal such as SIGSTOP has stopped its main process, which does nothing
    until SIGCONT."""
    session_id: str | None = None
    """What its agent program calls the session that it has begun or continues, as far as that is
    known."""
    continues: RunId | None = None
    """The ended run whose session it continues."""
    continued_by: RunId | None = None
    """Of an ended run: the run that continues its session."""
    plans: tuple[WindowShare, ...] = ()
    """Its shares of the windows of subscriptions (docs/plans.md)."""
    fleet: FleetPlace | None = None
    """Of a run that executes on another node than the one that it was started on."""
    stopped_children: StoppedChildren | None = None
    """The children that its end, or the end of its last attempt, has stopped."""
    model: str | None = None
    """The model that it called last; until it has called one, the one that it was started with."""
    provider: str | None = None
    """As `model`: the upstream of the gateway, or what it was started with."""
    task: str | None = None
    """What a registered agent was told to do; at most 4 096 characters."""
    allowed_tools: tuple[str, ...] = ()
    """As in `Spawn`, narrowed by those of the runs above."""
    blocked_tools: tuple[str, ...] = ()
    holds: tuple[Hold, ...] = ()
    """Of a live run: why it waits, or calls of it. It is queued while one of these blocks its
    start, and paused while one blocks its processes."""
    activity: str | None = None
    """Of a live run: what it does that is not its command: `check` or `setup`; `waiting`: its
    command waits for a person."""
    waiting: PersonAwaited | None = None
    """With the activity `waiting`."""
    approvals: tuple[Approval, ...] = ()
    """Of a live run: the calls of tools that its agent asks a person for."""
    checks: tuple[Check, ...] = ()
    """What has to succeed before it is completed, in order."""

    @property
    def executes_on(self) -> tuple[str, RunId] | None:
        """The node that executes it in place of this one, and its id there; empty if it has none
        yet."""
        place = self.fleet
        return (place.node, place.run) if place is not None and place.node is not None else None

    @property
    def in_all(self) -> Usage:
        """What the run and its descendants have used, as far as it is told; else its own use. Only
        tokens and cost."""
        own, cost, tokens = self.usage, self.total_cost_usd, self.total_tokens
        return Usage(
            cost_usd=own.cost_usd if cost is None else cost,
            tokens=own.tokens if tokens is None else tokens,
            partial=own.partial or self.total_partial,
            at_most=own.at_most or self.total_at_most,
        )

    @property
    def by_gateway(self) -> bool:
        """Whether it is known that the gateway meters the run."""
        return "gateway" in self.usage_by_source or any(
            state.enforced_by in ("gateway", "ready") for state in self.limits
        )

    @property
    def costs_more_than_calls(self) -> bool:
        """Whether another source tells of a higher cost than the calls that the gateway saw."""
        seen = self.usage_by_source.get("gateway")
        return seen is not None and (self.usage.cost_usd or 0) > (seen.cost_usd or 0)


class Isolation(Struct, frozen=True, kw_only=True):
    """How a run is isolated. A client says only `network`, `writable`, `readable` and `egress`. The
    daemon fills in the rest for the run that is isolated first, and what that starts inherits
    it."""

    network: bool = True
    """Whether it keeps the machine's network; else it reaches nothing but the gateway."""
    writable: list[bytes] = []
    """Absolute paths that it may write to, beside its working directory; none for a run below an
    isolated one."""
    readable: list[bytes] = []
    """Absolute paths that it may read, beside programs and what it may write."""
    egress: list[str] = []
    """Without `network`: hosts that it reaches through the gateway, as HOST, HOST:PORT, *.DOMAIN or
    * (docs/isolation.md#a-way-out)."""
    directory: bytes = b""
    """The working directory that is writable: that of the run that was isolated first."""
    home: bytes = b""
    """Ignored in a request."""
    program: bytes = b""
    """The first word of its command, absolute if it is a path: the run sees where that is
    installed."""
    agent: str = ""
    """The agent program whose own files are writable."""
    variables: list[bytes] = []
    """Variables of that run which say where programs are, and where agents keep their files, as
    `KEY=VALUE`."""
    repository: bytes = b""
    """The repository of which `directory` is a worktree. What git writes there for the run is the
    run's own."""
    branches: bytes = b""
    """The directory of its branch, below refs/heads: the run may change refs there."""


class Worktree(Struct, frozen=True, kw_only=True):
    """A git worktree of a run's own. A client says only `branch` and `of`. The daemon fills in the
    rest."""

    branch: str | None = None
    """Of a request: a new branch; `None` is sfad/NAME-ID."""
    of: RunId | None = None
    """Work in the worktree of this ended run. If it is gone, make it again, on its branch."""
    path: bytes = b""
    """Where it is or will be."""
    repository: bytes = b""
    """The directory that git shares between all worktrees of the repository, such as
    `/src/.git`."""
    alternates: list[bytes] = []
    """Directories from which the repository borrows objects."""
    start: str = ""
    """The commit that a new worktree begins with."""
    origin: bytes = b""
    """The directory in which the run was asked for, where git is started to make it."""
    found: bool = False
    """The path and the branch are there from an earlier run."""
    shared: bool = False
    """A run above this one works in it: nothing is made."""
    there: bool = False
    """It is there from an earlier run."""


class Checks(Struct, frozen=True, kw_only=True):
    """What has to succeed before a run is completed. Without commands: nothing, or with a timeout
    what its agent's entry or its profile says, with that."""

    commands: list[str] = []
    """For `sh -c`, in order. At most 16, of at most 4 096 characters each."""
    timeout: float | None = None
    """Seconds that each may take; `None`: what is left of the run's time."""


MAX_SIDE = 2000
"""Most rows and columns of a terminal."""


class Terminal(Struct, frozen=True, kw_only=True):
    """A terminal of a run's own, as it begins: a viewer who types changes its size."""

    rows: int = 24
    columns: int = 80


class Ship(Struct, frozen=True, kw_only=True):
    """A directory that is sent to the node where a run executes. The run works in a copy of it."""

    directory: bytes
    """The directory that the files come from, an absolute path."""
    within: bytes = b""
    """The directory below it in which the run works; empty: it itself."""
    archive: str = ""
    """The name under which `put_files` has brought the files: 32 hexadecimal digits."""
    size: int = 0
    """Bytes of the files."""
    git: bool = False
    """It is in a git repository. Then the copy is one, too."""
    author: str = ""
    """Of commits in the copy: NAME <MAIL>."""
    node: str = ""
    """The node of the directory. Set by the daemon only."""


class CallInfo(
    Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True, gc=False
):
    """A call that the gateway has seen. Tokens and cost are what its run was charged; of a call
    that was not made, `None`."""

    time: datetime
    """When the agent asked for it."""
    run_id: RunId
    number: int
    """With `time` and `run_id` it tells the call from all others."""
    state: Literal["waiting", "under_way", "ended", "refused", "withdrawn"]
    """`withdrawn`: it was not made, because its caller hung up or a process died."""
    upstream: str
    """The upstream's name."""
    model: str | None
    """`None` for a billable request that is not a model call; then `path` tells what it is."""
    input_tokens: int | None = None
    cached_tokens: int | None = None
    """The part of `input_tokens` that was read from a cache."""
    cache_write_tokens: int | None = None
    """The part of `input_tokens` that was written to a cache."""
    output_tokens: int | None = None
    cost_usd: float | None = None
    """`None` also for a model without a price."""
    partial: bool = False
    status: int | None = None
    """Of HTTP; `None` if no reply came."""
    clamped_to: int | None = None
    """Tokens to which its maximum output was lowered."""
    refused: str | None = None
    """Why it was refused."""
    error: str | None = None
    """What went wrong."""
    streamed: bool = False
    reserved_input: int | None = None
    """Tokens."""
    reserved_output: int | None = None
    """Tokens."""
    tools: int = 0
    """Tool calls that the model asked for."""
    waited_s: float | None = None
    """Seconds until it was admitted, refused or withdrawn."""
    first_byte_s: float | None = None
    """Seconds from its admission, as in `elapsed_s`."""
    elapsed_s: float | None = None
    path: str | None = None
    """The path of a request that is not a model call."""
    more: int = 0
    """So many calls after it were refused or withdrawn in the same minute, and have no row of their
    own."""
    estimated: bool = False
    """Its model has no price: the cost is that of `price_from`, which stands in for it."""
    at_most: bool = False
    """As in `Usage`."""
    served: str | None = None
    """The model that the reply says has answered, where it is not `model`."""
    price_from: str | None = None
    """Where the cost is from: `reply` if the reply says it, else the model at whose price it
    counts, with ` at PROVIDER` behind it if that is the upstream's provider, and not the one that
    the name tells."""
    modes: dict[Modality, tuple[int, int]] = {}
    """Of `input_tokens` and `output_tokens`, those that are not text."""


class Refusal(Struct, frozen=True, kw_only=True):
    """A start that the guard refused (docs/guard.md#refusals-as-data)."""

    kind: Rule
    detail: str
    """The value, the limit, and where it was set."""
    message: str
    """For the model that will read it."""
    limit: int | float | None = None
    value: int | float | None = None
    """A count, or the USD that are used of a budget; for `loop` the length of the circle."""
    reserved: float | None = None
    """The USD that are reserved beyond `value`, if any. The budget counts both."""
    path: list[str] | None = None
    """For `loop`: from the first occurrence to the refused name."""
    key: str | None = None
    """For a quota, or a bound: the key of the config that sets `limit`."""
    possible_in_s: float | None = None
    """Seconds until a start will be possible, at the latest, as far as that is known."""


class QuotaState(Struct, frozen=True, kw_only=True):
    """What a user, or the daemon, has of a quota (docs/users.md#quotas)."""

    key: str
    """The key of the config."""
    used: int
    limit: int
    possible_in_s: float | None = None
    """Seconds until one more fits, if that is known; 0 if it does now."""


class Lowered(Struct, frozen=True, kw_only=True):
    """A limit of a session that is lower than what was asked for. `source`: what set it, as in
    `LimitState`."""

    kind: LimitKind
    asked: float
    given: float
    source: str
    message: str
    """The same in words."""


class LimitRefusal(Struct, frozen=True, kw_only=True):
    """A reservation is refused, because it would take a run, a user or a team above a limit.
    Nothing was charged."""

    scope: Literal["run", "tree", "user", "team"]
    whose: str
    """The run, user or team that has the limit."""
    limit_kind: LimitKind
    threshold: float
    used: float
    """Used already."""
    asked: float
    message: str
    """For the model that will read it."""
    reserved: float = 0.0
    """Reserved already, beyond `used`. The limit counts both."""


class BudgetState(Struct, frozen=True, kw_only=True):
    """A budget, and what of it is used (docs/limits.md#budgets-of-users-and-teams)."""

    scope: Literal["user", "team"]
    name: str
    period: Literal["day", "week", "month"]
    usd: float
    """The amount for each period."""
    used_usd: float
    """What is used in this period."""
    renews: str
    """When the next period begins, as RFC 3339."""
    partial: bool = False
    at_most: bool = False
    allowance_usd: float | None = None
    """In a fleet: what the keeper lets this node use in this period; `used_usd` is this node's
    then."""
    nodes: dict[str, float] = {}
    """On the keeper of a fleet: what each other node may use of it. What these have told that they
    used is in `used_usd`."""
    reserved_usd: float = 0.0
    """What is reserved beyond `used_usd`, and rarely used in full. The budget counts both."""


class Survivor(Struct, frozen=True, kw_only=True):
    """A process that outlived SIGKILL. Its run stays `stopping`."""

    pid: int
    run_id: RunId
    why: str
    """Such as `uninterruptible sleep (D) in nfs_wait`."""


class Unreached(Struct, frozen=True, kw_only=True):
    """A run of which it is not known whether it is gone: it executes on a node that does not
    answer. It stays `stopping`."""

    run_id: RunId
    node: str
    why: str
    """Since when the node does not answer, and when the run is stopped at the latest."""


Severity = Literal["low", "medium", "high"]

SEVERITIES: tuple[Severity, ...] = ("low", "medium", "high")
"""The lowest first."""


class Event(
    Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True, gc=False
):
    """Something that has happened (docs/protocol.md#events)."""

    type: str
    """One of the words below (docs/protocol.md#events)."""
    severity: Severity = "low"
    time: datetime | UnsetType = UNSET
    seq: int | UnsetType = UNSET
    """Counts up across restarts; after a crash up to 1 000 numbers are skipped."""
    run_id: RunId | None = None
    root_id: RunId | None = None
    agent_name: str | None = None
    """The run's name."""
    user: str | None = None
    """The run's user."""
    message: str = ""
    scope: str | None = None
    """Whose limit it is: `run`, `tree`, `user` or `team`."""
    action: Action | None = None
    """The action that follows."""
    limit_kind: str | None = None
    """A kind of limit, `tool` or `repeats`."""
    threshold: float | None = None
    used: float | None = None
    """As in `Reason`, with the next three."""
    reserved: float | None = None
    exceeded_by: float | None = None
    refused: bool = False
    by: str | None = None
    """`run ID` or `user NAME`."""
    program: str | None = None
    """For `unadmitted`, with the next three: the agent program, its process, its command line
    (cut), and the depth that a run would have there."""
    pid: int | None = None
    command: str | None = None
    depth: int | None = None
    channel: str | None = None
    """The run's channel."""
    stdout_bytes: int | None = None
    """Of a session: how much output it had written, for its transcript."""
    stderr_bytes: int | None = None
    node: str | None = None
    """Of a fleet: the node that tells of it."""
    state: Literal["raised", "cleared"] | None = None
    """For an alert, with the next two."""
    value: float | None = None
    window_s: float | None = None
    host: str | None = None
    """For `egress_refused`, with the next: what the run may not reach."""
    port: int | None = None
    screen: list[str] = []
    """For `run_waiting`: the last lines of its terminal."""
    provider: str | None = None
    """For `plan_nearing`, `plan_exhausted`, `plan_reset` and `plan_credits`, with the next four."""
    account: str | None = None
    window: str | None = None
    used_ratio: float | None = None
    resets_at: datetime | None = None

    @property
    def is_milestone(self) -> bool:
        """Whether the run itself tells of its progress."""
        return self.type == "run_progress" and self.by is not None

    @property
    def number(self) -> int:
        """`seq`, which each event has that was published."""
        assert isinstance(self.seq, int)
        return self.seq


class ErrorCode(StrEnum):
    """The machine-readable part of an `Error` reply. Stable: a client may switch on it."""

    BAD_REQUEST = "bad_request"
    UNSUPPORTED_VERSION = "unsupported_version"
    NO_SUCH_RUN = "no_such_run"
    AMBIGUOUS_RUN = "ambiguous_run"
    NOT_PERMITTED = "not_permitted"
    WRONG_STATE = "wrong_state"
    UNAVAILABLE = "unavailable"
    INTERNAL = "internal"
