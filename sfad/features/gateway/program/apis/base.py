"""What a call asks for, what a reply tells, and the interface of an API."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from math import prod
from typing import Any, NamedTuple, get_args

import msgspec

from .....agents.counters import printable
from .....agents.line_meter import Factors, factor_of
from .....protocol.texts.units import MOST_COUNTED
from .....protocol.types import Modality, Tokens
from .holding import IMAGE_TOKENS, Holding
from .usage import Said

# ---- Server-sent events, piece by piece
# (https://html.spec.whatwg.org/multipage/server-sent-events.html)


MAX_EVENT = 4 << 20
"""Bytes of one event without its files. A longer one is skipped: the events that tell usage and the
whole reply have some hundred kilobytes."""
_LONG = 1 << 20
"""Bytes after which files are cut out of an event or a document. An image has many megabytes, and
the usage may be behind it."""
_FILE = re.compile(rb"(?<![A-Za-z0-9+/=_-])[A-Za-z0-9+/=_-]{4096,}")
"""A part of a file in base64. No other token of JSON is so long without a quote or a blank."""
_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\r|\n")
"""In JSON none of them occurs unescaped."""
_BLANK_LINES = re.compile(rb"(?:\r\n|\r|\n){3,}")
"""The same as one. Each line takes half a microsecond, and a compressed piece of the stream may
hold a million."""


class EventStream:
    """Splits a stream into the data of its events. The name of an event is not needed: the data of
    each API say it too."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[bytes] = []
        self._kept = 0
        """Bytes of these."""
        self._size = 0
        """Bytes of the event so far."""
        self._after_cr = False
        self._cut_at = _LONG

    @property
    def held(self) -> int:
        """Bytes that are kept of the event that is not whole."""
        return len(self._line) + self._kept

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the data of each event that the piece completes."""
        if not piece:
            return
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
        self._after_cr = piece.endswith(b"\r")
        *ends, rest = _LINE_END.split(_BLANK_LINES.sub(b"\n\n", piece))
        for end in ends:
            self._add(end)
            yield from self._end_line()
        self._add(rest)

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size <= MAX_EVENT:
            self._line += part
        elif part and not self._line:
            self._line += part[:1]  # a line that is skipped must not look empty
        if self._size > self._cut_at:
            self._size -= cut_files(self._line)
            self._cut_at = self._size + _LONG

    def _end_line(self) -> Iterator[bytes]:
        line = bytes(self._line)
        self._line.clear()
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
            self._kept += len(line)
        elif not line:
            if self._data and self._size <= MAX_EVENT:
                yield b"\n".join(self._data)
            self._data.clear()
            self._size, self._kept, self._cut_at = 0, 0, _LONG


def cut_files(data: bytearray) -> int:
    """Cut files in base64 out of a part of JSON, which stays valid. Return their bytes."""
    before = len(data)
    data[:] = _FILE.sub(b"", data)
    return before - len(data)


# ---- Calls, replies, and the interface of an API


MAX_REPLY = 8 << 20
"""Bytes of a reply that is one JSON document, which is read at its end. The usage of a larger one
stays unknown."""
MAX_TOOL_USES = 256
"""Tool calls told of one reply. Models make a handful."""
MODEL_MAX = 128
"""Characters of a model's name: one that is longer has no price."""


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
    tokens: int = field(default=0, compare=False)
    """Of its text and images, an estimate."""
    most_tokens: int = field(default=0, compare=False)
    """The same with a token for each byte."""
    media: Mapping[Modality, int] = field(default_factory=dict)
    """Tokens of its images, audio and video, an estimate. Its images are in `tokens`, too."""
    most_media: Mapping[Modality, int] = field(default_factory=dict)
    """Tokens that its audio and video, and files that it names, have at most."""
    text_only: bool = False
    """It says that it wants text only."""
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


