"""What a call asks for, what a reply tells, and the interface of an API."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from math import prod
from typing import Any, NamedTuple

import msgspec

from ...meters.counters import printable
from ...meters.tiers import Factors, factor_of
from ...protocol.types import Tokens
from ...protocol.units import MOST_COUNTED
from ..sse import EventStream

MAX_REPLY = 16 << 20
"""Bytes of a reply that is one JSON document, which is read at its end. The usage of a larger one stays unknown."""
MAX_TOOL_USES = 256
"""Tool calls told of one reply. Models make a handful."""
MODEL_MAX = 128
"""Characters of a model's name: one that is longer has no price."""


class Paid(Enum):
    """What a request is, apart from a call of a model."""

    FREE = "free"
    UNGATED = "ungated"
    """It costs money that the gateway cannot count."""


@dataclass(frozen=True, slots=True)
class ModelCall:
    """What a request for an answer of a model says."""

    model: str
    max_output: int | None
    """Tokens that one answer may have; `None` if the request does not say."""
    fixed: bool = False
    """The request has no field for a lower maximum."""
    choices: int = 1
    """Answers that are asked for. Each may have `max_output`."""
    streams: bool = False
    caches: bool = False
    """Its input may be written to a cache, which costs more than to be read without one."""
    continues: bool = False
    """The provider keeps a part of its input, so the size of the request does not tell it."""
    refers: bool = False
    """It names files that the provider reads, whose size it does not tell."""
    others: tuple[str, ...] = ()
    """Models that the provider may ask for it."""
    background: bool = False
    """Its reply is generated whether or not the client reads it."""
    tiers: Mapping[str, str] = field(default_factory=dict)
    """What it asks for that is dearer, by the field that says so."""
    long_cache: bool = False
    """What it writes to a cache is kept for an hour, at twice the price of input."""
    fees_usd: float = 0.0
    """What the provider's tools may cost."""


class ToolUse(NamedTuple):
    """A call of a tool that the model asks for."""

    name: str
    digest: str
    """Of its arguments: equal calls have equal digests."""


class OpenToolUse:
    """A call of a tool whose arguments are still coming."""

    def __init__(self, name: Any) -> None:
        self.name = name
        self._digest = blake2b(digest_size=8)

    def add(self, arguments: Any) -> None:
        if isinstance(arguments, str):
            self._digest.update(arguments.encode(errors="replace"))

    def close(self) -> ToolUse:
        return ToolUse(printable(self.name, MODEL_MAX), self._digest.hexdigest())


def tool_use(name: Any, arguments: bytes) -> ToolUse:
    return ToolUse(printable(name, MODEL_MAX), blake2b(arguments, digest_size=8).hexdigest())


