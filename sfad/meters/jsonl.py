"""Anybody's agent: lines of JSON in the form that docs/meters.md describes, among whatever else it prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from . import counters as tally
from .base import Failed, Final, Meter, Speech, Tool
from .lines import LineMeter, lines_of_type

_WANTED = lines_of_type("usage", "turn", "result")


class _Event(msgspec.Struct):
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


_DECODER = msgspec.json.Decoder(_Event)


class _State(msgspec.Struct, array_like=True):
    """Nothing: each line says all that there is to it."""


class JsonlMeter(LineMeter[_Event, _State]):
    """One attempt of an agent that prints the generic form."""

    def __init__(self) -> None:
        super().__init__(_WANTED, _DECODER, _State())

    def _take(self, event: _Event) -> None:
        if event.type == "usage":
            self._charge(event)
        elif event.type == "turn":
            tally.turn(self.reading, event.tool)
        elif event.type == "result":
            self.reading.finished = True
            self.reading.failed = tally.words(event.message) if event.failed else None

    def _charge(self, event: _Event) -> None:
        """Each number is an increment; one that was never given stays unknown, as nobody says that the agent counts it."""
        reading, cost = self.reading, tally.dollars(event.cost_usd)
        if event.input_tokens is not None or event.output_tokens is not None:
            read, written = event.cached_tokens, event.cache_write_tokens
            used = tally.tokens_in_all(total=event.input_tokens, read=read, written=written, output=event.output_tokens)
            model = tally.add(reading.models, event.model if isinstance(event.model, str) else "", used)
            if cost is None:
                tally.add(reading.uncovered, model, used)
        tally.spend(reading, cost)
        if event.turns is not None:
            reading.turns = tally.total(reading.turns, event.turns)
        if event.messages is not None:
            reading.messages = tally.total(reading.messages, event.messages)


class Jsonl:
    """No program in particular: it is only ever asked for by name."""

    name = "jsonl"
    tells_cost = False
    event_types = frozenset({"usage", "turn", "result"})

    def prints_events(self, argv: Sequence[str]) -> bool:  # noqa: ARG002 - no command says that it does
        """Never: nothing in a command tells."""
        return False

    def meter(self, argv: Sequence[str], saved: bytes | None = None) -> Meter:  # noqa: ARG002 - the stream says everything
        """A new meter for one attempt of this command, or one that goes on where another was. Raises `ValueError`."""
        return JsonlMeter().loaded(saved)

    def speech(self, event: dict[str, Any]) -> Iterator[Speech]:
        """What an event says to the user; what the agent prints beside its events is text."""
        match event:
            case {"type": "turn", "tool": tool}:
                yield Tool(tool)
            case {"type": "result", "failed": True}:
                yield Failed(tally.words(event.get("message")))
            case {"type": "result", "text": str(text)}:
                yield Final(text)
