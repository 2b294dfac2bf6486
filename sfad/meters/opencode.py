"""opencode: `opencode run --format json`.

From its source, as there is no recording: packages/opencode/src/cli/cmd/run.ts (`emit`) for the events, and `getUsage` in
packages/opencode/src/session/session.ts for what the numbers mean: `input` is without what was read from or written to a
cache, `output` without reasoning, and a price that is not known makes a cost of 0. It reports each step as it ends, so that
limits work while it runs; the output of a step that has not ended is estimated from its text and its calls. It does not say which
model it was (https://github.com/anomalyco/opencode/issues/40544), and nothing of what its subagents use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from . import counters as tally
from .argv import arguments, values
from .base import Failed, Meter, Speech, Text, Tool
from .lines import LineMeter, lines_of_type

_WANTED = lines_of_type("step_start", "step_finish", "tool_use", "text", "reasoning", "error", "done")


class _Cache(msgspec.Struct):
    read: Any = 0
    write: Any = 0


class _Tokens(msgspec.Struct):
    input: Any = 0
    output: Any = 0
    reasoning: Any = 0
    cache: _Cache | None = None


class _CallState(msgspec.Struct):
    input: msgspec.Raw = msgspec.Raw(b"")


class _Part(msgspec.Struct):
    id: str = ""
    tool: Any = None
    text: Any = None
    state: _CallState | None = None
    tokens: _Tokens | None = None
    cost: Any = None


class _Details(msgspec.Struct):
    message: Any = None
    status: Any = msgspec.field(default=None, name="statusCode")


class _Error(msgspec.Struct):
    name: Any = None
    data: _Details | None = None


class _Event(msgspec.Struct):
    type: str = ""
    part: _Part | None = None
    error: _Error | None = None


_PARTS = frozenset({"step_start", "text", "reasoning", "tool_use", "step_finish"})

_DECODER = msgspec.json.Decoder(_Event)


class _State(msgspec.Struct, array_like=True):
    parts: tally.Recent[bool] = msgspec.field(default_factory=tally.Recent[bool])
    written: tally.Estimate = msgspec.field(default_factory=tally.Estimate)


class OpencodeMeter(LineMeter[_Event, _State]):
    """One attempt of opencode."""

    def __init__(self, *, model: str = "") -> None:
        """`model`: as the command names it, `provider/model`."""
        super().__init__(_WANTED, _DECODER, _State())
        self._model = model

    def _take(self, event: _Event) -> None:
        if event.type in _PARTS and event.part is not None:
            self._count(event.type, event.part)
        elif event.type == "error":
            error = event.error or _Error()
            # no later step takes it back: opencode exits with 1 then, whatever follows
            data = error.data or _Details()
            self.reading.failed = tally.words(data.message, error.name)
            if data.status is not None or error.name == "APIError":
                tally.failed_call(self.reading, data.status, data.message)
        elif event.type == "done":
            self.reading.finished = True
        else:
            return
        tally.recognised(self.reading)

    def _count(self, kind: str, part: _Part) -> None:
        """A part is printed again whenever it is updated, as when its session is compacted."""
        if self._state.parts.get(part.id):
            return
        self._state.parts.put(part.id, True)
        self.reading.partial = kind != "step_finish"
        if kind == "step_finish":
            tally.message(self.reading)
            self._charge(part)
            return
        if kind == "tool_use":
            tally.turn(self.reading, part.tool)
        if kind != "step_start":
            self.reading.trouble = None
            self._state.written.grow(self.reading, self._model, part.text, part.state.input if part.state else None)

    def _charge(self, part: _Part) -> None:
        self._state.written.settle(self.reading)
        used = part.tokens or _Tokens()
        cache = used.cache or _Cache()
        summed = tally.tokens(fresh=used.input, read=cache.read, written=cache.write, output=used.output, reasoning=used.reasoning)
        tally.add(self.reading.models, self._model, summed)
        tally.spend(self.reading, tally.dollars(part.cost) or None)


class Opencode:
    """`opencode run`, and what runs it: `npx opencode-ai run`."""

    name = "opencode"
    tells_cost = True
    event_types = None

    def prints_events(self, argv: Sequence[str]) -> bool:
        """`run … --format json`."""
        words = _words(argv)
        return "run" in words and "json" in values(words, "--format")

    def meter(self, argv: Sequence[str], saved: bytes | None = None) -> Meter:
        """A new meter for one attempt of this command, or one that goes on where another was. Raises `ValueError`."""
        asked = values(_words(argv), "-m", "--model")
        return OpencodeMeter(model=asked[-1] if asked else "").loaded(saved)

    def speech(self, event: dict[str, Any]) -> Iterator[Speech]:
        """What an event says to the user. The last text is the final answer."""
        match event:
            case {"type": "text", "part": {"text": str(text)}}:
                yield Text(text)
            case {"type": "tool_use", "part": dict(part)}:
                state = part.get("state")
                yield Tool(part.get("tool"), state.get("input") if isinstance(state, dict) else None)
            case {"type": "error", "error": dict(error)}:
                data = error.get("data")
                yield Failed(tally.words(data.get("message") if isinstance(data, dict) else None, error.get("name")))


def _words(argv: Sequence[str]) -> list[str]:
    return arguments(argv, "opencode", "opencode-ai") or []
