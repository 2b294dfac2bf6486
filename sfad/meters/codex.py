"""Codex: `codex exec --json`.

From recordings (tests/meters/streams/) and from its source, codex-rs/exec/src/exec_events.rs and
event_processor_with_jsonl_output.rs. Usage is told only when a turn is completed, so that a hard stop needs reservations; a turn
that failed tells none. Until then its output is estimated from its items, and its input is unknown.

That usage is the total of the *thread*, not of the turn (`usage_from_last_total`; https://github.com/openai/codex/issues/17539).
So of several in one stream the latest is right. And `codex exec resume` begins with what the thread used before: one short
answer in an old thread was seen to report 22 million tokens (https://github.com/gitmoot/gitmoot/issues/661). How much of that
is this run's, nothing in the stream tells: it stays unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ..protocol.types import Tokens
from . import counters as tally
from .argv import arguments, values
from .base import MAX_NAME, Failed, Meter, Speech, Text, Tool
from .lines import LineMeter, lines_of_type

_WANTED = lines_of_type("thread.started", "item.started", "item.completed", "turn.completed", "turn.failed", "error")

_NOT_CALLS = frozenset({"", "agent_message", "assistant_message", "reasoning", "plan", "todo_list", "error"})
"""Items that are no tool calls. Whatever a later version adds is taken for one: too much rather than too little."""


class _Usage(msgspec.Struct):
    input_tokens: Any = 0
    cached_input_tokens: Any = 0
    cache_write_input_tokens: Any = 0
    output_tokens: Any = 0
    """Those of reasoning are among them."""


class _Item(msgspec.Struct):
    id: str = ""
    type: str = ""
    tool: Any = None
    text: Any = None
    command: Any = None
    query: Any = None
    arguments: msgspec.Raw = msgspec.Raw(b"")


class _Error(msgspec.Struct):
    message: Any = None


class _Event(msgspec.Struct):
    type: str = ""
    thread_id: str = ""
    item: _Item | None = None
    usage: _Usage | None = None
    error: _Error | None = None
    message: Any = None


_DECODER = msgspec.json.Decoder(_Event)


class _State(msgspec.Struct, array_like=True):
    inherited: Tokens | None
    """What the thread used before; not known yet."""
    thread: str = ""
    totals: tally.Totals = msgspec.field(default_factory=tally.Totals)
    calls: tally.Recent[bool] = msgspec.field(default_factory=tally.Recent[bool])
    """Calls that have begun, by the item's id, and whether they still go on."""
    written: tally.Estimate = msgspec.field(default_factory=tally.Estimate)


class CodexMeter(LineMeter[_Event, _State]):
    """One attempt of Codex."""

    def __init__(self, *, model: str = "", resumed: bool = False) -> None:
        """`model`: the stream does not name it. `resumed`: its totals begin with what others used."""
        super().__init__(_WANTED, _DECODER, _State(inherited=None if resumed else Tokens()))
        self._model = tally.printable(model, MAX_NAME)
        self._resumed = resumed

    def _take(self, event: _Event) -> None:
        if event.type == "thread.started":
            self._state.thread = self.reading.session = event.thread_id[:MAX_NAME]
            self._state.calls = tally.Recent[bool]()  # ids begin anew in each process
            self.reading.finished, self.reading.partial = False, True
        elif event.type == "item.started" and event.item is not None:
            self._begin(event.item)
        elif event.type == "item.completed" and event.item is not None:
            self._complete(event.item)
        elif event.type == "turn.completed":
            self.reading.finished, self.reading.failed = True, None
            self.reading.trouble = None
            self._charge(event.usage or _Usage())
        elif event.type == "error":
            tally.failed_call_in_words(self.reading, event.message)
        elif event.type == "turn.failed":
            self.reading.finished = True
            self.reading.failed = tally.words(event.error.message if event.error else None)
        else:
            return
        tally.recognised(self.reading)

    def _begin(self, item: _Item) -> None:
        """A command that goes on in the background is never completed, and the model decides whether it does: it counts when
        it begins."""
        if item.type not in _NOT_CALLS:
            self._state.calls.put(item.id, True)
            self._write(item)
            tally.turn(self.reading, item.tool if isinstance(item.tool, str) else item.type)

    def _complete(self, item: _Item) -> None:
        if self._state.calls.get(item.id):
            self._state.calls.put(item.id, False)
            return
        if item.type != "error":
            self._write(item)
        if item.type == "agent_message":
            tally.message(self.reading)
        elif item.type not in _NOT_CALLS:
            tally.turn(self.reading, item.tool if isinstance(item.tool, str) else item.type)

    def _write(self, item: _Item) -> None:
        """The model has answered: this is what it wrote."""
        self.reading.partial, self.reading.trouble = True, None
        self._state.written.grow(self.reading, self._model, item.text, item.command, item.query, item.arguments)

    def _charge(self, usage: _Usage) -> None:
        read, written = usage.cached_input_tokens, usage.cache_write_input_tokens
        used = tally.tokens_in_all(total=usage.input_tokens, read=read, written=written, output=usage.output_tokens)
        if self._state.inherited is None:
            self._state.inherited = used
            return
        used = tally.minus(used, self._state.inherited)
        if used.input + used.output:
            self._state.written.settle(self.reading)
            self.reading.partial = self._resumed
            self._state.totals.restate(self.reading, self._state.thread, {self._model: used})


class Codex:
    """`codex exec`, and what runs it: `npx @openai/codex exec`."""

    name = "codex"
    tells_cost = False
    event_types = None

    def prints_events(self, argv: Sequence[str]) -> bool:
        """`exec … --json`, which was `--experimental-json` once."""
        words = _exec(argv)
        return "--json" in words or "--experimental-json" in words

    def meter(self, argv: Sequence[str], saved: bytes | None = None) -> Meter:
        """A new meter for one attempt of this command, or one that goes on where another was. Raises `ValueError`."""
        return CodexMeter(model=_model(argv), resumed="resume" in _exec(argv)).loaded(saved)

    def speech(self, event: dict[str, Any]) -> Iterator[Speech]:
        """What an event says to the user. The last message is the final answer."""
        match event:
            case {"type": "item.completed", "item": {"type": "agent_message" | "assistant_message", "text": str(text)}}:
                yield Text(text)
            case {"type": "item.started", "item": {"type": str(kind)} as item} if kind not in _NOT_CALLS:
                yield Tool(item.get("tool", kind), item.get("command", item.get("arguments")))
            case {"type": "turn.failed"}:
                yield Failed(_failure(event.get("error")))


def _failure(error: Any) -> str:
    return tally.words(error.get("message") if isinstance(error, dict) else None)


def _exec(argv: Sequence[str]) -> list[str]:
    """The words after the subcommand; none if it is another one."""
    words = arguments(argv, "codex") or []
    at = next((at for at, word in enumerate(words) if word in {"exec", "e"}), len(words))
    return words[at + 1 :]


def _model(argv: Sequence[str]) -> str:
    """What the command asks for; `""` if that is left to the configuration file."""
    words = arguments(argv, "codex") or []
    settings = [setting.partition("=") for setting in values(words, "-c", "--config")]
    configured = [value.strip().strip("\"'") for key, _, value in settings if key.strip() == "model"]
    asked = values(words, "-m", "--model") or configured
    return asked[-1] if asked else ""
