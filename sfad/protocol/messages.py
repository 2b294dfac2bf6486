"""One Struct a request and a reply, tagged by the key `type`.

A connection begins with `Hello`, answered by `Welcome`. After that every request carries an `id` the client chose, and
its reply carries the same one; replies may come in another order than their requests, because `Wait` takes as long as
the run. Requests refuse unknown fields (a typo must not be a silent default); replies and events do not, so that an
older client can read a newer daemon.

`descriptors` in a message says how many file descriptors travel with its first byte as SCM_RIGHTS.
"""

from __future__ import annotations

import sys
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any, ClassVar, Literal, TypeVar

import msgspec
from msgspec import Struct

from .advice import Advice
from .errors import BadMessage, ErrorCode
from .framing import frame
from .summary import By, Summary
from .types import (
    Action,
    Bound,
    BudgetState,
    Claim,
    Event,
    Kind,
    Limit,
    LimitRefusal,
    Refusal,
    Role,
    RunId,
    RunInfo,
    Status,
    Survivor,
)

T = TypeVar("T")

ALWAYS = sys.maxsize
"""`Request.repeats` of requests whose reply takes as long as runs do: the daemon may be restarted several times meanwhile."""

MAX_DESCRIPTORS = 3
"""Descriptors in one message: stdin, stdout, stderr."""