_STREAM, _DOCUMENT = b":deir", b"{["
"""How they begin: a comment, or the fields data, event, id and retry; an object or an array."""


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
        self.said: Said | None = None
        """The same, with what is unsure about it."""
        self.model = ""
        """The model that it says has answered."""
        self._served: Any = None
        self.failed = ""
        """The error that it tells instead of an answer, or after a part of one."""
        self.media: dict[Modality, int] = {}
        """Tokens of what has come that is not text: an estimate."""
        self.begun = False
        """A part of the answer has come, also if it is none that can be measured."""
        self.fees_usd = 0.0
        """What the provider's tools have cost."""
        self.unsure_fees_usd = 0.0
        """The part of it that may be less."""
        self.others: dict[str, Tokens] = {}
        """What other models have used that the provider asked meanwhile, by their names. It is not
        in `tokens`."""
        self.cut = False
        """It ended because its maximum output was reached."""
        self.background = False
        """It is generated whether or not the client reads it."""
        self._read = streamed
        self._head: bytes | None = b""
        """What came before the first byte that tells a stream from a document; `None` after it."""
        self._events: EventStream | None = None
        self._document: bytearray | None = None
        self._cut_at = _LONG

    def feed(self, data: bytes) -> None:
        """Take a piece of the body, without its content encoding."""
        if self._head is not None:
            self._head += data
            data = self._head.removeprefix(_BOM)
            if not data.strip() or _BOM.startswith(data):
                self._head = self._head[: len(_BOM)]  # of blanks, a few are as good as all
                return
            self._head = None
            self._begin(data)
        if self._events is not None:
            for event in self._events.feed(data):
                self._take_event(event)
        elif self._document is not None:
            self._document += data
            if len(self._document) > self._cut_at:
                cut_files(self._document)
                self._cut_at = len(self._document) + _LONG
            if len(self._document) > MAX_REPLY:
                self._document = None

    def _begin(self, data: bytes) -> None:
        """Tell a stream from a document by its content. Servers that cannot stream answer in one
        piece, Gemini streams one array if it is not asked for events, and some servers give a
        stream another type."""
        first = data.lstrip()[:1]
        if first in _STREAM + _DOCUMENT:
            self._read = first in _STREAM
        self._events = EventStream() if self._read else None
        self._document = None if self._read else bytearray()

    def abandon(self) -> None:
        """Free what is kept of a reply of which no more is read."""
        self._head = self._events = self._document = None

    def end(self) -> None:
        """Take the end of the body."""
        if self._document is not None:
            self._read = self._decoded(self.document, bytes(self._document))
        for event in self._events.feed(b"\n\n") if self._events is not None else ():
            self._take_event(event)  # some servers leave out the last blank line

    @property
    def held(self) -> int:
        """Bytes of the reply that are kept until it or an event is whole, twice: the whole is a
        copy of the parts."""
        return 2 * (self._events.held if self._events is not None else len(self._document or b""))

    @abstractmethod
    def event(self, data: bytes) -> None:
        """Take an event of a stream. May raise `msgspec.DecodeError`."""

    @abstractmethod
    def document(self, data: bytes) -> None:
        """Take a reply that is not a stream. May raise `msgspec.DecodeError`."""

    @property
    def unknown(self) -> bool:
        """Whether not even an estimate is possible, because what has come does not show all that
        was generated."""
        return not self.told and (self.background or not self._read)

    def take_usage(self, said: Said) -> None:
        """Take what the provider says that was used by now."""
        self.said, self.tokens = said, said.tokens

    def serve(self, model: Any) -> None:
        """Take the model that has answered."""
        if model != self._served:  # each event of a stream repeats it
            self._served = model
            self.model = printable(model, MODEL_MAX) or self.model

    def fail(self, error: Any) -> None:
        """Take an error, which is an object or a text in each API."""
        if not error:
            return
        told = error if isinstance(error, dict) else {}
        words_ = [told.get("type") or told.get("status") or told.get("code"), told.get("message")]
        said = ": ".join(each for word in words_ if (each := printable(word, MODEL_MAX)))
        self.failed = said or printable(error, MODEL_MAX) or "an error without words"

    def shown(self, mode: Modality, tokens: int) -> None:
        """Count an estimate of what has come that is not text."""
        self.media[mode] = self.media.get(mode, 0) + tokens

    def use(self, tool: ToolUse) -> None:
        if len(self.tools) < MAX_TOOL_USES:
            self.tools.append(tool)

    def _take_event(self, data: bytes) -> None:
        """Take the data of an event, or of several: some servers leave out the blank lines."""
        if not self._decoded(self.event, data) and b"\n" in data:
            for line in data.split(b"\n"):
                self._decoded(self.event, line)

    def _decoded(self, take: Callable[[bytes], None], data: bytes) -> bool:
        """Return whether the data have the form that is expected. Others tell nothing; what is not
        told is estimated."""
        try:
            take(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        return True


class Api(ABC):
    """A provider's format."""

    name: str
    calls: re.Pattern[str]
    """Paths of requests for an answer of a model."""
    free: re.Pattern[str]
    """Whole paths of requests that cost nothing, apart from those whose method only reads or
    deletes."""
    factors: Factors

    def at(self, host: str) -> "Api":
        """Return the format as a server has it."""
        del host
        return self

    def path(self, path: str) -> str:
        """Return the path that the provider has for a program's path."""
        return path

    def call(self, path: str, body: bytes) -> ModelCall | None:
        """Return what a request for an answer says, or `None` if the path is for something else.

        Raises `ValueError` and `RecursionError` if such a request cannot be read, or if a provider
        may read another value in it."""
        found = self.calls.search(path)
        return self.asked(found, body) if found is not None else None

    @abstractmethod
    def asked(self, path: re.Match[str], body: bytes) -> ModelCall:
        """Return what a request for an answer says. Raises as `call`."""

    @abstractmethod
    def lowered(self, body: bytes, tokens: int) -> bytes:
        """Return the body with a maximum output of `tokens`, and with thinking that fits into
        it."""

    @abstractmethod
    def concluded(self, body: bytes, sentence: str) -> bytes:
        """Return the body with a sentence of the user at its end."""

    def completed(self, body: bytes) -> bytes:
        """Return the body with what the reply needs to tell its usage."""
        return body

    @abstractmethod
    def refusal(self, message: str, retry_after: int | None = None, status: int = 400) -> bytes:
        """Return the body of an error in the provider's format. At 400 programs print the message
        and stop. With `retry_after`, in seconds, it is that of 429, at which they try again."""

    @abstractmethod
    def reply(self, *, streamed: bool) -> ReplyReader:
        """Return what reads the reply of a call."""

    def factor(
        self, model: str, asked: Mapping[str, str], told: Mapping[str, str], url: str = ""
    ) -> float:
        """Return what the tiers that were asked for, or what the reply tells instead, multiply all
        prices of a model by. That a tier is cheaper counts only where the reply tells it, because
        an upstream may not have it, and if `url` is that of a provider whose price it is: `flex` of
        Groq costs no less (https://console.groq.com/docs/flex-processing)."""
        if not asked and not told:
            return 1.0
        only_asked = [tier for name, tier in asked.items() if name not in told]
        most = (max(1.0, factor_of(self.factors, model, [tier])) for tier in only_asked)
        is_told = factor_of(self.factors, model, told.values())
        if url and _HAS_TIERS.match(url) is None:
            is_told = max(1.0, is_told)
        return prod(most, start=is_told)

    def least_factor(self, model: str, asked: Mapping[str, str], told: Mapping[str, str]) -> float:
        """Return what `factor` is at least: a dearer tier that was asked for is not always what a
        call has got."""
        if not asked and not told:
            return 1.0
        only_asked = [tier for name, tier in asked.items() if name not in told]
        least = (min(1.0, factor_of(self.factors, model, [tier])) for tier in only_asked)
        return prod(least, start=factor_of(self.factors, model, told.values()))

    def is_free(self, method: str, path: str) -> bool:
        """Return whether a request that is not a model call costs nothing. One that is not known
        may cost money."""
        return method in _CHANGES_NOTHING or self.free.fullmatch(path) is not None


_HAS_TIERS = re.compile(
    r"https://([\w-]+\.)*(anthropic\.com|openai\.com|azure\.com|googleapis\.com)(?![\w.-])"
)
"""Addresses of providers whose tiers the factors are of."""
_CHANGES_NOTHING = {"GET", "HEAD", "OPTIONS", "DELETE"}
ANY_PREFIX = r"(?:/[A-Za-z0-9._-]+)*"
"""Before the path of a free request: the version, a project."""


_MOST_OUTPUT = (
    (re.compile(r"gpt-4o|gpt-4-turbo|gpt-3\.5"), 16_384),
    (re.compile(r"gpt-4\.1"), 32_768),
    (re.compile(r"gemini-(1|2\.0)"), 8_192),
    (re.compile(r"gemini"), 65_536),
    (re.compile(r"\bo[134]\b"), 100_000),
)
"""Tokens that one answer of a model may have at most, where a request does not say (the providers'
tables of models). Providers refuse a larger maximum."""


def most_output(model: str) -> int:
    return next((most for name, most in _MOST_OUTPUT if name.search(model)), 128_000)


IMAGE_OUTPUT = 1300
"""Tokens of an image that a model makes (https://ai.google.dev/gemini-api/docs/image-generation):
1290 of Gemini 2.5, 1120 to 2000 of Gemini 3."""
_PCM_BYTES, _SPOKEN = 48_000, 25
"""Bytes and tokens of a second of speech: 24 kHz and 16 bits; OpenAI's has 20 tokens, Gemini's
25."""


def pcm_tokens(data: Any) -> int:
    """Return an estimate of the tokens of speech, which is streamed as PCM in base64."""
    return len(data) * 3 * _SPOKEN // (4 * _PCM_BYTES) if isinstance(data, str) else 0


def positive(value: Any) -> int | None:
    """Return a number of tokens as a request says it, or `None` where it says none."""
    return int(min(value, MOST_COUNTED)) if type(value) in {int, float} and value >= 1 else None


Fields = dict[str, msgspec.Raw]
"""A JSON object of which only what is changed is decoded: all else keeps each of its bytes."""


def fields(value: bytes | None) -> Fields:
    """Return the fields of a JSON object; none if it is something else."""
    try:
        return _FIELDS.decode(value or b"{}")
    except msgspec.DecodeError:
        return {}


MAX_FIELDS = 1000
"""Fields of one JSON object that are looked at. The APIs have some tens."""
_BLANKS = re.compile(rb"[ \t\r\n]*")


def fields_once(document: bytes) -> Fields:
    """Return the fields of a JSON object. Raises `ValueError` if it has another form, or names a
    field twice or with an escape: of two values, the provider may take the other one."""
    found = _FIELDS.decode(document)
    if len(found) > MAX_FIELDS:
        raise ValueError(f"an object in it has {len(found)} fields; the most is {MAX_FIELDS}")
    tokens, sign = list[bytes](), b"{"
    for name, value in found.items():
        tokens += sign, b'"%s"' % name.encode(), b":", bytes(value)
        sign = b","
    at = 0
    for token in [*tokens, b"}"] if found else (b"{", b"}"):
        blanks = _BLANKS.match(document, at)
        assert blanks is not None
        if not document.startswith(token, blanks.end()):
            raise ValueError(f"a field before byte {at} is there twice, or its name is escaped")
        at = blanks.end() + len(token)
    return found


class RequestFields:
    """The fields of a request. Raises `ValueError` for a value of another type than the API's: some
    providers convert it."""

    def __init__(self, document: bytes) -> None:
        self.fields = fields_once(document)

    def raw(self, name: str) -> msgspec.Raw | None:
        """Return a value as it is written; `None` if it is not there, or null."""
        value = self.fields.get(name)
        return None if value is None or bytes(value) == b"null" else value

    def count(self, name: str) -> int | None:
        """Return a number, or `None` if it is below one."""
        value = self._value(name)
        if value is None:
            return None
        if type(value) not in {int, float} or value != value // 1:
            raise self._odd(name, "a whole number")
        return positive(value)

    def flag(self, name: str) -> bool:
        value = self._value(name)
        if value is not None and type(value) is not bool:
            raise self._odd(name, "true or false")
        return value is True

    def word(self, name: str) -> str | None:
        value = self._value(name)
        if value is not None and type(value) is not str:
            raise self._odd(name, "a text")
        return value

    def words(self, *names: str) -> dict[str, str]:
        """Return those of some texts that are there."""
        return {name: word for name in names if (word := self.word(name)) is not None}

    def model(self, in_path: str | None = None) -> str:
        """Return the model. `in_path`: of a path that names it, which counts before the body. A
        request that names others, too, which OpenRouter and LiteLLM then ask instead, is
        refused."""
        name = in_path or self.word("model")
        if name is None:
            raise ValueError("it names no model")
        if any(value and value != [name] for value in map(self._value, ("models", "fallbacks"))):
            raise ValueError(
                "it names more models than one, and the gateway decides about one: "
                "leave out 'models' and 'fallbacks'"
            )
        return name[: MODEL_MAX + 1]

    def _value(self, name: str) -> Any:
        raw = self.raw(name)
        return None if raw is None else msgspec.json.decode(raw)

    def _odd(self, name: str, wanted: str) -> ValueError:
        told = bytes(self.raw(name) or b"")[:40].decode(errors="replace")
        return ValueError(f"its field '{name}' is {told}; {wanted} is expected")


MOST_NAMED = 400_000
"""Tokens of a file that a request only names: the largest input of most models."""


def held(holding: Holding) -> dict[str, Any]:
    """Return what a request holds as the fields of its `ModelCall`."""
    media, most = dict(holding.media), dict(holding.most_media)
    if holding.images:
        media["image"] = holding.images * IMAGE_TOKENS
    for kind in get_args(Modality):
        if kind in holding.named and kind != "image":
            most[kind] = most.get(kind, 0) + MOST_NAMED
    return {
        "tokens": holding.tokens,
        "most_tokens": holding.most_tokens,
        "media": media,
        "most_media": most,
        "refers": bool(holding.named - {"audio", "video"}),
        "long_cache": holding.long_cache,
    }


def items(value: bytes | None) -> list[msgspec.Raw]:
    """Return the items of a JSON array; none if it is something else."""
    try:
        return _ITEMS.decode(value or b"[]")
    except msgspec.DecodeError:
        return []


def with_sentence(messages: bytes | None, sentence: str, kind: str) -> msgspec.Raw:
    """Return messages with a sentence at the end of the last one, if that is the user's, else with
    one more. `kind`: of the part that has it where the content of a message is an array."""
    given = items(messages)
    last = fields(given[-1]) if given else {}
    if bytes(last.get("role", b"")) != b'"user"':
        return encoded([*given, {"role": "user", "content": sentence}])
    content = bytes(last.get("content", b"[]"))
    if content.startswith(b'"'):
        said = encoded(f"{msgspec.json.decode(content)}\n\n{sentence}")
    else:
        said = encoded([*items(content), {"type": kind, "text": sentence}])
    return encoded([*given[:-1], last | {"content": said}])


def encoded(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


_FIELDS = msgspec.json.Decoder(Fields)
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])


