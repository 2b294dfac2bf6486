"""Agents' own session files: where each program keeps them, and how their lines are read (SPEC section 8, source `session`).

Claude Code, Codex and Gemini CLI save the use of each call, with the true output tokens, whatever they print: in text mode, in
a terminal, and before a kill. opencode keeps its sessions in an SQLite database, whose writer a second reader would disturb, and
its events tell the same after each step; it has no entry here.

Pure, as the meters are: nothing here opens a file. From recordings (tests/meters/sessions/) of Claude Code 2.1.330, Codex 0.169.0
and Gemini CLI 0.61.0.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol

import msgspec

from ..protocol.types import Tokens
from . import counters as tally
from .argv import arguments, values
from .base import MAX_NAME, Meter
from .lines import LineMeter, lines_of_type

VARIABLES = ("HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME")
"""Environment variables that say where session files are."""

SESSION_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,127}")
"""What may be put into a file name. Agents use UUIDs."""

HEAD_LINES = 100
"""Lines in which a file says whose it is: Claude Code does within the first ten."""

Name = str | re.Pattern[str]
"""A file name, or a pattern that the whole name matches."""

_ANY = re.compile(r"[^.].*")


class Place(NamedTuple):
    """Where session files may be: the names, level by level, below a directory."""

    root: str
    names: tuple[Name, ...]


class Head(NamedTuple):
    """What the beginning of a session file says."""

    session: str
    project: str
    """The working directory, in the form that `SessionFiles.project` returns."""
    began: str
    """In RFC 3339, UTC, so that texts compare like times."""


class Search(NamedTuple):
    """What is known of a session that is to be found."""

    env: Mapping[str, str]
    """Of the run: those of `VARIABLES` that are set."""
    cwd: str
    since: datetime
    session: str | None
    """Its id, where that is known."""


class SessionFiles(Protocol):
    """How one program keeps its sessions."""

    program: str
    tells_end: bool
    """Whether the file tells a reply that calls a tool from the last one, after which the model is not asked again."""

    def named(self, argv: Sequence[str]) -> str | None:
        """Return the session id that the command gives."""

    def resumes(self, argv: Sequence[str]) -> bool:
        """Return whether the command goes on with an earlier session."""

    def project(self, cwd: str) -> str:
        """Return how a file tells that it belongs to this working directory."""

    def places(self, search: Search) -> list[Place]:
        """Return where the files of the session may be."""

    def head(self, data: bytes) -> Head | None:
        """Return what the first bytes of a file say; `None` if they do not say it."""

    def meter(self, since: str) -> Meter:
        """Return a new meter of one file. It leaves out what the file tells of the time before `since`."""


def files_of(meter: str | None, argv: Sequence[str]) -> SessionFiles | None:
    """Return how the program of a run keeps its sessions: the program that `--meter` names, else that of the command."""
    if meter is not None:
        return next((files for files in _ALL if files.program == meter), None)
    return next((files for files in _ALL if arguments(argv, *_NAMES[files.program]) is not None), None)


def timestamp(time: datetime) -> str:
    """Return a time as the programs write it."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _after(value: Any, since: str) -> bool:
    # a line without a time counts: too much rather than too little
    return not isinstance(value, str) or value >= since


def _texts(*found: Any) -> list[str]:
    return [text if isinstance(text, str) else "" for text in found]


def _lines(data: bytes) -> Iterator[bytes]:
    return iter(data.split(b"\n", HEAD_LINES)[:-1][:HEAD_LINES])


def _options(argv: Sequence[str], program: str, *names: str) -> list[str]:
    words = arguments(argv, *_NAMES[program]) or []
    return [value for value in values(words, *names) if SESSION_ID.fullmatch(value)]


# ---- Claude Code: CLAUDE_CONFIG_DIR/projects/DIRECTORY/SESSION.jsonl, and SESSION/subagents/agent-*.jsonl beside it


class _ClaudeUsage(msgspec.Struct):
    input_tokens: Any = 0
    output_tokens: Any = 0
    cache_read_input_tokens: Any = 0
    cache_creation_input_tokens: Any = 0


class _ClaudeBlock(msgspec.Struct):
    type: str = ""
    id: str = ""
    name: str = ""


class _ClaudeMessage(msgspec.Struct):
    id: str = ""
    model: str = ""
    stop_reason: Any = None
    usage: _ClaudeUsage | None = None
    content: list[_ClaudeBlock] | str = []


class _ClaudeLine(msgspec.Struct):
    type: str = ""
    timestamp: Any = None
    message: _ClaudeMessage | None = None
    total_cost: Any = msgspec.field(default=None, name="totalCostUSD")


