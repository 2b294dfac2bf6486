"""Claude Code: `claude -p --output-format stream-json`, and its session files.

From recordings of 2.1.197 (tests/meters/streams/) and https://code.claude.com/docs/en/agent-sdk/cost-tracking: the events of one
message share its id and its usage, and their output tokens are a placeholder until the `result`. So these are estimated from the
text of the message until a `message_delta` or the `result` tells them. Calls that are not streamed, such as the one for a title,
are only in the `result`: without it the figures stay partial.

Of several results in one stream the latest is right: `total_cost_usd` and `modelUsage` are running totals of the process
(https://github.com/anthropics/claude-code/issues/83239). `usage` is less complete (a run stopped by its budget says 1000 input
tokens there, and 2200 in `modelUsage`), so it is used only where there is nothing else. A resumed session does not include its
past: each process counts its own usage.

Session files (tests/meters/sessions/, version 2.1.330) are CLAUDE_CONFIG_DIR/projects/DIRECTORY/SESSION.jsonl, and
SESSION/subagents/agent-*.jsonl beside it.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ..protocol.types import Tokens
from . import counters
from .line_meter import LineMeter, SessionMeter
from .lines import lines_of_type
from .program import ANY_NAME, AgentProgram, FileName, SessionFiles, SessionPlace, SessionSearch, first_id, values
from .reading import MAX_NAME
from .speech import AgentFailure, FinalText, Speech, TextBreak, TextDelta, ToolCall, WholeText

_CONTEXT = re.compile(r"\[[^\]]*\]$")
"""`modelUsage` calls a model with a large context `claude-opus-4-8[1m]`; messages and price lists omit the brackets."""
_SYNTHETIC = "<synthetic>"
"""The model of messages that Claude Code writes itself, to tell an error."""
_ABORTED_CALL = "aborted_streaming"
"""Why an interrupted agent ended: it was waiting for the model. If no piece of the answer had arrived, the totals omit that call,
although the provider bills it (seen with 2.1.330)."""


class _ClaudeCaches(msgspec.Struct):
    ephemeral_1h_input_tokens: Any = 0


class _ClaudeUsage(msgspec.Struct):
    input_tokens: Any = 0
    output_tokens: Any = 0
    cache_read_input_tokens: Any = 0
    cache_creation_input_tokens: Any = 0
    cache_creation: _ClaudeCaches | None = None


class _ClaudeModelUsage(msgspec.Struct, rename="camel"):
    input_tokens: Any = 0
    output_tokens: Any = 0
    cache_read_input_tokens: Any = 0
    cache_creation_input_tokens: Any = 0


def _tokens(usage: _ClaudeUsage | _ClaudeModelUsage | None) -> Tokens:
    if usage is None:
        return Tokens()
    read, written = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
    caches = usage.cache_creation if isinstance(usage, _ClaudeUsage) else None
    long = caches.ephemeral_1h_input_tokens if caches is not None else 0
    return counters.tokens(fresh=usage.input_tokens, read=read, written=written, long=long, output=usage.output_tokens)


class _ClaudeBlock(msgspec.Struct):
    type: str = ""
    id: str = ""
    name: str = ""
    text: Any = None
    thinking: Any = None
    input: msgspec.Raw = msgspec.Raw(b"")


class _ClaudeMessage(msgspec.Struct):
    id: str = ""
    model: str = ""
    stop_reason: Any = None
    usage: _ClaudeUsage | None = None
    content: list[_ClaudeBlock] | str = []


class _ClaudeDelta(msgspec.Struct):
    text: Any = None
    thinking: Any = None
    partial_json: Any = None


class _ClaudePartial(msgspec.Struct):
    """What `--include-partial-messages` adds: the start of a message, its pieces, and the delta that ends it, which has the true
    output tokens."""

    type: str = ""
    message: _ClaudeMessage | None = None
    delta: _ClaudeDelta | None = None
    usage: _ClaudeUsage | None = None


class _ClaudeEvent(msgspec.Struct):
    type: str = ""
    subtype: Any = None
    attempt: Any = None
    error_status: Any = None
    error: Any = None
    tasks: Any = None
    session_id: str = ""
    parent_tool_use_id: str | None = None
    message: _ClaudeMessage | None = None
    event: _ClaudePartial | None = None
    aborted: bool = False
    """This is what had arrived of an answer when the agent was interrupted."""
    is_error: bool = False
    terminal_reason: Any = None
    api_error_status: Any = None
    result: Any = None
    errors: Any = None
    total_cost_usd: Any = None
    usage: _ClaudeUsage | None = None
    model_usage: dict[str, _ClaudeModelUsage] | None = msgspec.field(default=None, name="modelUsage")


class _ClaudeCharge(msgspec.Struct, frozen=True, array_like=True):
    model: str
    used: Tokens
    results: int
    """How many results had been printed by then: a later result contains the message."""
    whole: int = 0
    """Bytes of the blocks that were printed complete."""
    pieces: int = 0
    """Bytes of the pieces of the same text that were printed before."""
    told: bool = False

    @property
    def output(self) -> int:
        return max(self.used.output, max(self.whole, self.pieces) // counters.BYTES_A_TOKEN)


class _ClaudeState(msgspec.Struct, array_like=True):
    messages: counters.RecentIds[_ClaudeCharge] = msgspec.field(default_factory=counters.RecentIds[_ClaudeCharge])
    calls: counters.RecentIds[bool] = msgspec.field(default_factory=counters.RecentIds[bool])
    speaking: counters.RecentIds[str] = msgspec.field(default_factory=counters.RecentIds[str])
    """The message that each agent of the process is writing."""
    totals: counters.Totals = msgspec.field(default_factory=counters.Totals)
    results: int = 0
    model: str = ""
    concluded: bool = False
    waits: bool = False
    """Commands are still running in the background. When they end, the agent continues and prints another result (seen with
    2.1.330)."""
    aborted: bool = False


class ClaudeMeter(LineMeter[_ClaudeEvent, _ClaudeState]):
    wanted = lines_of_type("system", "assistant", "message_start", "content_block_delta", "message_delta", "result")
    decoder = msgspec.json.Decoder(_ClaudeEvent)
    state_type = _ClaudeState

    def __init__(self, *, answers_more: bool = False) -> None:
        """`answers_more`: it reads messages from its stdin, and need not exit when it has answered one."""
        super().__init__()
        self._answers_more = answers_more

    def _take(self, event: _ClaudeEvent) -> None:
        self.reading.session = event.session_id[:MAX_NAME] or self.reading.session
        if event.type == "assistant" and event.message is not None:
            self._state.aborted = event.aborted
            self._say(event.message, event.parent_tool_use_id or "main")
        elif event.type == "stream_event" and event.event is not None:
            self._stream(event.event, event.parent_tool_use_id or "main")
        elif event.type == "result":
            self._conclude(event)
        elif event.type != "system":
            return
        elif event.subtype == "api_retry":
            counters.failed_call(self.reading, event.error_status, event.error, count=event.attempt)
        elif event.subtype == "background_tasks_changed":
            self._state.waits = bool(event.tasks)
            self._update_finished()
        counters.recognised(self.reading)

    def _say(self, message: _ClaudeMessage, speaker: str) -> None:
        """Count a part of a message; `speaker` is the main agent, or the tool call that started a subagent."""
        if message.model == _SYNTHETIC:
            return
        self._state.concluded = False
        self.reading.partial, self.reading.trouble = True, None
        self._update_finished()
        self._state.model = message.model[: 4 * MAX_NAME]
        self._state.speaking.put(speaker, message.id[: MAX_NAME + 1])  # `messages` has no longer id in any form
        blocks = [block for block in message.content if isinstance(block, _ClaudeBlock)]
        written = sum(counters.size(block.text, block.thinking, block.input) for block in blocks)
        self._charge(message, written)
        for block in blocks:
            if block.type == "tool_use" and self._state.calls.first(block.id, True):
                counters.turn(self.reading, block.name)

    def _charge(self, message: _ClaudeMessage, written: int) -> None:
        used = _tokens(message.usage)
        known = self._state.messages.get(message.id)
        if known is None:
            counters.message(self.reading)
            known = _ClaudeCharge(message.model, used, self._state.results, written)
        elif known.told:
            known = msgspec.structs.replace(known, used=msgspec.structs.replace(used, output=known.used.output))
        else:
            used = msgspec.structs.replace(used, output=max(used.output, known.used.output))
            known = msgspec.structs.replace(known, used=used, whole=known.whole + written)
        self._count(message.id, known)

    def _count(self, key: str, charge: _ClaudeCharge) -> None:
        """Replace what a message was counted as, unless a result has counted it for good."""
        before = self._state.messages.get(key)
        if charge.results != self._state.results:
            return
        if not charge.told:
            charge = msgspec.structs.replace(charge, used=msgspec.structs.replace(charge.used, output=charge.output))
        model = charge.model
        for sums in (self.reading.models, self.reading.uncovered):
            if before is not None and before.model in sums:
                sums[before.model] = counters.minus(sums[before.model], before.used)
            model = counters.add(sums, charge.model, charge.used)
        self._state.messages.put(key, msgspec.structs.replace(charge, model=model))

    def _stream(self, partial: _ClaudePartial, speaker: str) -> None:
        if partial.type == "message_start" and partial.message is not None:
            self._say(partial.message, speaker)
            return
        key = self._state.speaking.get(speaker)
        known = self._state.messages.get(key) if key else None
        if not key or not known or known.told:
            return
        if partial.type == "content_block_delta" and partial.delta is not None:
            delta = partial.delta
            more = counters.size(delta.text, delta.thinking, delta.partial_json)
            self._count(key, msgspec.structs.replace(known, pieces=known.pieces + more))
        elif partial.type == "message_delta" and partial.usage:
            used = msgspec.structs.replace(known.used, output=_tokens(partial.usage).output)
            self._count(key, msgspec.structs.replace(known, used=used, told=True))

    def _conclude(self, event: _ClaudeEvent) -> None:
        self.reading.failed = _failure(event.result, event.errors, event.subtype) if event.is_error else None
        if event.is_error and event.api_error_status is not None:
            counters.failed_call(self.reading, event.api_error_status, event.result)
        self._state.concluded = not self._answers_more
        self._update_finished()
        models = self._models(event)
        cost = counters.dollars(event.total_cost_usd)
        if models is not None:
            self._state.totals.restate(self.reading, event.session_id, models)
        if models is not None or cost is not None:
            self._state.results += 1
            self.reading.uncovered.clear()
        self.reading.partial = models is None or (event.terminal_reason == _ABORTED_CALL and not self._state.aborted)
        self._state.totals.restate_cost(self.reading, cost)

    def _update_finished(self) -> None:
        self.reading.finished = self._state.concluded and not self._state.waits

    def _models(self, event: _ClaudeEvent) -> dict[str, Tokens] | None:
        """Return the totals of the process by model, or `None` if the sum of its messages is the better guess."""
        models: dict[str, Tokens] = {}
        if event.model_usage:
            for name, usage in event.model_usage.items():
                counters.add(models, _CONTEXT.sub("", name), _tokens(usage))
            return models
        used = _tokens(event.usage)
        if not used.input + used.output:
            return None if self.reading.models else models
        counters.add(models, self._state.model, used)
        return models if counters.weight(models) > counters.weight(self.reading.models) else None


class _ClaudeLine(msgspec.Struct):
    type: str = ""
    timestamp: Any = None
    message: _ClaudeMessage | None = None
    total_cost: Any = msgspec.field(default=None, name="totalCostUSD")


_CONTINUES = {None, "tool_use", "pause_turn"}
"""Stop reasons after which the model is called again, perhaps before the file says so: it is written 100 ms late."""


def _tells_interruption(message: _ClaudeMessage | None) -> bool:
    blocks = message.content if message is not None else []
    texts = [block.text for block in blocks if isinstance(block, _ClaudeBlock)]
    return any(isinstance(text, str) and text.startswith("[Request interrupted by user") for text in texts)


class ClaudeSession(SessionMeter[_ClaudeLine]):
    """Lines of one message share its id and its usage. Before it exits, Claude Code writes a `cost-state` with the cost of the
    whole session, subagents included."""

    wanted = lines_of_type("assistant", "user", "cost-state")
    decoder = msgspec.json.Decoder(_ClaudeLine)
    _resumed = False
    """Lines before `since` were seen: totals of the session are not those of this run."""
    _unanswered = False
    """The model was asked, and no piece of an answer came: the totals omit that call (see `_ABORTED_CALL`)."""

    def _take(self, event: _ClaudeLine) -> None:
        if not self._in_time(event.timestamp):
            self._resumed = True
        elif event.type == "cost-state" and not self._resumed:
            self.reading.partial = self._unanswered
            self.reading.cost_usd = counters.dollars(event.total_cost)
        elif event.type == "assistant" and event.message is not None and event.message.model != _SYNTHETIC:
            self._say(event.message)
        elif event.type == "user":
            interrupted = _tells_interruption(event.message)
            self._unanswered = self._unanswered or not interrupted
            self.reading.broken |= interrupted  # it exits with 0 after Ctrl-C
            self._asked()

    def _say(self, message: _ClaudeMessage) -> None:
        counters.recognised(self.reading)
        self._unanswered = False
        self.reading.partial = message.stop_reason in _CONTINUES
        self.reading.cost_usd = None
        known = self._state.messages.get(message.id)
        used = _tokens(message.usage)
        if known is not None:
            used = msgspec.structs.replace(used, output=max(used.output, known.used.output))
        self._charge(message.id, message.model, used)
        for block in message.content:
            if isinstance(block, _ClaudeBlock) and block.type == "tool_use" and self._state.calls.first(block.id, True):
                counters.turn(self.reading, block.name)


class _ClaudeFiles(SessionFiles):
    program = "claude"
    meter = ClaudeSession
    variable = "CLAUDE_CONFIG_DIR"
    resume_words = frozenset({"--resume", "-r", "--continue", "-c"})

    def session_id(self, argv: Sequence[str]) -> str | None:
        resumed = () if "--fork-session" in argv else ("--resume", "-r")
        return first_id(argv, self.program, "--session-id", *resumed)

    def places(self, search: SessionSearch) -> list[SessionPlace]:
        root = search.directory(self.variable, ".claude") + "/projects"
        # Claude Code ends a longer path in a hash that only it can compute
        directory: FileName = re.sub(r"[^a-zA-Z0-9]", "-", search.cwd) if len(search.cwd) <= 200 else ANY_NAME
        if search.session is None:
            return [SessionPlace(root, (directory, re.compile(r"[0-9a-f-]{36}\.jsonl")))]
        subagent = re.compile(r"agent-.*\.jsonl")
        return [
            SessionPlace(root, (directory, f"{search.session}.jsonl")),
            SessionPlace(root, (directory, search.session, "subagents", subagent)),
        ]

    def said(self, line: dict[str, Any]) -> tuple[Any, Any, Any]:
        return line.get("sessionId"), line.get("cwd"), line.get("timestamp")


class Claude(AgentProgram):
    """`claude`, and what runs it: `npx @anthropic-ai/claude-code`, `node …/claude-code/cli.js`."""

    name = "claude"
    tells_cost = True
    session_files = _ClaudeFiles()

    def prints_events(self, words: Sequence[str]) -> bool:
        return "stream-json" in values(words, "--output-format")

    def new_meter(self, words: Sequence[str]) -> ClaudeMeter:
        return ClaudeMeter(answers_more="stream-json" in values(words, "--input-format"))

    def speech(self, event: dict[str, Any]) -> Iterator[Speech]:
        """Yield what an event says to the user. Subagents speak to the main agent, so only their tool calls are of interest."""
        main = event.get("parent_tool_use_id") is None
        match event:
            case {"type": "assistant", "message": {"content": [*blocks]} as message} if message.get("model") != _SYNTHETIC:
                for block in blocks:
                    yield from _speech_of(block, main=main)
            case {"type": "stream_event", "event": {"type": "content_block_start"}} if main:
                yield TextBreak()
            case {"type": "stream_event", "event": {"delta": {"type": "text_delta", "text": str(text)}}} if main:
                yield TextDelta(text)
            case {"type": "result", "is_error": True}:
                yield AgentFailure(_failure(event.get("result"), event.get("errors"), event.get("subtype")))
            case {"type": "result", "result": str(text)}:
                yield FinalText(text)


def _speech_of(block: Any, *, main: bool) -> Iterator[Speech]:
    match block:
        case {"type": "text", "text": str(text)} if main:
            yield WholeText(text)
        case {"type": "tool_use", "name": name}:
            yield ToolCall(name, block.get("input"))


def _failure(result: Any, errors: Any, subtype: Any) -> str:
    said = f"it ended with {subtype}" if isinstance(subtype, str) else None
    return counters.words(result, "; ".join(map(str, errors)) if isinstance(errors, list) else None, said)


PROGRAM = Claude()
