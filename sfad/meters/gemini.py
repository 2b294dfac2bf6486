"""Gemini CLI: `gemini --output-format stream-json`.

From a recording (tests/meters/streams/) and from its source, packages/core/src/output/ and packages/cli/src/nonInteractiveCli.ts.
Usage is told only in the result, so that a hard stop needs reservations. There is one result for a process. Until then its output
is estimated from what it says and calls, and its input is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ..protocol.types import Tokens
from . import counters as tally
from .argv import arguments, values
from .base import MAX_NAME, Break, Delta, Failed, Meter, Speech, Text, Tool
from .lines import LineMeter, lines_of_type

_WANTED = lines_of_type("init", "message", "tool_use", "result", "error")


class _Stats(msgspec.Struct):
    total_tokens: Any = 0
    input_tokens: Any = 0
    output_tokens: Any = 0
    cached: Any = 0

    def tokens(self) -> Tokens:
        """What the total has beyond input and output is the model's thoughts, which are billed as output."""
        output = max(tally.number(self.output_tokens), tally.number(self.total_tokens) - tally.number(self.input_tokens))
        return tally.tokens_in_all(total=self.input_tokens, read=self.cached, output=output)


class _AllStats(_Stats):
    models: dict[str, _Stats] | None = None


class _Error(msgspec.Struct):
    type: Any = None
    message: Any = None


class _Event(msgspec.Struct):
    type: str = ""
    model: str = ""
    session_id: str = ""
    role: str = ""
    delta: bool = False
    content: Any = None
    tool_name: Any = None
    tool_id: str = ""
    parameters: msgspec.Raw = msgspec.Raw(b"")
    status: str = ""
    severity: Any = None
    message: Any = None
    error: _Error | None = None
    stats: _AllStats | None = None


_DECODER = msgspec.json.Decoder(_Event)


class _State(msgspec.Struct, array_like=True):
    model: str = ""
    speaking: bool = False
    calls: tally.Recent[bool] = msgspec.field(default_factory=tally.Recent[bool])
    written: tally.Estimate = msgspec.field(default_factory=tally.Estimate)


class GeminiMeter(LineMeter[_Event, _State]):
    """One attempt of Gemini CLI."""

    def __init__(self) -> None:
        super().__init__(_WANTED, _DECODER, _State())

    def _take(self, event: _Event) -> None:
        if event.type == "message":
            self._say(event)
        elif event.type in {"init", "tool_use", "result"}:
            self._state.speaking = False
            if event.type == "init":
                self._state.model = event.model[: 4 * MAX_NAME]
                self.reading.session = event.session_id[:MAX_NAME]
                self.reading.finished, self.reading.partial = False, True
            elif event.type == "tool_use":
                self._call(event)
            else:
                self._conclude(event)
        elif event.type == "error":
            if event.severity != "warning":
                tally.failed_call_in_words(self.reading, event.message)
        else:
            return
        tally.recognised(self.reading)

    def _say(self, event: _Event) -> None:
        """Deltas that follow each other are one message."""
        said = event.role == "assistant"
        if said and not (self._state.speaking and event.delta):
            tally.message(self.reading)
        self._state.speaking = said and event.delta
        if said:
            self._write(event.content)

    def _call(self, event: _Event) -> None:
        if not self._state.calls.get(event.tool_id):
            self._state.calls.put(event.tool_id, True)
            tally.turn(self.reading, event.tool_name)
            self._write(event.parameters)

    def _write(self, text: Any) -> None:
        """The model has answered: this is a part of it."""
        self.reading.partial, self.reading.trouble = True, None
        self._state.written.grow(self.reading, self._state.model, text)

    def _conclude(self, event: _Event) -> None:
        error = event.error or _Error()
        said = f"it ended with {event.status}" if event.status else None
        self.reading.failed = None if event.status == "success" else tally.words(error.message, error.type, said)
        self.reading.finished = True
        if event.stats is None:
            return
        self._state.written.settle(self.reading)
        self.reading.partial = False
        for name, stats in (event.stats.models or {self._state.model: event.stats}).items():
            used = stats.tokens()
            if used.input + used.output:
                tally.add(self.reading.models, name, used)


class Gemini:
    """`gemini`, and what runs it: `npx @google/gemini-cli`."""

    name = "gemini"
    tells_cost = False
    event_types = None

    def prints_events(self, argv: Sequence[str]) -> bool:
        """`--output-format stream-json`, or `-o`."""
        return "stream-json" in values(arguments(argv, "gemini", "gemini-cli") or [], "--output-format", "-o")

    def meter(self, argv: Sequence[str], saved: bytes | None = None) -> Meter:  # noqa: ARG002 - the stream says everything
        """A new meter for one attempt of this command, or one that goes on where another was. Raises `ValueError`."""
        return GeminiMeter().loaded(saved)

    def speech(self, event: dict[str, Any]) -> Iterator[Speech]:
        """What an event says to the user. A message comes in deltas, and ends when anything else begins."""
        match event:
            case {"type": "message", "role": "assistant", "delta": True, "content": str(text)}:
                yield Delta(text)
                return
            case {"type": "message", "role": "assistant", "content": str(text)}:
                yield Text(text)
            case {"type": "tool_use"}:
                yield Tool(event.get("tool_name"), event.get("parameters"))
            case {"type": "result", "status": str(status)} if status != "success":
                yield Failed(_failure(event.get("error"), status))
        yield Break()


def _failure(error: Any, status: str) -> str:
    told = error if isinstance(error, dict) else {}
    return tally.words(told.get("message"), told.get("type"), f"it ended with {status}")
