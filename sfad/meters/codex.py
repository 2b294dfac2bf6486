"""Codex: `codex exec --json`, and its session files.

From recordings (tests/meters/streams/) and its source, codex-rs/exec/src/exec_events.rs and event_processor_with_jsonl_output.rs.
Codex tells usage only when a turn is completed, so a hard stop needs reservations; a turn that failed tells none. Until then its
output is estimated from its items, and its input is unknown.

The usage is the total of the *thread*, not of the turn (`usage_from_last_total`; https://github.com/openai/codex/issues/17539).
So of several in one stream the latest is right. And `codex exec resume` begins with what the thread used before: one short
answer in an old thread reported 22 million tokens (https://github.com/gitmoot/gitmoot/issues/661). Nothing in the stream tells
how much of that is this run's, so it stays unknown.

Session files (tests/meters/sessions/, version 0.169.0) are CODEX_HOME/sessions/YYYY/MM/DD/rollout-TIME-ID.jsonl; each subagent has
a file of its own.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, timedelta
from typing import Any

import msgspec

from ..protocol.types import Tokens
from . import counters
from .line_meter import LineMeter, SessionMeter
from .lines import lines_of_type
from .program import AgentProgram, SessionFiles, SessionPlace, SessionSearch, arguments, values
from .reading import MAX_NAME
from .speech import AgentFailure, Speech, ToolCall, WholeText

_NOT_CALLS = frozenset({"", "agent_message", "assistant_message", "reasoning", "plan", "todo_list", "error"})
"""Items that are not tool calls. An item that a later version adds counts as one: too much rather than too little."""


class _CodexUsage(msgspec.Struct):
    input_tokens: Any = 0
    cached_input_tokens: Any = 0
    cache_write_input_tokens: Any = 0
    output_tokens: Any = 0

    def tokens(self) -> Tokens:
        """Input tokens include those read from and written to the cache."""
        read, written = self.cached_input_tokens, self.cache_write_input_tokens
        return counters.tokens_in_all(total=self.input_tokens, read=read, written=written, output=self.output_tokens)


class _CodexItem(msgspec.Struct):
    id: str = ""
    type: str = ""
    tool: Any = None
    text: Any = None
    command: Any = None
    query: Any = None
    arguments: msgspec.Raw = msgspec.Raw(b"")


class _CodexError(msgspec.Struct):
    message: Any = None


class _CodexEvent(msgspec.Struct):
    type: str = ""
    thread_id: str = ""
    item: _CodexItem | None = None
    usage: _CodexUsage | None = None
    error: _CodexError | None = None
    message: Any = None


class _CodexState(msgspec.Struct, array_like=True):
    inherited: Tokens | None = None
    """What the thread used before this run; `None`: not known yet."""
    thread: str = ""
    totals: counters.Totals = msgspec.field(default_factory=counters.Totals)
    calls: counters.RecentIds[bool] = msgspec.field(default_factory=counters.RecentIds[bool])
    """Calls that have begun, by the item's id; true while they go on."""
    written: counters.Estimate = msgspec.field(default_factory=counters.Estimate)