class _ClaudeHead(msgspec.Struct, rename="camel"):
    session_id: Any = None
    cwd: Any = None
    timestamp: Any = None


_GOES_ON = {None, "tool_use", "pause_turn"}
"""Reasons after which the model is asked again, maybe before the file says so: it is written 100 ms late."""


class _ClaudeCharge(msgspec.Struct, frozen=True, array_like=True):
    model: str
    used: Tokens


class _ClaudeState(msgspec.Struct, array_like=True):
    since: str
    messages: tally.Recent[_ClaudeCharge] = msgspec.field(default_factory=tally.Recent[_ClaudeCharge])
    calls: tally.Recent[bool] = msgspec.field(default_factory=tally.Recent[bool])
    resumed: bool = False
    """Lines before `since` were seen: totals of the session are not those of this run."""


def _claude_tokens(usage: _ClaudeUsage) -> Tokens:
    read, written = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
    return tally.tokens(fresh=usage.input_tokens, read=read, written=written, output=usage.output_tokens)


class ClaudeSession(LineMeter[_ClaudeLine, _ClaudeState]):
    """Lines of one message share its id and its usage. On its way out Claude Code writes a `cost-state` with what the session
    has cost, subagents included."""

    def __init__(self, since: str) -> None:
        wanted = lines_of_type("assistant", "user", "cost-state")
        super().__init__(wanted, msgspec.json.Decoder(_ClaudeLine), _ClaudeState(since))

    def _take(self, event: _ClaudeLine) -> None:
        if not _after(event.timestamp, self._state.since):
            self._state.resumed = True
        elif event.type == "cost-state":
            self._conclude(event)
        elif event.message is not None and event.type == "assistant":
            self._say(event.message)
        elif event.type == "user":
            self.reading.partial = True  # the model is asked next
            tally.recognised(self.reading)

    def _say(self, message: _ClaudeMessage) -> None:
        if message.model == "<synthetic>":
            return
        tally.recognised(self.reading)
        self.reading.partial = message.stop_reason in _GOES_ON
        self.reading.cost_usd = None
        known = self._state.messages.get(message.id)
        used = _claude_tokens(message.usage or _ClaudeUsage())
        if known is None:
            tally.message(self.reading)
        else:
            self.reading.models[known.model] = tally.minus(self.reading.models[known.model], known.used)
            used = msgspec.structs.replace(used, output=max(used.output, known.used.output))
        self._state.messages.put(message.id, _ClaudeCharge(tally.add(self.reading.models, message.model, used), used))
        for block in message.content:
            if isinstance(block, _ClaudeBlock) and block.type == "tool_use" and not self._state.calls.get(block.id):
                self._state.calls.put(block.id, True)
                tally.turn(self.reading, block.name)

    def _conclude(self, event: _ClaudeLine) -> None:
        if not self._state.resumed:
            self.reading.partial = False
            self.reading.cost_usd = tally.dollars(event.total_cost)


class _Claude:
    program = "claude"
    tells_end = True

    def named(self, argv: Sequence[str]) -> str | None:
        forks = "--fork-session" in argv
        return next(iter(_options(argv, "claude", "--session-id", *(() if forks else ("--resume", "-r")))), None)

    def resumes(self, argv: Sequence[str]) -> bool:
        return not {"--resume", "-r", "--continue", "-c"}.isdisjoint(argv)

    def project(self, cwd: str) -> str:
        return cwd

    def places(self, search: Search) -> list[Place]:
        config = search.env.get("CLAUDE_CONFIG_DIR") or f"{search.env.get('HOME', '')}/.claude"
        root = f"{config}/projects"
        # a longer path ends in a hash, which only Claude Code can compute
        directory: Name = re.sub(r"[^a-zA-Z0-9]", "-", search.cwd) if len(search.cwd) <= 200 else _ANY
        if search.session is None:
            return [Place(root, (directory, re.compile(r"[0-9a-f-]{36}\.jsonl")))]
        subagent = re.compile(r"agent-.*\.jsonl")
        return [
            Place(root, (directory, f"{search.session}.jsonl")),
            Place(root, (directory, search.session, "subagents", subagent)),
        ]

    def head(self, data: bytes) -> Head | None:
        session = project = began = ""
        for line in _lines(data):
            try:
                found = msgspec.json.decode(line, type=_ClaudeHead)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                continue
            told = zip((session, project, began), _texts(found.session_id, found.cwd, found.timestamp), strict=True)
            session, project, began = (known or text for known, text in told)
            if session and project and began:
                return Head(session, project, began)
        return None

    def meter(self, since: str) -> Meter:
        return ClaudeSession(since)


