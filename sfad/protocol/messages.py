"""A Struct for each request and each reply, with its tag in the key `type`. docs/protocol.md describes each field.

A connection begins with `Hello`, answered by `Welcome`. After that each request has an `id` that the client chose, and its reply
has the same one. Replies may come in another order than their requests, because `Wait` takes as long as the run. Requests with
unknown fields are refused, because a typo must not become a silent default. Replies and events may have them, so that an older
client can read a newer daemon.

`descriptors` in a message says how many file descriptors travel with its first byte as SCM_RIGHTS.
"""

import sys
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any, ClassVar, Literal, TypeVar

import msgspec
from msgspec import Struct

from .framing import BadMessage, frame
from .statistics import Advice, By, Summary
from .types import (
    Action,
    AlertState,
    Bound,
    BudgetState,
    CallInfo,
    Claim,
    ErrorCode,
    Event,
    Isolation,
    Kind,
    Limit,
    LimitRefusal,
    Lowered,
    QuotaState,
    Refusal,
    Role,
    RunId,
    RunInfo,
    Severity,
    Status,
    Survivor,
    Tokens,
)

T = TypeVar("T")
ALWAYS = sys.maxsize
"""`Request.repeats` of requests that wait for runs: the daemon may be restarted several times meanwhile."""
MAX_DESCRIPTORS = 3
"""Descriptors in one message: stdin, stdout, stderr."""