class CodexMeter(LineMeter[_CodexEvent, _CodexState]):
    wanted = lines_of_type("thread.started", "item.started", "item.completed", "turn.completed", "turn.failed", "error")
    decoder = msgspec.json.Decoder(_CodexEvent)
    state_type = _CodexState

    def __init__(self, *, model: str = "", resumed: bool = False) -> None:
        """`model`: the stream does not name it. `resumed`: the totals begin with what earlier runs used."""
        super().__init__()
        self._state.inherited = None if resumed else Tokens()
        self._model = counters.printable(model, MAX_NAME)
        self._resumed = resumed

    def _take(self, event: _CodexEvent) -> None:
        if event.type == "thread.started":
            self._state.thread = self.reading.session = event.thread_id[:MAX_NAME]
            self._state.calls = counters.RecentIds[bool]()  # each process numbers its items from the start
            self.reading.finished, self.reading.partial = False, True
        elif event.type == "item.started" and event.item is not None:
            self._begin(event.item)
        elif event.type == "item.completed" and event.item is not None:
            self._complete(event.item)
        elif event.type == "turn.completed":
            self.reading.finished, self.reading.failed = True, None
            self.reading.trouble = None
            self._charge((event.usage or _CodexUsage()).tokens())
        elif event.type == "error":
            counters.failed_call_in_words(self.reading, event.message)
        elif event.type == "turn.failed":
            self.reading.finished = True
            self.reading.failed = counters.words(event.error.message if event.error else None)
        else:
            return
        counters.recognised(self.reading)

    def _begin(self, item: _CodexItem) -> None:
        # a call counts when it begins, because the model may leave a command in the background, which is never completed
        if item.type not in _NOT_CALLS:
            self._state.calls.put(item.id, True)
            self._write(item)
            counters.turn(self.reading, item.tool if isinstance(item.tool, str) else item.type)

    def _complete(self, item: _CodexItem) -> None:
        if self._state.calls.get(item.id):
            self._state.calls.put(item.id, False)
            return
        if item.type != "error":
            self._write(item)
        if item.type == "agent_message":
            counters.message(self.reading)
        elif item.type not in _NOT_CALLS:
            counters.turn(self.reading, item.tool if isinstance(item.tool, str) else item.type)

    def _write(self, item: _CodexItem) -> None:
        self._state.written.grow(self.reading, self._model, item.text, item.command, item.query, item.arguments)

    def _charge(self, used: Tokens) -> None:
        if self._state.inherited is None:
            self._state.inherited = used
            return
        used = counters.minus(used, self._state.inherited)
        if used.input + used.output:
            self._state.written.withdraw(self.reading)
            self.reading.partial = self._resumed
            self._state.totals.restate(self.reading, self._state.thread, {self._model: used})


class _CodexInfo(msgspec.Struct):
    total_token_usage: _CodexUsage | None = None


class _CodexSettings(msgspec.Struct):
    service_tier: Any = None


class _CodexPayload(msgspec.Struct):
    type: str = ""
    role: str = ""
    model: str = ""
    name: Any = None
    call_id: str = ""
    info: _CodexInfo | None = None
    thread_token_usage: _CodexUsage | None = None
    thread_settings: _CodexSettings | None = None


class _CodexLine(msgspec.Struct):
    type: str = ""
    timestamp: Any = None
    payload: _CodexPayload | None = None


class CodexSession(SessionMeter[_CodexLine]):
    """Totals are those of the thread. `token_usage_record` is written with the reply, `token_count` after the tool call that
    follows it; both are repeated, and older versions write only the second."""

    wanted = lines_of_type(
        "response_item", "turn_context", "thread_settings_applied", "token_count", "token_usage_record", "task_complete",
        "turn_aborted",
    )  # fmt: skip
    decoder = msgspec.json.Decoder(_CodexLine)
    _model = ""
    _total = Tokens()

    def _take(self, event: _CodexLine) -> None:
        payload = event.payload
        if payload is None:
            return
        ours = self._in_time(event.timestamp)
        if event.type == "turn_context":
            self._model = payload.model[:MAX_NAME]
        elif payload.thread_settings is not None:
            self.reading.tier = counters.printable(payload.thread_settings.service_tier, MAX_NAME)
        elif event.type == "response_item":
            if ours:
                self._item(payload)
        else:
            self._count(payload, ours=ours)

    def _item(self, item: _CodexPayload) -> None:
        counters.recognised(self.reading)
        if item.type.endswith("_output") or item.role == "user":
            self._asked()
        elif item.role == "assistant":
            counters.message(self.reading)
        elif item.type.endswith("_call") and self._state.calls.first(item.call_id, True):
            counters.turn(self.reading, item.name if isinstance(item.name, str) else item.type)

    def _count(self, payload: _CodexPayload, *, ours: bool) -> None:
        told = payload.thread_token_usage or (payload.info.total_token_usage if payload.info is not None else None)
        if told is not None:
            total, before = told.tokens(), self._total
            self._total = total
            more = counters.minus(total, before)
            if ours and more.input + more.output:
                counters.add(self.reading.models, self._model, more)
        elif payload.type == "task_complete":
            self.reading.partial = False
        elif payload.type == "turn_aborted":
            self.reading.broken |= ours