# ---- Codex: CODEX_HOME/sessions/YYYY/MM/DD/rollout-TIME-ID.jsonl; each subagent has a file of its own


class _CodexTokens(msgspec.Struct):
    input_tokens: Any = 0
    cached_input_tokens: Any = 0
    cache_write_input_tokens: Any = 0
    output_tokens: Any = 0

    def tokens(self) -> Tokens:
        read, written = self.cached_input_tokens, self.cache_write_input_tokens
        return tally.tokens_in_all(total=self.input_tokens, read=read, written=written, output=self.output_tokens)


class _CodexInfo(msgspec.Struct):
    total_token_usage: _CodexTokens | None = None


class _CodexPayload(msgspec.Struct):
    type: str = ""
    role: str = ""
    model: str = ""
    name: Any = None
    call_id: str = ""
    info: _CodexInfo | None = None
    thread_token_usage: _CodexTokens | None = None


class _CodexLine(msgspec.Struct):
    type: str = ""
    timestamp: Any = None
    payload: _CodexPayload | None = None


class _CodexMeta(msgspec.Struct):
    id: Any = None
    session_id: Any = None
    cwd: Any = None
    timestamp: Any = None


class _CodexHead(msgspec.Struct):
    payload: _CodexMeta


class _CodexState(msgspec.Struct, array_like=True):
    since: str
    model: str = ""
    total: Tokens = Tokens()
    """Of the thread, as it was told last."""
    calls: tally.Recent[bool] = msgspec.field(default_factory=tally.Recent[bool])


class CodexSession(LineMeter[_CodexLine, _CodexState]):
    """Totals are those of the thread. `token_usage_record` is written with the reply, `token_count` after the tool call that
    follows it; both are repeated and older versions write the second alone."""

    def __init__(self, since: str) -> None:
        wanted = lines_of_type("response_item", "turn_context", "token_count", "token_usage_record", "task_complete")
        super().__init__(wanted, msgspec.json.Decoder(_CodexLine), _CodexState(since))

    def _take(self, event: _CodexLine) -> None:
        payload = event.payload
        if payload is None:
            return
        ours = _after(event.timestamp, self._state.since)
        if event.type == "turn_context":
            self._state.model = payload.model[:MAX_NAME]
        elif event.type == "response_item":
            if ours:
                self._item(payload)
        else:
            self._count(payload, ours=ours)

    def _item(self, item: _CodexPayload) -> None:
        tally.recognised(self.reading)
        if item.type.endswith("_output") or item.role == "user":
            self.reading.partial = True  # the model is asked next
        elif item.role == "assistant":
            tally.message(self.reading)
        elif item.type.endswith("_call") and not self._state.calls.get(item.call_id):
            self._state.calls.put(item.call_id, True)
            tally.turn(self.reading, item.name if isinstance(item.name, str) else item.type)

    def _count(self, payload: _CodexPayload, *, ours: bool) -> None:
        told = payload.thread_token_usage or (payload.info.total_token_usage if payload.info is not None else None)
        if told is not None:
            total, before = told.tokens(), self._state.total
            self._state.total = total
            more = tally.minus(total, before)
            if ours and more.input + more.output:
                tally.add(self.reading.models, self._state.model, more)
        elif payload.type == "task_complete":
            self.reading.partial = False


class _Codex:
    program = "codex"
    tells_end = True

    def named(self, argv: Sequence[str]) -> str | None:
        words = arguments(argv, "codex") or []
        after = words[words.index("resume") + 1 :] if "resume" in words else []
        return next((word for word in after if re.fullmatch(r"[0-9a-f]{8}-[0-9a-f-]{27}", word)), None)

    def resumes(self, argv: Sequence[str]) -> bool:
        return "resume" in argv

    def project(self, cwd: str) -> str:
        return cwd

    def places(self, search: Search) -> list[Place]:
        home = search.env.get("CODEX_HOME") or f"{search.env.get('HOME', '')}/.codex"
        root = f"{home}/sessions"
        days = [search.since.astimezone(UTC) + timedelta(days=days) for days in (1, 0, -1)]  # it names them in its own time zone
        rollout = re.compile(r"rollout-.*\.jsonl")
        found = [Place(root, (f"{day:%Y}", f"{day:%m}", f"{day:%d}", rollout)) for day in days]
        if search.session is not None:
            year, two = re.compile(r"\d{4}"), re.compile(r"\d\d")
            found.append(Place(root, (year, two, two, re.compile(rf"rollout-.*-{search.session}\.jsonl"))))
        return found

    def head(self, data: bytes) -> Head | None:
        try:
            meta = msgspec.json.decode(next(_lines(data), b""), type=_CodexHead).payload
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        identity, session, project, began = _texts(meta.id, meta.session_id, meta.cwd, meta.timestamp)
        return Head(session or identity, project, began) if identity else None

    def meter(self, since: str) -> Meter:
        return CodexSession(since)


