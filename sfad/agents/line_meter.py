"""What the meters of all programs share: the few lines that can matter are cut out of bytes,
decoded, and their state is saved."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from ..protocol.types import Tokens
from . import counters
from .counters import MAX_LINE, Reading
from .lenient import lenient, mended

# ---- From bytes to the few lines that a meter decodes
#
# Speed comes from not looking at lines. `bytes.find(b"\n{")` alone takes longer on text (0.17 s for
# 200 MB) than one regular expression for `"type": "one|of|these"` (0.10 s), which matches wherever
# it stands in a line, however the keys are ordered and spaced. Inside a string the quotes would be
# escaped, so text that quotes an event does not match.


BOM = b"\xef\xbb\xbf"
_OPENERS = b"{\xef"
"""How a line of JSON begins: with a brace, or the first byte of a byte order mark."""


@cache
def _lines_of_type(*types: str) -> re.Pattern[bytes]:
    """Return a pattern that finds where a JSON object of one of these types may be."""
    return re.compile(
        rb'"type"[ \t]*:[ \t]*"(?:' + b"|".join(re.escape(name.encode()) for name in types) + rb')"'
    )


class WantedLines:
    """Cuts a stream, given in pieces, into the lines that begin like a JSON object and contain the
    pattern."""

    def __init__(self, wanted: re.Pattern[bytes]) -> None:
        self.skipped = 0
        """Lines longer than `MAX_LINE` whose first `MAX_LINE` bytes contain the pattern. A program
        need not print the type first: Claude Code 2.1.330 prints it after the text of the
        result."""
        self._wanted = wanted
        self._begun = bytearray()
        self._dropping = False

    def of(self, data: bytes) -> Iterator[bytes]:
        """Yield the wanted lines that end in these bytes, without their newline. Exhaust it before
        the next call."""
        start = 0
        if self._begun or self._dropping:
            start = data.find(b"\n") + 1
            self._keep(data[: start - 1] if start else data)
            if not start:
                return
            yield from self._finish()
        end = data.rfind(b"\n") + 1
        yield from self._within(data, start, end)
        self._keep(data[end:])

    def dump(self) -> tuple[bytes, bool, int]:
        return bytes(self._begun), self._dropping, self.skipped

    def load(self, saved: tuple[bytes, bool, int]) -> None:
        begun, self._dropping, self.skipped = saved
        self._begun = bytearray(begun)

    def _within(self, data: bytes, start: int, end: int) -> Iterator[bytes]:
        while found := self._wanted.search(data, start, end):
            begin = data.rfind(b"\n", start, found.start()) + 1 or start
            start = data.find(b"\n", found.end()) + 1
            if data[begin] not in _OPENERS:
                continue
            if start - 1 - begin <= MAX_LINE:
                yield data[begin : start - 1]
            else:
                self.skipped += 1

    def _keep(self, part: bytes) -> None:
        """Add to the line that has not ended yet, unless it is already clear that it is not
        wanted."""
        if self._dropping or not part:
            return
        if len(self._begun) + len(part) <= MAX_LINE:
            self._begun += part
            self._dropping = self._begun[0] not in _OPENERS
        else:
            head = bytes(self._begun) + part[: MAX_LINE - len(self._begun)]
            self.skipped += head[0] in _OPENERS and self._wanted.search(head) is not None
            self._dropping = True
        if self._dropping:
            self._begun.clear()

    def _finish(self) -> Iterator[bytes]:
        line = bytes(self._begun)
        self._begun.clear()
        self._dropping = False
        if self._wanted.search(line):
            yield line


# ---- What the meters of all programs share: each decodes lines, and saves its state


E = TypeVar("E")
S = TypeVar("S", bound=msgspec.Struct)

STATE = 10
"""The version of what meters dump. Raise it when a field of `Reading`, or of a meter's state, is
added, removed or changes its meaning: older dumps are then ignored and the run's output is read
again."""


class _Dump(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    version: int
    kind: str
    reading: Reading
    lines: tuple[bytes, bool, int]
    state: bytes


_TO_BYTES = msgspec.msgpack.Encoder()
_FROM_BYTES = msgspec.msgpack.Decoder(_Dump)


@cache
def _decoder_of(event_type: type[Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(event_type)


class LineMeter(ABC, Generic[E, S]):
    """A meter of a program that prints one JSON object a line. A subclass sets the first three
    attributes."""

    types: tuple[str, ...]
    """The types of the lines that matter."""
    event_type: type[E]
    """What is decoded of such a line."""
    state_type: type[S]
    """What the meter keeps beside its reading, except what the command says."""

    def __init__(self) -> None:
        self.reading = Reading()
        self._state = self.state_type()
        # made here, where a run needs them: those of all programs take a fiftieth of a start
        event_type: Any = self.event_type
        self._decoder: msgspec.json.Decoder[E] = _decoder_of(event_type)
        self._lines = WantedLines(_lines_of_type(*self.types))

    def feed(self, data: bytes | memoryview) -> None:
        for line in self._lines.of(bytes(data)):
            event = self._decoded(line.removeprefix(BOM))
            if event is not None:
                self._take(event)
        self.reading.skipped_lines = self._lines.skipped

    def dump(self) -> bytes:
        state = _TO_BYTES.encode(self._state)
        return _TO_BYTES.encode(
            _Dump(STATE, type(self).__name__, self.reading, self._lines.dump(), state)
        )

    def load(self, saved: bytes) -> None:
        """Continue where the meter was that dumped this. Raises `ValueError`."""
        try:
            found = _FROM_BYTES.decode(saved)
            state = msgspec.msgpack.decode(found.state, type=self.state_type)
        except msgspec.DecodeError as error:
            raise ValueError(f"no dump of a meter: {error}") from error
        if (found.version, found.kind) != (STATE, type(self).__name__):
            raise ValueError(f"a dump of {found.kind}, version {found.version}")
        self.reading, self._state = found.reading, state
        self._lines.load(found.lines)

    @abstractmethod
    def _take(self, event: E) -> None:
        """Count what a line says."""

    def _decoded(self, line: bytes) -> E | None:
        """Return what a line says. A field of another type than is expected loses that field."""
        try:
            return self._decoder.decode(line)
        except msgspec.ValidationError:
            return self._salvaged(line)
        except RecursionError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError):
            return self._salvaged(mended(line))

    def _salvaged(self, line: bytes) -> E | None:
        try:
            found: E | None = lenient(self.event_type, line, None)
        except RecursionError:
            return None
        return found


class MessageCharge(msgspec.Struct, frozen=True, array_like=True):
    model: str
    used: Tokens


class SessionState(msgspec.Struct, array_like=True):
    messages: counters.RecentIds[MessageCharge] = msgspec.field(
        default_factory=counters.RecentIds[MessageCharge]
    )
    calls: counters.RecentIds[bool] = msgspec.field(default_factory=counters.RecentIds[bool])


class SessionMeter(LineMeter[E, SessionState]):
    state_type = SessionState

    def __init__(self, since: str) -> None:
        """`since`: the time from which on lines count, as the file writes it."""
        super().__init__()
        self._since = since

    def _in_time(self, timestamp: Any) -> bool:
        # a line without a time counts: too much rather than too little
        return not isinstance(timestamp, str) or timestamp >= self._since

    def _asked(self) -> None:
        self.reading.partial = True
        counters.recognised(self.reading)

    def _charge(self, message: str, model: str, used: Tokens) -> None:
        """Count a message, in the place of what was counted for it before."""
        known = self._state.messages.get(message)
        if known is None:
            counters.message(self.reading)
        else:
            self.reading.models[known.model] = counters.minus(
                self.reading.models[known.model], known.used
            )
        self._state.messages.put(
            message, MessageCharge(counters.add(self.reading.models, model, used), used)
        )


# ---- What faster and slower tiers of a provider multiply its prices by


Factors = Mapping[str, tuple[tuple[str, float], ...]]
"""By the word of a tier: what it multiplies all prices by, for models whose names have the pattern.
The first one counts."""

ANTHROPIC_FACTORS: Factors = {
    "fast": (("opus-4-[67]", 6.0), ("", 2.0)),
    "us": (("", 1.1),),
    "batch": (("", 0.5),),
}
"""https://platform.claude.com/docs/en/build-with-claude/fast-mode, and `inference_geo` and batches
of https://platform.claude.com/docs/en/about-claude/pricing. The tier `priority` has no list price:
it is agreed on by contract."""
_OPENAI_FAST = (
    (r"gpt-5\.5", 2.5),
    (r"gpt-5-mini", 1.8),
    (r"gpt-4\.1-nano", 2.0),
    (r"gpt-4o-2024-05-13|gpt-4\.1|\bo3\b", 1.75),
    (r"gpt-4o-mini", 5 / 3),
    (r"gpt-4o", 1.7),
    (r"\bo4-mini", 20 / 11),
    ("", 2.0),
)
OPENAI_FACTORS: Factors = dict.fromkeys(("priority", "fast"), _OPENAI_FAST) | {
    "flex": (("", 0.5),),
    # of older ones it is half of some kinds of tokens only
    "batch": ((r"gpt-[56]", 0.5),),
}
"""https://openai.com/api-fast-mode/ and https://developers.openai.com/api/docs/pricing, as
genai-prices has them (`tests/usage/test_tiers.py`)."""
GEMINI_FACTORS: Factors = {
    "priority": ((r"gemini-(3\.[78]-flash(?!-lite$)|4-argon)", 1.8), ("", 2.0)),
    "flex": (("", 0.5),),
}
"""https://ai.google.dev/gemini-api/docs/priority-inference: 1.75 to 2 times, and the models' prices
where these say it; flex-inference: half."""


def factor_of(factors: Factors, model: str, tiers: Iterable[str]) -> float:
    """Return what the tiers multiply the price of a model by."""
    found = 1.0
    for tier in tiers:
        found *= next(
            (factor for pattern, factor in factors.get(tier, ()) if re.search(pattern, model)), 1.0
        )
    return found


# ---- What an agent says to its user


class WholeText(Struct, frozen=True):
    """A whole part of a message to the user."""

    text: str


class TextDelta(Struct, frozen=True):
    """More of the part that is being written."""

    text: str


class TextBreak(Struct, frozen=True):
    """The next delta begins another part."""


class FinalText(Struct, frozen=True):
    """The final answer, which may have been printed as a part before."""

    text: str


class AgentFailure(Struct, frozen=True):
    """The agent says that it failed."""

    words: str


class ToolCall(Struct, frozen=True):
    """The agent calls a tool."""

    name: Any
    about: Any = None
    """The arguments: an object, or the command."""


Speech = WholeText | TextDelta | TextBreak | FinalText | AgentFailure | ToolCall