class Request(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type"):
    """Base of everything a client sends."""

    id: int
    access: ClassVar[Literal["permission", "outside", "none"]] = "permission"
    """Which peers may use the verb that the tag names. `permission`: those of the daemon's owner, and those inside a run unless
    `--allow` or `--deny` forbids it. `outside`: only those outside any run; a peer inside one would give itself more than it was
    given, or learn of runs that are not its own, or remove them. `none`: the tag is no verb that a permission can name."""
    repeats: ClassVar[int] = 0
    """How often a client sends the request again if the connection is lost before the reply. 0 for what adds up, what writes, and
    what may meet another state the second time (`Resume` would thaw what was paused again meanwhile)."""


class Hello(Request, tag="hello"):
    """First on every connection. `client` names the program, for the daemon's log at level debug only."""

    access = "none"

    versions: list[int]
    client: str = ""


class Spawn(Request, tag="spawn"):
    """Start a run. Answered by `RunReply` once it has started, failed to start or is queued; or by `Refused`."""

    repeats = 3  # with its key, a run is admitted once however often it is asked for

    argv: list[bytes]
    cwd: bytes
    env: list[bytes]
    """`KEY=VALUE`, unchanged, as execve(2) takes them. The daemon adds SFA_* and takes away what belongs to itself."""
    umask: int = 0o022
    agent: str | None = None
    """A registered agent. Then `argv` holds the words that follow its name: options of its program, and the task."""
    placeholders: dict[str, str] = {}
    """Values of `{task}`, `{model}`, `{provider}` and `{instructions}` in the agent's command."""
    session: str | None = None
    """A session id that is a word of `argv`. Each attempt after the first gets another one in its place."""
    name: str | None = None
    """`--name`; without it the name is derived from argv."""
    kind: Kind = "agent"
    run_type: str | None = None
    max_depth: Bound | None = None
    max_descendants: Bound | None = None
    limits: list[Limit] = []
    """At most one a kind; the others come from the profile of `run_type`, then from the config."""
    on_limit: Action | None = None
    """The action of every limit in `limits` that names none."""
    meter: str | None = None
    """Reads the run's stdout for what it uses; without it one is chosen from the command. `none`: no meter."""
    attempts: int = 1
    retry_delay: float | None = None
    """Seconds before the second attempt; doubles each time, capped."""
    grace: float | None = None
    """Seconds between the stop signal and SIGKILL, at most 60; without it `stop.grace` of the config."""
    tied: bool = False
    """Stop the run when this connection goes away: a foreground run without `--keep`."""
    detach: bool = False
    leaf: bool = False
    queue: bool = True
    priority: int = 0
    log: bool = True
    """Whether stdout and stderr are kept."""
    quiet: bool = False
    stdin: Literal["null", "descriptor", "pipe"] = "null"
    """`descriptor`: the descriptor that travels with this message. `pipe`: kept open for `Send`."""
    stdio: Literal["files", "inherit"] = "files"
    """`inherit`: the three descriptors that travel with this message are the run's stdin, stdout and stderr."""
    labels: dict[str, str] = {}
    channel: str | None = None
    allow: list[str] = []
    deny: list[str] = []
    """Verbs that a peer inside the run may, or may not, use; they narrow only."""
    allowed_tools: list[str] = []
    blocked_tools: list[str] = []
    claim: Claim = Claim()
    watch: bool = False
    """Push the events of the run and its descendants from its admission on, as `Watch` does; they carry this request's id."""
    key: str | None = None
    """Chosen at random by the client, at most 64 characters: asked again with the same key, by the same user and from the same
    run, as after a lost connection, the daemon answers with the run that it has admitted for it, and starts nothing."""
    descriptors: int = 0


class Stop(Request, tag="stop"):
    """Stop runs and everything below them. Answered by `Stopped` only when nothing of them is alive, or when something
    is still there `stop.kill_wait` after SIGKILL. `everything`, `name` and `labels` choose among the live runs, and narrow
    each other; `runs` are stopped as well."""

    repeats = ALWAYS

    runs: list[str] = []
    everything: bool = False
    name: str | list[str] | None = None
    """Of several names either will do."""
    labels: dict[str, str | list[str]] = {}
    """Of several values of a key either will do; of several keys each is demanded."""
    signal: int = 15
    grace: float | None = None


class Select(Request, tag="select"):
    """Which runs a command line means: each of `runs`, by id, name or prefix; and the live ones that `everything`, `name` and
    `labels` choose, as in `Stop`. Of those, `pause` takes the topmost that run, and `resume` those that are paused themselves.
    Answered by `Selected`."""

    repeats = 1
    access = "none"

    verb: str
    """What is to be done to them: the peer needs permission for that."""
    runs: list[str] = []
    everything: bool = False
    name: str | list[str] | None = None
    labels: dict[str, str | list[str]] = {}


class Pause(Request, tag="pause"):
    """Freeze a run's whole tree and stop its clocks. Answered by `RunReply` when it is frozen."""

    repeats = 1

    run: str
    suspended: bool = False
    """The run's foreground client is about to stop itself (Ctrl-Z). A run that is paused already keeps its reason."""


class Resume(Request, tag="resume"):
    """Thaw a paused run. Answered by `RunReply`. A limit that paused it has the threshold that `limits` names from now on,
    and only warns where they name none."""

    run: str
    limits: list[Limit] = []
    suspended: bool = False
    """The foreground client was continued: undo its own `Pause` and no other. Answered by `RunReply` in any case."""


class Approve(Request, tag="approve"):
    """Grant the increase that a run waits for, and thaw it: `Resume` for what a limit with `request_increase` has frozen.
    Only from outside any run. Answered by `RunReply`."""

    access = "outside"

    run: str
    limits: list[Limit] = []


class Deny(Request, tag="deny"):
    """Refuse the increase that a run waits for, and terminate it. Answered by `RunReply`, as soon as it is being stopped."""

    access = "outside"

    run: str


class ChangeLimits(Request, tag="limit"):
    """Change limits of a live run, up or down. Answered by `RunReply`. A peer inside a run may only lower them."""

    run: str
    limits: list[Limit]


class Report(Request, tag="report"):
    """What an agent has used since its last report: amounts to be added, each `None` if it is not told. Answered by
    `RunReply`. Charged to the run and, for tokens and money, to every ancestor, its user and its teams."""

    run: str | None = None
    """The run the peer is in, if it is not said; another one must be below that."""
    model: str | None = None
    """For the price of the tokens, where `cost_usd` is not told."""
    turns: int | None = None
    messages: int | None = None
    input_tokens: int | None = None
    """Those from or to a cache included."""
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    cost_usd: float | None = None
    role: Role | None = None


class Reserve(Request, tag="reserve"):
    """Ask before a call to a model: may the run use this much? Answered by `Reserved`. A yes holds the estimate against the
    run, its ancestors, its user and its teams, all or none; unsettled at the run's end it is charged in full."""

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


class Recommend(Request, tag="recommend"):
    """What limits the ledger's successful runs would have been content with. Answered by `Recommended`."""

    repeats = 1
    access = "outside"

    run_type: str | None = None
    name: str | None = None


class Signal(Request, tag="signal"):
    """Send a signal to the run's main process only (SIGQUIT, SIGWINCH, SIGINT of a terminal). Answered by `Done`."""

    run: str
    signal: int


class Info(Request, tag="info"):
    """One run, with its live processes and memory. Answered by `RunReply`."""

    repeats = 1

    run: str


class Wait(Request, tag="wait"):
    """Answered by `RunReply` when the run is terminal and the ledger knows it, or after `timeout` seconds with the run as it
    is then."""

    repeats = ALWAYS

    run: str
    timeout: float | None = None
    tie: bool = False
    """Stop the run when this connection goes away, as `Spawn.tied` does: for the client of a foreground run that has lost its
    connection. A tied run whose client does not come back within 10 s of a restart of the daemon is stopped."""


class List(Request, tag="list"):
    """A page of runs: the live ones, and of those that ended the newest `rows`. Answered by `RunList`, which says where the next
    page begins."""

    repeats = 1

    status: list[Status] = []
    name: str | list[str] | None = None
    """As in `Stop`."""
    user: str | None = None
    root: str | None = None
    """Only this run's tree."""
    since: float | None = None
    """Only runs created at or after this time, in Unix seconds."""
    labels: dict[str, str | list[str]] = {}
    """As in `Stop`."""
    rows: int = 50
    """Ended runs in the page, at most 1 000; it may have fewer, and still not be the last. Live ones are all in the first page."""
    live: bool = False
    """Fill in `processes` and `memory_bytes`."""
    before: RunId | None = None
    """Only ended runs with lower ids: the `next` of the page before this one."""


class Summarise(Request, tag="summary"):
    """How the runs created since a time have ended, and what they used; live ones as they are now. Answered by `Summarised`."""

    repeats = 1

    since: float
    """Unix seconds."""
    by: By = "name"
    name: str | list[str] | None = None
    """As in `Stop`."""
    user: str | None = None
    labels: dict[str, str | list[str]] = {}
    """As in `List`."""


class Logs(Request, tag="logs"):
    """The run's output files, opened for reading. Answered by `LogFiles` with two descriptors. The files exist from the
    run's admission, so that a reader may begin before the run does; a `Wait` on the same connection tells when it ended."""

    repeats = 1

    run: str
    form: Literal["raw", "text", "auto"] = "raw"
    """Whether the caller wants stdout as it is, or the text that the agent's events hold. `auto`: the text if the caller is in a
    run with a meter, where JSON would go to a model."""


class Text(Request, tag="text"):
    """More of the text that the events in a run's stdout hold, where `LogFiles.text` says that there is any. What is no event is
    text as it is. Answered by `TextPart` at once: its file's growth tells when there may be more."""

    repeats = 1
    access = "none"

    run: str
    cursor: bytes = b""
    """That of the last `TextPart`; without it, from the beginning."""


class Result(Request, tag="result"):
    """A finished run's final answer, or else its stdout, made safe for a language model. Answered by `ResultText`."""

    repeats = 1

    run: str
    max_bytes: int = 64 * 1024
    """Of the text, at most 1 MiB; the newest part is kept."""
    raw: bool = False
    """The whole stdout, also where the run's meter can find the answer in its events."""


class Send(Request, tag="send"):
    """Bytes for the stdin of a run that was started with `stdin = "pipe"`. Answered by `Done`."""

    run: str
    data: bytes
    eof: bool = False
    """Close the run's stdin afterwards."""


class Watch(Request, tag="watch"):
    """Push the events of a run and its descendants from now on. Answered by `Done`, then by `EventPush` with the same id."""

    repeats = 1

    run: str


class DaemonInfo(Request, tag="status"):
    """The daemon itself. Answered by `DaemonStatus`."""

    repeats = 1


class Agents(Request, tag="agents"):
    """The registered agents. Answered by `AgentList`."""

    repeats = 1


class Config(Request, tag="config"):
    """The effective configuration and where each value comes from. Answered by `ConfigReply`."""

    repeats = 1


class Reload(Request, tag="reload"):
    """Read the config again, as SIGHUP does. Answered by `Reloaded`; or by `Error`, and nothing changes, if something is wrong with
    it. Only from outside any run."""

    repeats = 1
    access = "outside"


class Prune(Request, tag="prune"):
    """Remove rows and output of trees that have ended. Answered by `Pruned`. Only from outside any run, and only the caller's own
    trees, unless the caller is root."""

    access = "outside"

    older_than: float | None = None
    """Only trees that ended so many seconds ago, or longer."""
    keep: int = 0
    """Spare the newest trees, so many."""
    dry_run: bool = False
    """Count what would be removed, and remove nothing."""


class Reply(Struct, kw_only=True, omit_defaults=True, tag_field="type"):
    """Base of everything the daemon sends. `id` is the request's, or 0 where the request could not be read."""

    id: int


class Welcome(Reply, tag="welcome"):
    """The handshake's answer. `run` is the run that the kernel says the peer is in, if any."""

    version: int
    daemon: str
    pid: int
    state_dir: str
    run: RunId | None = None


class RunReply(Reply, tag="run"):
    """One run."""

    run: RunInfo


class Refused(Reply, tag="refused"):
    """The guard's no, a normal answer. `run` is the id under which the refusal was recorded; `None` where refusals of
    this kind have become so many that they are only counted."""

    refused: Refusal
    run: RunId | None = None


class Failure(Struct, frozen=True, kw_only=True):
    """Why one of several runs was left out."""

    run: str
    """As the request named it."""
    code: ErrorCode
    message: str


class Selected(Reply, tag="selected"):
    """The answer to `Select`: ids, each once, in the order of the request, then those that were chosen, oldest first."""

    runs: list[RunId]
    failed: list[Failure] = []
    """Of `Select.runs`, those that name no run, several, or one that is not the peer's."""


class Stopped(Reply, tag="stopped"):
    """Everything asked for is gone, or `survivors` tells what is not."""

    stopped: list[RunId]
    survivors: list[Survivor]
    elapsed_s: float


class Reserved(Reply, tag="reserved"):
    """The answer to `Reserve`: `reservation` names what is held, or `refused` says why not."""

    run: RunId
    reservation: str | None = None
    cost_usd: float | None = None
    """The estimate; `None` where the model has no price."""
    refused: LimitRefusal | None = None


class Recommended(Reply, tag="recommended"):
    """Advice for each kind of limit, and the limit in force for a run of this type that says nothing."""

    runs: int
    """Successful runs that the advice rests on."""
    advice: list[Advice]
    in_force: list[Limit]


class RunList(Reply, tag="runs"):
    """Runs, oldest first."""

    runs: list[RunInfo]
    next: RunId | None = None
    """`List.before` of the next page, which holds older runs; `None` where there are no more."""


class Summarised(Reply, tag="summarised"):
    """The answer to `Summarise`."""

    summary: Summary


class LogFiles(Reply, tag="log_files"):
    """Two descriptors: stdout, stderr. `ended` tells whether the run is terminal already, `kept` whether it keeps output."""

    run: RunId
    ended: bool
    kept: bool = True
    descriptors: int = 2
    text: bool = False
    """Stdout is to be asked for by `Text`."""
    name: str = ""
    """The run's name."""


class TextPart(Reply, tag="text"):
    """The next part of a run's text."""

    run: RunId
    text: bytes
    cursor: bytes
    """How far it reaches; opaque."""
    tools: list[str] = []
    """The tool calls in this part, a line each."""
    notes: list[str] = []
    """Why something is missing in it."""
    more: bool = False
    """There is more already."""
    ended: bool = False
    """The run has ended. Unless there is more, this was the last part."""


class ResultText(Reply, tag="result"):
    """A finished run's output, safe for a model."""

    run: RunId
    text: str
    truncated: bool


class EventPush(Reply, tag="event"):
    """One event, pushed to a watcher."""

    event: Event


class DaemonStatus(Reply, tag="daemon_status"):
    """What the daemon says of itself."""

    version: str
    pid: int
    uptime_s: float
    socket: str
    state_dir: str
    containment: Literal["cgroup", "tags"]
    containment_detail: str
    """The cgroup below which runs live, or why there is none."""
    draining: bool
    live: int
    queued: int
    admitted: int
    """Runs admitted since the daemon started."""
    refused: int
    connections: int
    memory_bytes: int
    ledger_bytes: int
    ledger_trouble: str | None = None
    """Why the ledger cannot be written, and what helps: nothing new is started meanwhile. `None` if it can."""
    backup_bytes: int | None = None
    """Of the newest backup of the ledger; `None` if there is none."""
    backup_at: datetime | None = None
    adopted: int = 0
    """Live runs that this daemon took over from one before it."""
    enforcement: dict[str, str] = {}
    """Who holds runs to limits of `memory`, `pids` and `cpu` here: `kernel`, `watching`, `nothing`."""
    budgets: list[BudgetState] = []
    linger_command: str | None = None
    """Logging out ends this daemon and its runs, and this command prevents that; `None` where logging out does not end it."""


class Setting(Struct, frozen=True, kw_only=True):
    """One effective configuration value."""

    key: str
    value: Any
    source: str


class AgentInfo(Struct, frozen=True, kw_only=True):
    """A registered agent: how a run of it is started."""

    name: str
    description: str
    command: list[str]
    """With its placeholders."""
    kind: Kind
    type: str | None
    meter: str
    """`auto`: chosen from the command."""
    limits: list[str]
    stdin: bool
    source: str
    """The config file that defines it, or `built-in`."""


class AgentList(Reply, tag="agent_list"):
    """Every registered agent, by name."""

    agents: list[AgentInfo]


class ConfigReply(Reply, tag="config"):
    """The effective configuration."""

    settings: list[Setting]


class Change(Struct, frozen=True, kw_only=True):
    """A setting that a reload has found changed."""

    key: str
    old: Any
    new: Any
    """`None` also for a key that was added or removed: then only the other one means something."""
    source: str
    """Where the new value comes from."""
    waits: bool
    """It takes effect at the next start of the daemon."""


class Reloaded(Reply, tag="reloaded"):
    """The config was read again."""

    files: list[str]
    """The files that were there."""
    changed: list[Change]


class Pruned(Reply, tag="pruned"):
    """What was removed, or, after a dry run, what would be."""

    trees: int
    runs: int
    events: int
    """Of these runs, in the ledger."""
    files: int
    """Of output."""
    output_bytes: int
    """That the files took on the disk."""
    ledger_bytes: int
    """By which the ledger's file shrank: its free pages are kept for what is written next, unless they are many."""


class Done(Reply, tag="done"):
    """It was done; there is nothing to tell."""


class Error(Reply, tag="error"):
    """The request failed. `message` names the thing, the value, the limit and what to do."""

    code: ErrorCode
    message: str


def _one_of(base: type[T]) -> tuple[tuple[type[T], ...], msgspec.msgpack.Decoder[T]]:
    """Return the messages of this module below a base, and a decoder that tells them apart by their tags."""
    kinds = tuple(base.__subclasses__())
    return kinds, msgspec.msgpack.Decoder(reduce(or_, kinds))


REQUESTS, _request_decoder = _one_of(Request)
REPLIES, _reply_decoder = _one_of(Reply)
_encoder = msgspec.msgpack.Encoder()


def tag(kind: type[Request | Reply]) -> str:
    """Return what the key `type` says of messages of this kind."""
    return str(kind.__struct_config__.tag)


def pack(value: Any) -> bytes:
    """`value` in msgpack."""
    return _encoder.encode(value)


def pack_message(message: Request | Reply) -> bytes:
    """A whole frame with `message` in it."""
    return frame(_encoder.encode(message))


def _unpack(decoder: msgspec.msgpack.Decoder[T], body: bytes) -> T:
    # msgspec tells a wrong type, a truncation, bad UTF-8 and deep nesting by four exceptions; to a reader of frames they are one
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(f"not a message of this protocol: {error}") from error


def unpack_request(body: bytes) -> Request:
    """The request in a frame's body. Raises `BadMessage`."""
    return _unpack(_request_decoder, body)


def unpack_reply(body: bytes) -> Reply:
    """The reply in a frame's body. Raises `BadMessage`."""
    return _unpack(_reply_decoder, body)


def request_id(body: bytes) -> int:
    """The id of a request that cannot be decoded otherwise, so that its `Error` can be matched; 0 where there is none."""
    try:
        return msgspec.msgpack.decode(body, type=_OnlyId).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0


class _OnlyId(Struct):
    id: int = 0