# ---- Gemini CLI: GEMINI_CLI_HOME/.gemini/tmp/PROJECT/chats/session-TIME-ID8.jsonl


class _GeminiTokens(msgspec.Struct):
    input: Any = 0
    output: Any = 0
    cached: Any = 0
    thoughts: Any = 0
    tool: Any = 0


class _GeminiCall(msgspec.Struct):
    id: str = ""
    name: Any = None


class _GeminiLine(msgspec.Struct, rename="camel"):
    type: str = ""
    id: str = ""
    timestamp: Any = None
    model: str = ""
    tokens: _GeminiTokens | None = None
    tool_calls: list[_GeminiCall] | None = None


class _GeminiHead(msgspec.Struct, rename="camel"):
    session_id: Any = None
    project_hash: Any = None
    start_time: Any = None


class _GeminiCharge(msgspec.Struct, frozen=True, array_like=True):
    model: str
    used: Tokens


class _GeminiState(msgspec.Struct, array_like=True):
    since: str
    messages: tally.Recent[_GeminiCharge] = msgspec.field(default_factory=tally.Recent[_GeminiCharge])
    calls: tally.Recent[bool] = msgspec.field(default_factory=tally.Recent[bool])


class GeminiSession(LineMeter[_GeminiLine, _GeminiState]):
    """A message is written with its tokens, and again when its tool calls have ended: the last line of an id counts."""

    def __init__(self, since: str) -> None:
        wanted = lines_of_type("user", "gemini")
        super().__init__(wanted, msgspec.json.Decoder(_GeminiLine), _GeminiState(since))

    def _take(self, event: _GeminiLine) -> None:
        if not _after(event.timestamp, self._state.since):
            return
        if event.type == "user":
            self.reading.partial = True  # the model is asked next
            tally.recognised(self.reading)
        elif event.type == "gemini":
            tally.recognised(self.reading)
            self._say(event)

    def _say(self, event: _GeminiLine) -> None:
        self.reading.partial = event.tokens is None
        told = event.tokens or _GeminiTokens()
        output = tally.number(told.output) + tally.number(told.thoughts)
        total = tally.number(told.input) + tally.number(told.tool)
        used = tally.tokens_in_all(total=total, read=told.cached, output=output)
        known = self._state.messages.get(event.id)
        if known is None:
            tally.message(self.reading)
        else:
            self.reading.models[known.model] = tally.minus(self.reading.models[known.model], known.used)
        self._state.messages.put(event.id, _GeminiCharge(tally.add(self.reading.models, event.model, used), used))
        for call in event.tool_calls or ():
            if not self._state.calls.get(call.id):
                self._state.calls.put(call.id, True)
                tally.turn(self.reading, call.name)


class _Gemini:
    program = "gemini"
    tells_end = False  # a call of a tool is written when it has ended

    def named(self, argv: Sequence[str]) -> str | None:
        return next(iter(_options(argv, "gemini", "--session-id")), None)

    def resumes(self, argv: Sequence[str]) -> bool:
        return not {"--resume", "-r"}.isdisjoint(argv)

    def project(self, cwd: str) -> str:
        return hashlib.sha256(cwd.encode(errors="surrogateescape")).hexdigest()

    def places(self, search: Search) -> list[Place]:
        home = search.env.get("GEMINI_CLI_HOME") or search.env.get("HOME", "")
        last = f"-{search.session[:8]}" if search.session is not None else ""
        return [Place(f"{home}/.gemini/tmp", (_ANY, "chats", re.compile(rf"session-.*{last}\.jsonl")))]

    def head(self, data: bytes) -> Head | None:
        try:
            found = msgspec.json.decode(next(_lines(data), b""), type=_GeminiHead)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        session, project, began = _texts(found.session_id, found.project_hash, found.start_time)
        return Head(session, project, began) if session else None

    def meter(self, since: str) -> Meter:
        return GeminiSession(since)


_ALL: tuple[SessionFiles, ...] = (_Claude(), _Codex(), _Gemini())
_NAMES = {"claude": ("claude", "claude-code"), "codex": ("codex",), "gemini": ("gemini", "gemini-cli")}