# ---- What a call costs beyond its tokens: the providers' own tools


MOST_USES = 10
"""Uses of the provider's tools in one call, where the request says no maximum. A guess."""

ANTHROPIC_FEES = {"web_search": 0.01}
OPENAI_FEES = {
    "web_search": 0.01,
    "web_search_preview": 0.025,
    "file_search": 0.0025,
    "code_interpreter": 0.03,
    "image_generation": 0.25,
}
"""USD for a use (https://platform.claude.com/docs/en/about-claude/pricing,
https://openai.com/api/pricing): of a container for the smallest, of an image for the dearest; of a
search in preview that of models that do not reason."""
CHAT_SEARCH, LEAST_SEARCH = 0.025, 0.005
"""USD for a reply that searched the web, at most and at least: OpenAI's search models, Perplexity's
request fee (https://docs.perplexity.ai/getting-started/pricing), OpenRouter's plug-in
(https://openrouter.ai/docs/features/web-search)."""
GEMINI_SEARCH, GEMINI_QUERY, GEMINI_MAPS = 0.035, 0.014, 0.025
"""USD for a grounded reply of Gemini 2, for a query of Gemini 3, for a reply grounded in Maps
(https://ai.google.dev/gemini-api/docs/pricing). The free ones of each day are taken to be used
up."""