class ReplyReader(ABC):
    """Reads a reply while it passes: server-sent events, or one JSON document."""

    def __init__(self, *, streamed: bool) -> None:
        self.tokens: Tokens | None = None
        """What the provider says that was used, as far as it has come."""
        self.told = False
        """The provider has said its final figures."""
        self.tools: list[ToolUse] = []
        self.written = 0
        """Bytes of text, thinking and arguments that have come so far."""
        self.tiers: Mapping[str, str] = {}
        """What the reply says of its tier."""
        self.long_cached = 0
        """Tokens written to a cache for an hour."""
        self.fees_usd = 0.0
        """What the provider's tools have cost."""
        self.others: dict[str, Tokens] = {}
        """What other models have used that the provider asked meanwhile, by their names. It is not in `tokens`."""
        self.cut = False
        """It ended because its maximum output was reached."""
        self.background = False
        """It is generated whether or not the client reads it."""
        self._read = streamed
        self._events = EventStream() if streamed else None
        self._document: bytearray | None = bytearray()

    def feed(self, data: bytes) -> None:
        """Take a piece of the body, without its content encoding."""
        if self._events is not None:
            for event in self._events.feed(data):
                self._decoded(self.event, event)
        elif self._document is not None:
            self._document += data
            if len(self._document) > MAX_REPLY:
                self._document = None

    def end(self) -> None:
        """Take the end of the body."""
        if self._events is None and self._document is not None:
            self._read = self._decoded(self.document, bytes(self._document))

    @abstractmethod
    def event(self, data: bytes) -> None:
        """Take an event of a stream. May raise `msgspec.DecodeError`."""

    @abstractmethod
    def document(self, data: bytes) -> None:
        """Take a reply that is not a stream. May raise `msgspec.DecodeError`."""

    @property
    def unknown(self) -> bool:
        """Whether not even an estimate is possible, because what has come does not show all that was generated."""
        return not self.told and (self.background or not self._read)

    def use(self, tool: ToolUse) -> None:
        if len(self.tools) < MAX_TOOL_USES:
            self.tools.append(tool)

    def _decoded(self, take: Callable[[bytes], None], data: bytes) -> bool:
        """Return whether the data have the form that is expected. Others tell nothing; what is not told is estimated."""
        try:
            take(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        return True


class Api(ABC):
    """A provider's format."""

    name: str
    free: re.Pattern[str]
    """Paths of requests that cost nothing although they name a model."""
    ungated: re.Pattern[str]
    """Paths of requests that cost money, and are no calls of a model."""
    references: tuple[bytes, ...]
    """What a body has that names files by URL or id."""
    factors: Factors

    def path(self, path: str) -> str:
        """Return the path that the provider has for a program's path."""
        return path

    @abstractmethod
    def call(self, path: str, body: bytes) -> ModelCall | None:
        """Return what a request for an answer says, or `None` if the path is for something else.

        Raises `ValueError` if such a request cannot be read: then the provider could not read it either."""

    @abstractmethod
    def lowered(self, body: bytes, tokens: int) -> bytes:
        """Return the body with a maximum output of `tokens`, and with thinking that fits into it."""

    def completed(self, body: bytes) -> bytes:
        """Return the body with what the reply needs to tell its usage."""
        return body

    @abstractmethod
    def refusal(self, message: str, retry_after: int | None = None) -> bytes:
        """Return the body of HTTP 400 in the provider's format: programs then print the message and stop. With `retry_after`, in
        seconds, that of HTTP 429, at which they try again."""

    @abstractmethod
    def reply(self, *, streamed: bool) -> ReplyReader:
        """Return what reads the reply of a call."""

    def factor(self, model: str, asked: Mapping[str, str], told: Mapping[str, str]) -> float:
        """Return what the tiers that were asked for, or what the reply tells instead, multiply all prices of a model by. That a
        tier is cheaper counts only where the reply tells it, because an upstream may not have it."""
        only_asked = [tier for name, tier in asked.items() if name not in told]
        least = (max(1.0, factor_of(self.factors, model, [tier])) for tier in only_asked)
        return prod(least, start=factor_of(self.factors, model, told.values()))

    def refers(self, body: bytes) -> bool:
        return any(reference in body for reference in self.references)

    def paid(self, method: str, path: str, body: bytes) -> Paid:
        """Return whether a request that is not a model call costs money. A request that asks a model does, unless it is known not
        to: its path may be another spelling of a call's, which the server takes and the gateway does not know."""
        if method in {"GET", "HEAD", "OPTIONS", "DELETE"} or self.free.search(path):
            return Paid.FREE
        if self.ungated.search(path) or "/models/" in path or _asks_model(body):
            return Paid.UNGATED
        return Paid.FREE


_ASKING = frozenset({"model", "models", "messages", "input", "contents", "prompt"})
"""Fields of requests for an answer. With some servers the path names the model."""
_FORM = re.compile(rb"--|[\w.~%+*-]+=[^\s\"{}]*\Z")
"""How the fields of a form begin, or are as a whole."""


def _asks_model(body: bytes) -> bool:
    try:
        request = msgspec.json.decode(body or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # audio is sent in a form; in UTF-16, or with NaN, some servers read what the gateway cannot
        return b'name="model"' in body or _FORM.match(body) is None
    return isinstance(request, dict) and not _ASKING.isdisjoint(request)


_MOST_OUTPUT = (
    (re.compile(r"gpt-4o|gpt-4-turbo|gpt-3\.5"), 16_384),
    (re.compile(r"gpt-4\.1"), 32_768),
    (re.compile(r"gemini-(1|2\.0)"), 8_192),
    (re.compile(r"gemini"), 65_536),
    (re.compile(r"\bo[134]\b"), 100_000),
)
"""Tokens that one answer of a model may have at most, where a request does not say (the providers' tables of models). Providers
refuse a larger maximum."""


def most_output(model: str) -> int:
    return next((most for name, most in _MOST_OUTPUT if name.search(model)), 128_000)


def positive(value: Any) -> int | None:
    """Return a number of tokens as a request says it, or `None` where it says none."""
    return int(min(value, MOST_COUNTED)) if type(value) in {int, float} and value >= 1 else None


def answers(value: Any) -> int:
    """Return how many answers a request asks for. Raises `ValueError` for what some servers take as another number, such as "9"."""
    if value is not None and type(value) is not int:
        raise ValueError(f"'n', the number of answers, must be a whole number, not {str(value)[:40]!r}")
    return positive(value) or 1


def check_only_model(model: str, *others: Any) -> None:
    """Raise `ValueError` if a server may ask another model than the one that is decided about, as OpenRouter and LiteLLM do."""
    for other in others:
        if other and other != [model]:
            raise ValueError("it names more models than one, and the gateway decides about one: leave out 'models' and 'fallbacks'")


Fields = dict[str, msgspec.Raw]
"""A JSON object of which only what is changed is decoded: all else keeps each of its bytes."""


def fields(value: bytes | None) -> Fields:
    """Return the fields of a JSON object; none if it is something else."""
    try:
        return _FIELDS.decode(value or b"{}")
    except msgspec.DecodeError:
        return {}


def encoded(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


_FIELDS = msgspec.json.Decoder(Fields)