class Request(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type"):
    """Base of every message that a client sends."""

    id: int
    repeats: ClassVar[int] = 0
    """How often a client sends the request again if the connection is lost before the reply. 0 for what adds up, what writes, and
    what may meet another state the second time (`Resume` would thaw what was paused again meanwhile)."""


class Hello(Request, tag="hello"):
    """The first message of a connection. `client` names the program, only for the daemon's log at level debug."""

    versions: list[int]
    client: str = ""


class Spawn(Request, tag="spawn"):
    """Start a run. Answered by `RunReply` once it has started, failed to start or is queued; or by `Refused`."""

    repeats = 3  # with its key, a run is admitted once however often it is asked for

    argv: list[bytes]
    cwd: bytes
    env: list[bytes]
    """`KEY=VALUE`, as execve(2) takes them. The daemon adds SFA_* and removes its own variables."""
    umask: int = 0o022
    agent: str | None = None
    """A registered agent. `argv` then holds the words after its name: options of its program, and the task."""
    placeholders: dict[str, str] = {}
    session: str | None = None
    """A session id that is a word of `argv`. Each further attempt gets a new id in its place."""
    name: str | None = None
    kind: Kind = "agent"
    run_type: str | None = None
    max_depth: Bound | None = None
    max_descendants: Bound | None = None
    limits: list[Limit] = []
    on_limit: Action | None = None
    meter: str | None = None
    attempts: int = 1
    retry_delay: float | None = None
    grace: float | None = None
    tied: bool = False
    """Stop the run when this connection ends: a foreground run without `--keep`."""
    detach: bool = False
    leaf: bool = False
    nested: bool = False
    """The run may start sessions and stop them, although it is a subagent."""
    queue: bool = True
    priority: int = 0
    log: bool = True
    quiet: bool = False
    gateway: bool | None = None
    """Send its calls of a model through the gateway. `None`: as its parent does; a root's where that is enabled."""
    shim: bool = False
    """A shim asks. The daemon adds to `argv` what leads the program to the gateway."""
    stdin: Literal["null", "descriptor", "pipe"] = "null"
    """`descriptor`: the descriptor that travels with this message. `pipe`: a pipe that `Send` writes to."""
    stdio: Literal["files", "inherit"] = "files"
    """`inherit`: the three descriptors that travel with this message are the run's stdin, stdout and stderr."""
    labels: dict[str, str] = {}
    channel: str | None = None
    allow: list[str] = []
    deny: list[str] = []
    allowed_tools: list[str] = []
    blocked_tools: list[str] = []
    allowed_models: list[str] = []
    """Patterns of the models that the run and all below it may call. They need the gateway."""
    claim: Claim = Claim()
    watch: bool = False
    """Push the events of the run and its descendants, from its admission on, as `Watch` does. They carry the id of this request."""
    on_end: str | None = None
    """A command for `sh -c`, executed once the run has ended."""
    key: str | None = None
    """A random word of the client. The same user asking again from the same run with the same key gets the run admitted before."""
    descriptors: int = 0
    isolation: Isolation | None = None
    """Start the command in a sandbox. `None`: as the config says, and its parent is."""


class StartSession(Request, tag="start_session"):
    """Start a session: a run of a registered agent, with a task, under `[sessions]` of the config. It needs the permission for
    `spawn`, and of a subagent that it is `nested`. Answered by `RunReply` as `Spawn` is, or by `Refused`."""

    repeats = 3

    task: str
    cwd: bytes
    env: list[bytes]
    umask: int = 0o022
    agent: str | None = None
    """`None`: `sessions.default_agent`."""
    name: str | None = None
    model: str | None = None
    provider: str | None = None
    instructions: str | None = None
    limits: list[Limit] = []
    allowed_tools: list[str] = []
    blocked_tools: list[str] = []
    nested: bool = False
    """It may start sessions itself. Otherwise it is a leaf."""
    channel: str | None = None
    labels: dict[str, str] = {}
    claim: Claim = Claim()
    key: str | None = None
    """As `Spawn.key`."""


class SessionRights(Request, tag="session_rights"):
    """Ask what the peer may do with sessions. Answered by `SessionRules`."""

    repeats = 1


class Transcript(Request, tag="transcript"):
    """Return a run's events and the newest part of its output, made safe for a language model. It needs the permission for `logs`.
    Answered by `TranscriptText`."""

    repeats = 1

    run: str
    tail: int = 100
    """Lines at most."""


class Stop(Request, tag="stop"):
    """Stop runs and everything below them: `runs`, and the live ones that `everything`, `name` and `labels` choose together.
    Answered by `Stopped` when none of their processes is alive, or if some still are `stop.kill_wait` after SIGKILL."""

    repeats = ALWAYS

    runs: list[str] = []
    everything: bool = False
    name: str | list[str] | None = None
    labels: dict[str, str | list[str]] = {}
    signal: int = 15
    grace: float | None = None
    sessions: bool = False
    """Only sessions, and only for a peer that may start them."""


class Select(Request, tag="select"):
    """Find the runs that a command line means: `runs`, by id, name or prefix, and those chosen as in `Stop`. Answered by
    `Selected`. Of those chosen, `pause` takes the topmost running ones, and `resume` those that are paused themselves."""

    repeats = 1

    verb: str
    """The verb that will be used on them. The peer needs permission for it."""
    runs: list[str] = []
    everything: bool = False
    name: str | list[str] | None = None
    labels: dict[str, str | list[str]] = {}


class Pause(Request, tag="pause"):
    """Freeze a run's whole tree and stop its clocks. Answered by `RunReply` when it is frozen."""

    repeats = 1

    run: str
    suspended: bool = False
    """The run's foreground client is about to stop itself (Ctrl-Z). A run that is already paused keeps its reason."""


class Resume(Request, tag="resume"):
    """Thaw a paused run. Answered by `RunReply`. The limit that paused it gets the threshold in `limits`; without one it only
    warns from now on."""

    run: str
    limits: list[Limit] = []
    suspended: bool = False


class Approve(Request, tag="approve"):
    """Grant the increase for which the action `request_increase` has frozen a run, and thaw it. Answered by `RunReply`."""

    run: str
    limits: list[Limit] = []


class Deny(Request, tag="deny"):
    """Refuse the increase that a run waits for, and stop it. Answered by `RunReply` as soon as the stop has begun."""

    run: str


class ChangeLimits(Request, tag="limit"):
    """Change limits of a live run, up or down. Answered by `RunReply`. A peer inside a run may only lower them."""

    run: str
    limits: list[Limit]


class Report(Request, tag="report"):
    """Add what an agent has used since its last report; an unknown amount is `None`. Answered by `RunReply`."""

    run: str | None = None
    model: str | None = None
    turns: int | None = None
    messages: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    cost_usd: float | None = None
    role: Role | None = None


class Reserve(Request, tag="reserve"):
    """Ask, before a call to a model, whether the run may use this much. Answered by `Reserved`. A yes reserves the estimate with
    the run, its ancestors, its user and its teams, all or none. What is not settled when the run ends is charged in full."""

    model: str
    input_tokens: int
    max_output_tokens: int
    run: str | None = None
    role: Role | None = None


class Settle(Request, tag="settle"):
    """Replace a reservation by what was used. Answered by `RunReply`."""

    reservation: str
    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    turns: int | None = None
    messages: int | None = None
    cost_usd: float | None = None


class ServeGateway(Request, tag="serve_gateway"):
    """The gateway begins, or has lost its connection. Answered by `GatewaySettings`."""

    descriptors: int = 0
    """1: its listener. An adopted gateway's daemon has none, and a gateway that is started later needs it."""
    reservations: list[str] | None = None
    """Those of calls whose end was not answered yet, on a new connection. Others, whose answers were lost, are given back."""


class PlaceCaller(Request, tag="place_caller"):
    """Find the run of a process that calls a model. Answered by `CallerPlaced`."""

    uid: int | None = None
    cgroup: int | None = None
    """The inode of its cgroup."""
    token: str | None = None
    """What its base URL says, where runs have no cgroup."""


class AdmitCall(Request, tag="admit_call"):
    """Ask whether a call of a model may be made. Answered by `CallAdmitted` once that is decided."""

    run: str
    model: str
    input_tokens: int
    """Estimated."""
    max_output: int
    """Tokens that an answer may have."""
    fixed: bool = False
    """That cannot be lowered."""
    choices: int = 1
    caches: bool = False
    """Its input may be written to a cache."""
    more_input: int = 0
    """Tokens that its input may have beyond the estimate."""
    factor: float = 1.0
    """What its tier multiplies all prices by."""
    long_cache: bool = False
    """What it writes to a cache is kept for an hour, at twice the price of input."""
    fees_usd: float = 0.0
    """What the provider's tools may cost."""
    upstream: str = ""
    streamed: bool = False


class WithdrawCall(Request, tag="withdraw_call"):
    """Forget an `AdmitCall`, named by its id, whose caller has hung up. Answered by `Done`."""

    call: int


class EndCall(Request, tag="end_call"):
    """Tell what a call has used. Answered by `Done`."""

    run: str
    reservation: str
    model: str
    tokens: Tokens | None = None
    """`None`: the reply could not be read, so what was reserved counts."""
    partial: bool = False
    """The provider has not told its final figures."""
    status: int | None = None
    """Of HTTP; `None` if no reply came."""
    tools: list[tuple[str, str]] = []
    """Calls of tools that the model has asked for: name, digest of the arguments."""
    factor: float = 1.0
    long_cached: int = 0
    """Tokens of `tokens.cache_write` that are kept for an hour."""
    fees_usd: float = 0.0
    first_byte_s: float | None = None
    seconds: float = 0.0
    error: str | None = None
    failed: bool = False
    """The upstream did not answer, or answered with an error, or its key cannot be read."""


class SilentCall(Request, tag="silent_call"):
    """Tell that no byte of a call's reply has come for a while, or that its first byte has come after that. Answered by `Done`."""

    run: str
    reservation: str
    host: str
    silent_s: float | None = None
    """Seconds since the call went out; `None` once its first byte has come."""


class UnaskedCall(Request, tag="unasked_call"):
    """Tell of a request that costs money and is no call of a model: the gateway let it pass, or refused it. Answered by `Done`."""

    run: str
    time: float
    """Unix time of the request."""
    number: int
    """Tells it from others of the same time."""
    upstream: str
    path: str
    refused: str | None = None
    status: int | None = None
    first_byte_s: float | None = None
    seconds: float | None = None
    error: str | None = None


class Recommend(Request, tag="recommend"):
    """Suggest limits from past successful runs. Answered by `Recommended`."""

    repeats = 1

    run_type: str | None = None
    name: str | None = None


class Signal(Request, tag="signal"):
    """Send a signal to the run's main process only (SIGQUIT, SIGWINCH, SIGINT of a terminal). Answered by `Done`."""

    run: str
    signal: int


class Info(Request, tag="info"):
    """Return one run, with its live processes and memory. Answered by `RunReply`."""

    repeats = 1

    run: str


class Wait(Request, tag="wait"):
    """Wait for the end of a run, until the ledger holds it, or for `timeout` seconds. Answered by `RunReply`."""

    repeats = ALWAYS

    run: str
    timeout: float | None = None
    tie: bool = False
    """As `Spawn.tied`, for the client of a foreground run that has lost its connection."""


class List(Request, tag="list"):
    """Return a page of runs: the live ones, and the newest `rows` of the ended ones. Answered by `RunList`."""

    repeats = 1

    status: list[Status] = []
    name: str | list[str] | None = None
    user: str | None = None
    root: str | None = None
    since: float | None = None
    labels: dict[str, str | list[str]] = {}
    rows: int = 50
    live: bool = False
    before: RunId | None = None
    sessions: bool = False
    """Only sessions; in a session, those below it."""


class WatchRuns(Request, tag="watch_runs"):
    """Return runs as `List` does, with their processes, memory and cores, and then push those that change. It needs the permission
    for `list`. Answered by `RunList`, then by `RunsPush` with the same id; by `RunList` again where all runs must be read again;
    and by `Error` at the end, if the client does not read."""

    repeats = ALWAYS

    name: str | list[str] | None = None
    user: str | None = None
    root: str | None = None
    labels: dict[str, str | list[str]] = {}
    rows: int = 50


class Summarise(Request, tag="summary"):
    """Report how the runs created since a time ended, and what they used; live runs as they are now. Answered by `Summarised`."""

    repeats = 1

    since: float
    by: By = "name"
    name: str | list[str] | None = None
    user: str | None = None
    labels: dict[str, str | list[str]] = {}


class Logs(Request, tag="logs"):
    """Open the run's output files, which exist from its admission on, for reading. Answered by `LogFiles` with two descriptors."""

    repeats = 1

    run: str
    form: Literal["raw", "text", "auto"] = "raw"


class Text(Request, tag="text"):
    """Return more of the text in the events of a run's stdout, if `LogFiles.text` says so. Answered by `TextPart` at once."""

    repeats = 1

    run: str
    cursor: bytes = b""


class Result(Request, tag="result"):
    """Return a finished run's final answer, or else its stdout, made safe for a language model. Answered by `ResultText`."""

    repeats = 1

    run: str
    max_bytes: int = 64 * 1024
    raw: bool = False


class Send(Request, tag="send"):
    """Write to the stdin of a run that was started with `stdin = "pipe"`. Answered by `Done`."""

    run: str
    data: bytes
    eof: bool = False


class Watch(Request, tag="watch"):
    """Push the events of a run and its descendants from now on. Answered by `Done`, then by `EventPush` with the same id."""

    repeats = 1

    run: str
    calls: bool = False
    """Push their calls of models instead, each when it begins to wait and when it has ended or is not made, by `CallPush`."""


class ListCalls(Request, tag="calls"):
    """Return a page of a run's calls of models, in the order of their time. Answered by `CallPage`."""

    repeats = 1

    run: str
    after: datetime | None = None
    """Only those after the call with this time and, of several, this number."""
    after_number: int = 0


class Events(Request, tag="events"):
    """Return the oldest `rows` events with a higher number than `after`, or without it the newest ones. Answered by `EventPage`.
    With `follow`, after a page that has no more behind it, each later event comes as `EventPush`, once the ledger has it."""

    repeats = ALWAYS

    after: int | None = None
    rows: int = 50
    runs: list[str] = []
    """Only events of these runs and their descendants."""
    types: list[str] = []
    """Patterns as of a shell: `alert_*`."""
    severity: Severity = "low"
    """The least."""
    since: float | None = None
    follow: bool = False
    milestones: bool = True
    """Also what runs tell of their progress themselves, unless `types` names `run_progress`."""


class DaemonInfo(Request, tag="status"):
    """Return the state of the daemon. Answered by `DaemonStatus`."""

    repeats = 1


class TryHook(Request, tag="test_hook"):
    """Execute a hook of the config for an invented event. Answered by `HookTested` once it has ended."""

    name: str
    event: str = ""
    """Its type; empty: `run_failed`, or the first type that starts the hook."""


class Metrics(Request, tag="metrics"):
    """Return the daemon's metrics. Answered by `MetricsText`."""

    repeats = 1


class Agents(Request, tag="agents"):
    """Return the registered agents. Answered by `AgentList`."""

    repeats = 1


class Config(Request, tag="config"):
    """Return the effective configuration and where each value comes from. Answered by `ConfigReply`."""

    repeats = 1


class Reload(Request, tag="reload"):
    """Read the config again, as SIGHUP does. Answered by `Reloaded`; by `Error` if the config is wrong, and then nothing
    changes."""

    repeats = 1


class Prune(Request, tag="prune"):
    """Remove rows and output of ended trees. Answered by `Pruned`. A caller that is not root removes its own trees only."""

    older_than: float | None = None
    keep: int = 0
    dry_run: bool = False


class Reply(Struct, kw_only=True, omit_defaults=True, tag_field="type"):
    """Base of every message that the daemon sends. `id` is that of the request, or 0 if the request could not be read."""

    id: int


class Welcome(Reply, tag="welcome"):
    """The answer to `Hello`. `run`: the run that the peer is in, according to the kernel."""

    version: int
    daemon: str
    pid: int
    state_dir: str
    run: RunId | None = None


class RunReply(Reply, tag="run"):
    run: RunInfo
    lowered: list[Lowered] = []
    """Limits of a session that has just been started that are lower than what was asked for."""


class SessionRules(Reply, tag="session_rules"):
    """`refused`: why the peer may not start sessions, nor stop them; `None` if it may."""

    sync_timeout_s: float
    """How long `delegate` waits for a session."""
    default_timeout_s: float
    max_timeout_s: float
    max_turns: int
    default_tokens: int
    max_tokens: int
    refused: str | None = None
    default_agent: str | None = None


class TranscriptText(Reply, tag="transcript_text"):
    run: RunId
    text: str
    truncated: bool


class Refused(Reply, tag="refused"):
    """The guard refused the spawn; this is a normal answer. `run`: the id under which the refusal is recorded; `None` if there were
    so many refusals of this kind that they are only counted."""

    refused: Refusal
    run: RunId | None = None


class Failure(Struct, frozen=True, kw_only=True):
    run: str
    code: ErrorCode
    message: str


class Selected(Reply, tag="selected"):
    """The answer to `Select`: each id once; first those named, in the order of the request, then those chosen, oldest first."""

    runs: list[RunId]
    failed: list[Failure] = []
    """The words of `Select.runs` that mean no run, several runs, or a run on which the peer may not use the verb."""


class Stopped(Reply, tag="stopped"):
    stopped: list[RunId]
    survivors: list[Survivor]
    elapsed_s: float


class Reserved(Reply, tag="reserved"):
    """The answer to `Reserve`: `reservation` is the name of the reservation, or `refused` says why there is none."""

    run: RunId
    reservation: str | None = None
    cost_usd: float | None = None
    refused: LimitRefusal | None = None


class UpstreamInfo(Struct, frozen=True, kw_only=True):
    url: str
    api: str
    key_env: str | None = None
    key_file: str | None = None


class GatewaySettings(Reply, tag="gateway_settings"):
    upstreams: dict[str, UpstreamInfo]
    ungated: bool = False


class CallerPlaced(Reply, tag="caller_placed"):
    """`upstreams`: URLs that replace those of upstreams, by name."""

    run: RunId
    upstreams: dict[str, str] = {}


class CallAdmitted(Reply, tag="call_admitted"):
    """`max_output`: what the call must be lowered to; `None` if it stays. `refused`: why it must not be made."""

    reservation: str | None = None
    max_output: int | None = None
    refused: str | None = None
    retry_after: float | None = None
    """With `refused`: seconds after which the call may be asked for again."""


class Recommended(Reply, tag="recommended"):
    """Advice for each kind of limit, and the limits in force for a run of this type that sets none itself."""

    runs: int
    advice: list[Advice]
    in_force: list[Limit]


class RunList(Reply, tag="runs"):
    runs: list[RunInfo]
    next: RunId | None = None


class RunsPush(Reply, tag="runs_changed"):
    """Runs that have changed since they were sent last, or are new."""

    runs: list[RunInfo]


class Summarised(Reply, tag="summarised"):
    summary: Summary


class LogFiles(Reply, tag="log_files"):
    """Two descriptors: stdout, stderr. `ended`: the run has ended already. `kept`: the run's output goes to these files."""

    run: RunId
    ended: bool
    kept: bool = True
    descriptors: int = 2
    text: bool = False
    name: str = ""


class TextPart(Reply, tag="text"):
    run: RunId
    text: bytes
    cursor: bytes
    tools: list[str] = []
    notes: list[str] = []
    more: bool = False
    ended: bool = False


class ResultText(Reply, tag="result"):
    run: RunId
    text: str
    truncated: bool


class EventPage(Reply, tag="events"):
    """`reached`: `after` for the next page, or where the page is the last one, to resume later."""

    events: list[Event]
    reached: int
    more: bool = False


class EventPush(Reply, tag="event"):
    event: Event


class CallPush(Reply, tag="call"):
    call: CallInfo


class CallPage(Reply, tag="calls"):
    """`more`: there are more after the last one. Calls that wait or are under way are in the last page."""

    run: RunId
    calls: list[CallInfo]
    more: bool = False
    ended: bool = False
    """The run has ended."""
    gateway: bool = False
    """The run uses the gateway."""


class DaemonStatus(Reply, tag="daemon_status"):
    version: str
    pid: int
    uptime_s: float
    socket: str
    state_dir: str
    containment: Literal["cgroup", "tags"]
    containment_detail: str
    draining: bool
    live: int
    """Runs in the caller's scope, as `queued`."""
    queued: int
    admitted: int | None
    """The whole daemon's, as `refused` and `connections`: `None` for a caller who may not know of all runs."""
    refused: int | None
    connections: int | None
    memory_bytes: int
    ledger_bytes: int
    ledger_trouble: str | None = None
    backup_bytes: int | None = None
    backup_at: datetime | None = None
    adopted: int = 0
    enforcement: dict[str, str] = {}
    budgets: list[BudgetState] = []
    linger_command: str | None = None
    gateway: str | None = None
    """Its address; `None` if it is not enabled."""
    gateway_pid: int | None = None
    """`None` also while it is being started again."""
    shim_dir: str = ""
    """The directory that the PATH of each run begins with, if it has shims."""
    shims: list[str] = []
    """The programs in it."""
    quotas: list[QuotaState] = []
    """Of the caller's user; empty inside a run."""
    metrics: str | None = None
    """Where Prometheus reads metrics; `None` if nowhere. What is configured, as this, `otel`, `config_files` and `log`, and
    what is wrong with it, is told to the daemon's own user and root only."""
    metrics_trouble: str | None = None
    """Why they are not served there."""
    otel: str | None = None
    """Where spans go; `None` if nowhere."""
    otel_trouble: str | None = None
    """Why they do not arrive there."""
    rejected_config: str | None = None
    """Why the daemon does not use its config files as they are now."""
    alerts: list[AlertState] = []
    """Those that are raised, the oldest first; for a peer in a run, those about its subtree."""
    config_files: list[str] | None = None
    """Those in force, the weakest first."""
    log: str | None = None
    """Where the daemon's log goes: a file, or `stderr`, or `journal`."""
    hooks: list["HookState"] = []
    """Those of the config. Only the operator is told."""
    on_ends: list["OnEndState"] = []
    """Commands of `--on-end` that wait or run."""
    cost_usd: float | None = None
    """What runs have cost within the last `window_s`: those of all users, or of the caller's user if it may not know of others;
    `None` inside a run."""
    window_s: float = 3600.0
    """`alerts.window` of the config."""
    limit_share: float = 0.8
    """`alerts.limit_share` of the config."""


class HookTested(Reply, tag="hook_tested"):
    how: str
    """How it ended: `exit code 0`."""
    ok: bool
    output: str
    """The end of what it printed."""
    elapsed_s: float


class MetricsText(Reply, tag="metrics_text"):
    """`text`: the text format of Prometheus, version 0.0.4."""

    text: str


class Setting(Struct, frozen=True, kw_only=True):
    key: str
    value: Any
    source: str


class HookState(Struct, frozen=True, kw_only=True):
    """A hook of the config, and what became of it since the daemon's start."""

    name: str
    on: list[str]
    command: list[str]
    timeout: float
    waiting: int = 0
    """Events that it has not been started for."""
    running: int = 0
    ended: int = 0
    failed: int = 0
    failing: str | None = None
    """How it ended last, if it failed."""
    dropped: int = 0
    """Events for which it was not started, because too many came."""


class OnEndState(Struct, frozen=True, kw_only=True):
    """The command of `--on-end` of a run that has ended."""

    run_id: RunId
    command: str
    state: Literal["waiting", "running"]


class AgentInfo(Struct, frozen=True, kw_only=True):
    name: str
    description: str
    command: list[str]
    kind: Kind
    type: str | None
    meter: str
    limits: list[str]
    stdin: bool
    source: str


class AgentList(Reply, tag="agent_list"):
    agents: list[AgentInfo]


class ConfigReply(Reply, tag="config"):
    settings: list[Setting]


class Change(Struct, frozen=True, kw_only=True):
    key: str
    old: Any
    new: Any
    source: str
    waits: bool


class Reloaded(Reply, tag="reloaded"):
    files: list[str]
    changed: list[Change]


class Pruned(Reply, tag="pruned"):
    trees: int
    runs: int
    events: int
    files: int
    output_bytes: int
    ledger_bytes: int


class Done(Reply, tag="done"):
    """The request was carried out."""


class Error(Reply, tag="error"):
    """The request failed. `message` says what failed, with the value; why; and what to do."""

    code: ErrorCode
    message: str


def _one_of(base: type[T]) -> tuple[tuple[type[T], ...], msgspec.msgpack.Decoder[T]]:
    kinds = tuple(base.__subclasses__())
    return kinds, msgspec.msgpack.Decoder(reduce(or_, kinds))


REQUESTS, _request_decoder = _one_of(Request)
REPLIES, _reply_decoder = _one_of(Reply)
_encoder = msgspec.msgpack.Encoder()


def tag(kind: type[Request | Reply]) -> str:
    return str(kind.__struct_config__.tag)


def pack(value: Any) -> bytes:
    return _encoder.encode(value)


def pack_message(message: Request | Reply) -> bytes:
    return frame(_encoder.encode(message))


def _unpack(decoder: msgspec.msgpack.Decoder[T], body: bytes) -> T:
    # msgspec raises different exceptions for a wrong type, a truncation, bad UTF-8 and deep nesting
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(f"not a message of this protocol: {error}") from error


def unpack_request(body: bytes) -> Request:
    """Return the request in a frame's body. Raise `BadMessage`."""
    return _unpack(_request_decoder, body)


def unpack_reply(body: bytes) -> Reply:
    return _unpack(_reply_decoder, body)


def request_id(body: bytes) -> int:
    """Return the id of a request that cannot be decoded, for the `Error` that answers it; 0 if there is none."""
    try:
        return msgspec.msgpack.decode(body, type=_OnlyId).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0


class _OnlyId(Struct):
    id: int = 0
