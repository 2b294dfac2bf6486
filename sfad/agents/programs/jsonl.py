"""Any agent: lines of JSON in the form that docs/metering.md describes, among whatever else it
prints."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ...protocol.known import ANY_PROGRAM
from .. import counters
from ..line_meter import AgentFailure, FinalText, LineMeter, Speech, ToolCall
from ..program import AgentProgram


class _JsonlEvent(msgspec.Struct):
    type: str = ""
    model: Any = None
    input_tokens: Any = None
    output_tokens: Any = None
    cached_tokens: Any = None
    cache_write_tokens: Any = None
    cost_usd: Any = None
    turns: Any = None
    messages: Any = None
    tool: Any = None
    failed: bool = False
    message: Any = None


class _JsonlState(msgspec.Struct, array_like=True):
    """Empty: each line is complete."""


class JsonlMeter(LineMeter[_JsonlEvent, _JsonlState]):
    types = ("usage", "turn", "result")
    event_type = _JsonlEvent
    state_type = _JsonlState

    def _take(self, event: _JsonlEvent) -> None:
        if event.type == "usage":
            self._charge(event)
        elif event.type == "turn":
            counters.turn(self.reading, event.tool)
        elif event.type == "result":
            self.reading.finished = True
            self.reading.failed = counters.words(event.message) if event.failed else None

    def _charge(self, event: _JsonlEvent) -> None:
        """Add a line's increments. A number that the agent never gives stays unknown, because it
        may not count it."""
        reading, cost = self.reading, counters.dollars(event.cost_usd)
        if event.input_tokens is not None or event.output_tokens is not None:
            read, written = event.cached_tokens, event.cache_write_tokens
            used = counters.tokens_in_all(
                total=event.input_tokens, read=read, written=written, output=event.output_tokens
            )
            model = counters.add(
                reading.models, event.model if isinstance(event.model, str) else "", used
            )
            if cost is None:
                counters.add(reading.uncovered, model, used)
                counters.request(reading, model, used, max(1, counters.number(event.messages)))
        counters.spend(reading, cost)
        if event.turns is not None:
            reading.turns = counters.total(reading.turns, event.turns)
        if event.messages is not None:
            reading.messages = counters.total(reading.messages, event.messages)


class Jsonl(AgentProgram):
    """No particular program: this meter is only chosen by its name."""

    name = ANY_PROGRAM
    event_types = frozenset({"usage", "turn", "result"})

    def new_meter(self, words: Sequence[str]) -> JsonlMeter:  # noqa: ARG002 - the stream tells everything
        return JsonlMeter()

    def speech(self, event: dict[str, Any]) -> Iterator[Speech]:
        """Yield what an event says to the user; what the agent prints beside its events is text."""
        match event:
            case {"type": "turn", "tool": tool}:
                yield ToolCall(tool)
            case {"type": "result", "failed": True}:
                yield AgentFailure(counters.words(event.get("message")))
            case {"type": "result", "text": str(text)}:
                yield FinalText(text)


PROGRAM = Jsonl()
