"""opencode: `opencode run --format json`.

From its source, because there is no recording: packages/opencode/src/cli/cmd/run.ts (`emit`) for the events, and `getUsage` in
packages/opencode/src/session/session.ts for what the numbers mean: `input` excludes tokens read from or written to a cache,
`output` excludes reasoning, and an unknown price makes a cost of 0. opencode reports each step as it ends, so limits work while it
runs; the output of a step that has not ended is estimated from its text and its calls. It does not name the model
(https://github.com/anomalyco/opencode/issues/40544), and tells nothing of what its subagents use.

It keeps its sessions in an SQLite database. Reading that would disturb its writer, and its events tell the same after each step.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from . import counters
from .line_meter import LineMeter
from .lines import lines_of_type
from .program import AgentProgram, values
from .speech import AgentFailure, Speech, ToolCall, WholeText


class _OpencodeCache(msgspec.Struct):
    read: Any = 0
    write: Any = 0


class _OpencodeTokens(msgspec.Struct):
    input: Any = 0
    output: Any = 0
    reasoning: Any = 0
    cache: _OpencodeCache | None = None


class _OpencodeCall(msgspec.Struct):
    input: msgspec.Raw = msgspec.Raw(b"")


class _OpencodePart(msgspec.Struct):
    id: str = ""
    tool: Any = None
    text: Any = None
    state: _OpencodeCall | None = None
    tokens: _OpencodeTokens | None = None
    cost: Any = None


class _OpencodeDetails(msgspec.Struct):
    message: Any = None
    status: Any = msgspec.field(default=None, name="statusCode")


class _OpencodeError(msgspec.Struct):
    name: Any = None
    data: _OpencodeDetails | None = None


class _OpencodeEvent(msgspec.Struct):
    type: str = ""
    part: _OpencodePart | None = None
    error: _OpencodeError | None = None


_PARTS = frozenset({"step_start", "text", "reasoning", "tool_use", "step_finish"})


class _OpencodeState(msgspec.Struct, array_like=True):
    parts: counters.RecentIds[bool] = msgspec.field(default_factory=counters.RecentIds[bool])
    written: counters.Estimate = msgspec.field(default_factory=counters.Estimate)


class OpencodeMeter(LineMeter[_OpencodeEvent, _OpencodeState]):
    wanted = lines_of_type("step_start", "step_finish", "tool_use", "text", "reasoning", "error", "done")
    decoder = msgspec.json.Decoder(_OpencodeEvent)
    state_type = _OpencodeState

    def __init__(self, *, model: str = "") -> None:
        """`model`: as the command names it, `provider/model`."""
        super().__init__()
        self._model = model

    def _take(self, event: _OpencodeEvent) -> None:
        if event.type in _PARTS and event.part is not None:
            self._count(event.type, event.part)
        elif event.type == "error":
            error = event.error or _OpencodeError()
            # no later step withdraws the error: opencode exits with 1, whatever follows
            data = error.data or _OpencodeDetails()
            self.reading.failed = counters.words(data.message, error.name)
            if data.status is not None or error.name == "APIError":
                counters.failed_call(self.reading, data.status, data.message)
        elif event.type == "done":
            self.reading.finished = True
        else:
            return
        counters.recognised(self.reading)

    def _count(self, kind: str, part: _OpencodePart) -> None:
        if not self._state.parts.first(part.id, True):
            return  # a part is printed again whenever it is updated, as when its session is compacted
        self.reading.partial = True  # it tells nothing of its subagents' calls and of the one for a title
        if kind == "step_finish":
            counters.message(self.reading)
            self._charge(part)
            return
        if kind == "tool_use":
            counters.turn(self.reading, part.tool)
        if kind != "step_start":
            self._state.written.grow(self.reading, self._model, part.text, part.state.input if part.state else None)

    def _charge(self, part: _OpencodePart) -> None:
        self._state.written.withdraw(self.reading)
        told = part.tokens or _OpencodeTokens()
        cache = told.cache or _OpencodeCache()
        used = counters.tokens(fresh=told.input, read=cache.read, written=cache.write, output=told.output, reasoning=told.reasoning)
        counters.add(self.reading.models, self._model, used)
        counters.spend(self.reading, counters.dollars(part.cost) or None)


class Opencode(AgentProgram):
    """`opencode run`, and what runs it: `npx opencode-ai run`."""

    name = "opencode"
    tells_cost = True

    def prints_events(self, words: Sequence[str]) -> bool:
        return "run" in words and "json" in values(words, "--format")

    def new_meter(self, words: Sequence[str]) -> OpencodeMeter:
        asked = values(words, "-m", "--model")
        return OpencodeMeter(model=asked[-1] if asked else "")

    def speech(self, event: dict[str, Any]) -> Iterator[Speech]:
        """Yield what an event says to the user. The last text is the final answer."""
        match event:
            case {"type": "text", "part": {"text": str(text)}}:
                yield WholeText(text)
            case {"type": "tool_use", "part": dict(part)}:
                state = part.get("state")
                yield ToolCall(part.get("tool"), state.get("input") if isinstance(state, dict) else None)
            case {"type": "error", "error": dict(error)}:
                data = error.get("data")
                yield AgentFailure(counters.words(data.get("message") if isinstance(data, dict) else None, error.get("name")))


PROGRAM = Opencode()