class _ServerTool(msgspec.Struct):
    type: str | None = None
    model: str | None = None
    max_uses: int | None = None


_TOOLS = msgspec.json.Decoder(list[_ServerTool])


def words(**told: Any) -> dict[str, str]:
    """Return the fields that have a word, in lower case."""
    return {name: word.lower() for name, word in told.items() if isinstance(word, str)}


def most_fees(
    fees: Mapping[str, float], tools: msgspec.Raw | None, uses: int | None = None
) -> float:
    """Return what the provider's tools in a request may cost. `uses`: how often it may use all of
    them. Raises `ValueError`."""
    offered = _TOOLS.decode(tools or b"[]")
    return max(
        (
            _fee(fees, tool.type) * _number(tool.max_uses, _number(uses, MOST_USES))
            for tool in offered
        ),
        default=0.0,
    )


def models_of_tools(tools: msgspec.Raw | None) -> tuple[str, ...]:
    """Return the models that tools in a request name, such as that of an advisor. Raises
    `ValueError`."""
    return tuple(
        dict.fromkeys(
            tool.model for tool in _TOOLS.decode(tools or b"[]") if tool.model is not None
        )
    )


def fee_of_use(fees: Mapping[str, float], kind: str) -> float:
    """Return what an item of a reply costs, such as a `web_search_call`."""
    return fees.get(kind.removesuffix("_call"), 0.0)


def _fee(fees: Mapping[str, float], kind: Any) -> float:
    # `web_search_20250305`, `web_search_preview`
    return max(
        (fee for name, fee in fees.items() if isinstance(kind, str) and kind.startswith(name)),
        default=0.0,
    )


def _number(value: Any, default: int) -> int:
    return min(value, 1000) if type(value) is int and value >= 0 else default
