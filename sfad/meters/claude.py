"""Claude Code: `claude -p --output-format stream-json`.

From recordings of 2.1.197 (tests/meters/streams/), and from https://code.claude.com/docs/en/agent-sdk/cost-tracking: events of
one message share its id and its usage; the output tokens in them are a placeholder until the `result`. So they are estimated
from what the message says, until a `message_delta` or the `result` tells them. Calls that are not streamed, as those for a
title, are only in the `result`: without it the figures stay partial.

Of several results in one stream, the latest is right: `total_cost_usd` and `modelUsage` are running totals of the process, as
its developers say (https://github.com/anthropics/claude-code/issues/83239). `usage` is not as complete (a run that was
stopped by its budget says 1000 input tokens there, and 2200 in `modelUsage`), and is used only where there is nothing else.
A resumed session does not bring its past along: each process counts its own use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ..protocol.types import Tokens
from . import counters as tally
from .argv import arguments, values
from .base import MAX_NAME, Break, Delta, Failed, Final, Meter, Speech, Text, Tool
from .lines import LineMeter, lines_of_type

_WANTED = lines_of_type("system", "assistant", "message_start", "content_block_delta", "message_delta", "result")
_CONTEXT = re.compile(r"\[[^\]]*\]$")
"""`modelUsage` calls a model with a large context `claude-opus-4-8[1m]`; messages and price lists do not."""
_SYNTHETIC = "<synthetic>"
"""The model of messages that Claude Code wrote itself, to tell an error."""


class _Usage(msgspec.Struct):
    input_tokens: Any = 0
    output_tokens: Any = 0
    cache_read_input_tokens: Any = 0
    cache_creation_input_tokens: Any = 0


class _ModelUsage(msgspec.Struct, rename="camel"):
    input_tokens: Any = 0
    output_tokens: Any = 0
    cache_read_input_tokens: Any = 0
    cache_creation_input_tokens: Any = 0


def _tokens(usage: _Usage | _ModelUsage | None) -> Tokens:
    if usage is None:
        return Tokens()
    read, written = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
    return tally.tokens(fresh=usage.input_tokens, read=read, written=written, output=usage.output_tokens)


class _Block(msgspec.Struct):
    type: str = ""
    id: str = ""
    name: str = ""
    text: Any = None
    thinking: Any = None
    input: msgspec.Raw = msgspec.Raw(b"")


class _Message(msgspec.Struct):
    id: str = ""
    model: str = ""
    usage: _Usage | None = None
    content: list[_Block] | str = []


class _Delta(msgspec.Struct):
    text: Any = None
    thinking: Any = None
    partial_json: Any = None


class _Partial(msgspec.Struct):
    """What `--include-partial-messages` adds: a message's beginning, its pieces, and the delta that ends it, which has the true
    output."""

    type: str = ""
    message: _Message | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None


class _Event(msgspec.Struct):
    type: str = ""
    subtype: Any = None
    attempt: Any = None
    error_status: Any = None
    error: Any = None
    tasks: Any = None
    session_id: str = ""
    parent_tool_use_id: str | None = None
    message: _Message | None = None
    event: _Partial | None = None
    is_error: bool = False
    api_error_status: Any = None
    result: Any = None
    errors: Any = None
    total_cost_usd: Any = None
    usage: _Usage | None = None
    model_usage: dict[str, _ModelUsage] | None = msgspec.field(default=None, name="modelUsage")


_DECODER = msgspec.json.Decoder(_Event)


class _Charge(msgspec.Struct, frozen=True, array_like=True):
    """What a message has been counted as."""

    model: str
    used: Tokens
    results: int
    """How many results had been printed by then: a later one contains it."""
    whole: int = 0
    """Bytes of the blocks that were printed whole."""
    pieces: int = 0
    """Bytes of the pieces that were printed before; of the same text."""
    told: bool = False
    """The output is no estimate."""

    @property
    def output(self) -> int:
        """What it is estimated to be."""
        return max(self.used.output, max(self.whole, self.pieces) // tally.BYTES_A_TOKEN)


class _State(msgspec.Struct, array_like=True):
    messages: tally.Recent[_Charge] = msgspec.field(default_factory=tally.Recent[_Charge])
    calls: tally.Recent[bool] = msgspec.field(default_factory=tally.Recent[bool])
    speaking: tally.Recent[str] = msgspec.field(default_factory=tally.Recent[str])
    """Which message each agent of the process is writing."""
    totals: tally.Totals = msgspec.field(default_factory=tally.Totals)
    results: int = 0
    model: str = ""
    concluded: bool = False
    waits: bool = False
    """Commands go on in the background; when they end it begins another leg, with a result of its own (seen with 2.1.330)."""


class ClaudeMeter(LineMeter[_Event, _State]):
    """One attempt of Claude Code."""

    def __init__(self, *, answers_more: bool = False) -> None:
        """`answers_more`: it reads messages from its stdin, and need not exit when it has answered one."""
        super().__init__(_WANTED, _DECODER, _State())
        self._answers_more = answers_more

    def _take(self, event: _Event) -> None:
        self.reading.session = event.session_id[:MAX_NAME] or self.reading.session
        if event.type == "assistant" and event.message is not None:
            self._say(event.message, event.parent_tool_use_id or "main")
        elif event.type == "stream_event" and event.event is not None:
            self._stream(event.event, event.parent_tool_use_id or "main")
        elif event.type == "result":
            self._conclude(event)
        elif event.type != "system":
            return
        elif event.subtype == "api_retry":
            tally.failed_call(self.reading, event.error_status, event.error, count=event.attempt)
        elif event.subtype == "background_tasks_changed":
            self._state.waits = bool(event.tasks)
            self._settle()
        tally.recognised(self.reading)

    def _say(self, message: _Message, speaker: str) -> None:
        """Counts a part of a message; `speaker` is the main agent, or the tool call that started a subagent."""
        if message.model == _SYNTHETIC:
            return
        self._state.concluded = False
        self.reading.partial, self.reading.trouble = True, None
        self._settle()
        self._state.model = message.model[: 4 * MAX_NAME]
        self._state.speaking.put(speaker, message.id[: MAX_NAME + 1])  # one that is longer is in `messages` in no form
        blocks = [block for block in message.content if isinstance(block, _Block)]
        written = sum(tally.size(block.text, block.thinking, block.input) for block in blocks)
        self._charge(message, written)
        for block in blocks:
            if block.type == "tool_use" and not self._state.calls.get(block.id):
                self._state.calls.put(block.id, True)
                tally.turn(self.reading, block.name)

    def _charge(self, message: _Message, written: int) -> None:
        used = _tokens(message.usage)
        known = self._state.messages.get(message.id)
        if known is None:
            tally.message(self.reading)
            known = _Charge(message.model, used, self._state.results, written)
        elif known.told:
            known = msgspec.structs.replace(known, used=msgspec.structs.replace(used, output=known.used.output))
        else:
            used = msgspec.structs.replace(used, output=max(used.output, known.used.output))
            known = msgspec.structs.replace(known, used=used, whole=known.whole + written)
        self._count(message.id, known)

    def _count(self, key: str, charge: _Charge) -> None:
        """Puts what is now known of a message in the place of what was known before. A result has counted it for good."""
        before = self._state.messages.get(key)
        if charge.results != self._state.results:
            return
        if not charge.told:
            charge = msgspec.structs.replace(charge, used=msgspec.structs.replace(charge.used, output=charge.output))
        model = charge.model
        for sums in (self.reading.models, self.reading.uncovered):
            if before is not None and before.model in sums:
                sums[before.model] = tally.minus(sums[before.model], before.used)
            model = tally.add(sums, charge.model, charge.used)
        self._state.messages.put(key, msgspec.structs.replace(charge, model=model))

    def _stream(self, partial: _Partial, speaker: str) -> None:
        if partial.type == "message_start" and partial.message is not None:
            self._say(partial.message, speaker)
            return
        key = self._state.speaking.get(speaker)
        known = self._state.messages.get(key) if key else None
        if not key or not known or known.told:
            return
        if partial.type == "content_block_delta" and partial.delta is not None:
            delta = partial.delta
            more = tally.size(delta.text, delta.thinking, delta.partial_json)
            self._count(key, msgspec.structs.replace(known, pieces=known.pieces + more))
        elif partial.type == "message_delta" and partial.usage:
            used = msgspec.structs.replace(known.used, output=_tokens(partial.usage).output)
            self._count(key, msgspec.structs.replace(known, used=used, told=True))

    def _conclude(self, event: _Event) -> None:
        self.reading.failed = _failure(event.result, event.errors, event.subtype) if event.is_error else None
        if event.is_error and event.api_error_status is not None:
            tally.failed_call(self.reading, event.api_error_status, event.result)
        self._state.concluded = not self._answers_more
        self._settle()
        models = self._models(event)
        cost = tally.dollars(event.total_cost_usd)
        if models is not None:
            self._state.totals.restate(self.reading, event.session_id, models)
        if models is not None or cost is not None:
            self._state.results += 1
            self.reading.uncovered.clear()
        self.reading.partial = models is None
        self._state.totals.restate_cost(self.reading, cost)

    def _settle(self) -> None:
        self.reading.finished = self._state.concluded and not self._state.waits

    def _models(self, event: _Event) -> dict[str, Tokens] | None:
        """What the process has used in all, by model; `None` if the sum of its messages is the better guess."""
        models: dict[str, Tokens] = {}
        if event.model_usage:
            for name, usage in event.model_usage.items():
                tally.add(models, _CONTEXT.sub("", name), _tokens(usage))
            return models
        used = _tokens(event.usage)
        if not used.input + used.output:
            return None if self.reading.models else models
        tally.add(models, self._state.model, used)
        return models if tally.weight(models) > tally.weight(self.reading.models) else None


class Claude:
    """`claude`, and what runs it: `npx @anthropic-ai/claude-code`, `node …/claude-code/cli.js`."""

    name = "claude"
    tells_cost = True
    event_types = None

    def prints_events(self, argv: Sequence[str]) -> bool:
        """`--output-format stream-json`."""
        return "stream-json" in values(_words(argv), "--output-format")

    def meter(self, argv: Sequence[str], saved: bytes | None = None) -> Meter:
        """A new meter for one attempt of this command, or one that goes on where another was. Raises `ValueError`."""
        return ClaudeMeter(answers_more="stream-json" in values(_words(argv), "--input-format")).loaded(saved)

    def speech(self, event: dict[str, Any]) -> Iterator[Speech]:
        """What an event says to the user. Subagents speak to the main agent, and only their tool calls are of interest."""
        main = event.get("parent_tool_use_id") is None
        match event:
            case {"type": "assistant", "message": {"content": [*blocks]} as message} if message.get("model") != _SYNTHETIC:
                for block in blocks:
                    yield from _speech_of(block, main=main)
            case {"type": "stream_event", "event": {"type": "content_block_start"}} if main:
                yield Break()
            case {"type": "stream_event", "event": {"delta": {"type": "text_delta", "text": str(text)}}} if main:
                yield Delta(text)
            case {"type": "result", "is_error": True}:
                yield Failed(_failure(event.get("result"), event.get("errors"), event.get("subtype")))
            case {"type": "result", "result": str(text)}:
                yield Final(text)


def _speech_of(block: Any, *, main: bool) -> Iterator[Speech]:
    match block:
        case {"type": "text", "text": str(text)} if main:
            yield Text(text)
        case {"type": "tool_use", "name": name}:
            yield Tool(name, block.get("input"))


def _failure(result: Any, errors: Any, subtype: Any) -> str:
    """The words of a result that is an error."""
    said = f"it ended with {subtype}" if isinstance(subtype, str) else None
    return tally.words(result, "; ".join(map(str, errors)) if isinstance(errors, list) else None, said)


def _words(argv: Sequence[str]) -> list[str]:
    return arguments(argv, "claude", "claude-code") or []