class _CodexFiles(SessionFiles):
    program = "codex"
    meter = CodexSession
    variable = "CODEX_HOME"
    resume_words = frozenset({"resume"})

    def session_id(self, argv: Sequence[str]) -> str | None:
        words = arguments(argv, "codex") or []
        after = words[words.index("resume") + 1 :] if "resume" in words else []
        return next((word for word in after if re.fullmatch(r"[0-9a-f]{8}-[0-9a-f-]{27}", word)), None)

    def places(self, search: SessionSearch) -> list[SessionPlace]:
        root = search.directory(self.variable, ".codex") + "/sessions"
        # Codex names the days in its own time zone
        days = [search.since.astimezone(UTC) + timedelta(days=days) for days in (1, 0, -1)]
        rollout = re.compile(r"rollout-.*\.jsonl")
        found = [SessionPlace(root, (f"{day:%Y}", f"{day:%m}", f"{day:%d}", rollout)) for day in days]
        if search.session is not None:
            year, two = re.compile(r"\d{4}"), re.compile(r"\d\d")
            found.append(SessionPlace(root, (year, two, two, re.compile(rf"rollout-.*-{search.session}\.jsonl"))))
        return found

    def said(self, line: dict[str, Any]) -> tuple[Any, Any, Any]:
        meta = line.get("payload")
        if not isinstance(meta, dict):
            return None, None, None
        return meta.get("session_id") or meta.get("id"), meta.get("cwd"), meta.get("timestamp")


class Codex(AgentProgram):
    """`codex exec`, and what runs it: `npx @openai/codex exec`."""

    name = "codex"
    names_tools_like_calls = False
    session_files = _CodexFiles()

    def prints_events(self, words: Sequence[str]) -> bool:
        return not {"--json", "--experimental-json"}.isdisjoint(_exec(words))  # the second is the former name

    def new_meter(self, words: Sequence[str]) -> CodexMeter:
        return CodexMeter(model=_model(words), resumed="resume" in _exec(words))

    def speech(self, event: dict[str, Any]) -> Iterator[Speech]:
        """Yield what an event says to the user. The last message is the final answer."""
        match event:
            case {"type": "item.completed", "item": {"type": "agent_message" | "assistant_message", "text": str(text)}}:
                yield WholeText(text)
            case {"type": "item.started", "item": {"type": str(kind)} as item} if kind not in _NOT_CALLS:
                yield ToolCall(item.get("tool", kind), item.get("command", item.get("arguments")))
            case {"type": "turn.failed"}:
                yield AgentFailure(_failure(event.get("error")))


def _failure(error: Any) -> str:
    return counters.words(error.get("message") if isinstance(error, dict) else None)


def _exec(words: Sequence[str]) -> Sequence[str]:
    """Return the words after the subcommand `exec`; none for another subcommand."""
    at = next((at for at, word in enumerate(words) if word in {"exec", "e"}), len(words))
    return words[at + 1 :]


def _model(words: Sequence[str]) -> str:
    settings = [setting.partition("=") for setting in values(words, "-c", "--config")]
    configured = [value.strip().strip("\"'") for key, _, value in settings if key.strip() == "model"]
    asked = values(words, "-m", "--model") or configured
    return asked[-1] if asked else ""


PROGRAM = Codex()
