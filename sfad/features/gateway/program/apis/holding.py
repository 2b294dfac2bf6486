"""What a request holds, by the form of its API: text, images, audio, video, files that it only
names, and marks for a cache. Pure.

Only what an API takes as a file is one. The same bytes in a text, or in a tool's input, are text.
"""

from base64 import b64decode
from binascii import Error as NoBase64
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field

from .....agents.lenient import lenient
from .....protocol.types import Modality
from .tokens import tokens_of

IMAGE_TOKENS = 5000
"""Of an image, whatever its size in bytes: a guess on the high side."""
_DENSE_IMAGE_TOKENS = 10 * IMAGE_TOKENS
_DENSE_IMAGES = "gpt-4o-mini"
"""It has up to 48 000 tokens for an image
(https://platform.openai.com/docs/guides/images-vision, "Calculating costs")."""
AUDIO_A_SECOND, VIDEO_A_SECOND = 32, 300
"""Tokens (https://ai.google.dev/gemini-api/docs/tokens, "Multimodal tokens"). OpenAI's audio has
10."""
_USUAL_BYTES: dict[Modality, int] = {"audio": 4000, "video": 60_000}
_LEAST_BYTES: dict[Modality, int] = {"audio": 750, "video": 6000}
"""Bytes of a second: of usual compressed files, and of the most compressed ones."""
MOST_WAV_BYTES = 600_000
"""Bytes of a second of uncompressed audio: what a header says beyond that is no audio."""
_DEPTH = 4
"""How deep parts may be in parts: in a document, in the result of a tool, in a message."""


class Holding(Struct):
    body: bytes
    model: str = ""
    files: list[bytes] = field(default_factory=list)
    """The parts of the body that are no text."""
    images: int = 0
    media: dict[Modality, int] = field(default_factory=dict)
    """Tokens of audio and video, an estimate."""
    most_media: dict[Modality, int] = field(default_factory=dict)
    """Tokens that these have at most."""
    named: set[str] = field(default_factory=set)
    """Files that are only named, so that their size is not known: `image`, `audio`, `video`, or
    another word."""
    caches: bool = False
    """A part of it is marked to be written to a cache."""
    long_cache: bool = False
    """For an hour."""

    def file(self, media_type: Any, data: bytes) -> None:
        """Count a file in base64."""
        kind = str(media_type).partition("/")[0].lower()
        if kind == "image":
            self.images += 1
            self.files.append(data)
        elif kind == "audio":
            self._play("audio", AUDIO_A_SECOND, data)
        elif kind == "video":
            self._play("video", VIDEO_A_SECOND, data)

    def _play(self, mode: Modality, a_second: int, data: bytes) -> None:
        size = len(data) * 3 // 4
        rate = _wav_rate(data) if mode == "audio" else None
        usual, least = rate or _USUAL_BYTES[mode], rate or _LEAST_BYTES[mode]
        self.media[mode] = self.media.get(mode, 0) + 1 + a_second * size // usual
        self.most_media[mode] = self.most_media.get(mode, 0) + 1 + a_second * size // least
        self.files.append(data)

    @property
    def tokens(self) -> int:
        """Return the tokens of its text and images."""
        return tokens_of(_without(self.body, self.files)) + self._of_images

    @property
    def most_tokens(self) -> int:
        """Return the same with a token for each byte: no tokenizer has more."""
        return len(_without(self.body, self.files)) + self._of_images

    @property
    def _of_images(self) -> int:
        image = _DENSE_IMAGE_TOKENS if _DENSE_IMAGES in self.model else IMAGE_TOKENS
        return image * self.images

    def link(self, url: bytes, kind: str = "") -> None:
        """Count a file by its URL, which may hold it, or by its id."""
        if url.startswith(b"data:"):
            head, _, data = url.partition(b",")
            self.file(head[5:].partition(b";")[0].decode("latin-1"), data)
        elif url:
            self.named.add(kind or "file")

    def mark(self, cache_control: Any) -> None:
        if isinstance(cache_control, dict):
            self.caches = True
            self.long_cache |= cache_control.get("ttl") == "1h"


def _without(body: bytes, files: list[bytes]) -> bytes:
    """Return a body without these parts of it."""
    spans, at = [], 0
    for each in filter(None, files):
        found = body.find(each, at)
        found = body.find(each) if found < 0 else found  # it stands before the one before
        at = found + len(each)
        spans.append((found, at))
    rest, at = [], 0
    for begins, ends in sorted(spans):
        rest.append(body[at:begins])
        at = max(at, ends)
    return b"".join((*rest, body[at:]))


def _wav_rate(data: bytes) -> int | None:
    """Return the bytes of a second that a WAV file says; `None` for another file."""
    try:
        head = b64decode(data.lstrip(b'"')[:64])
    except (NoBase64, ValueError):
        return None
    if head[:4] != b"RIFF" or head[8:16] != b"WAVEfmt ":
        return None
    channels, hertz, bits = (
        int.from_bytes(head[at : at + size], "little") for at, size in ((22, 2), (24, 4), (34, 2))
    )
    return min(channels * hertz * bits // 8, MOST_WAV_BYTES) or None


S = TypeVar("S", bound=msgspec.Struct)


def _each(kind: type[S], raw: bytes | None) -> list[S]:
    """Return the objects of a list; none of what is no list."""
    found = lenient(list[kind], bytes(raw or b""), [])  # type: ignore[valid-type]
    return found if isinstance(found, list) else []


def _text(raw: bytes) -> bytes:
    """Return a text as it is written, without its quotes; none of what is no text."""
    return raw[1:-1] if raw.startswith(b'"') else b""


_NOTHING = msgspec.Raw(b"")

# ---- Anthropic


class _Source(msgspec.Struct):
    type: Any = None
    media_type: Any = None
    data: msgspec.Raw = _NOTHING
    content: msgspec.Raw = _NOTHING


class _AnthropicPart(msgspec.Struct):
    type: Any = None
    source: _Source | None = None
    content: msgspec.Raw = _NOTHING
    cache_control: Any = None


def hold_anthropic(holding: Holding, fields: dict[str, msgspec.Raw]) -> None:
    for name in ("system", "tools"):
        _hold_anthropic_parts(holding, fields.get(name))
    for message in _each(_AnthropicPart, fields.get("messages")):
        _hold_anthropic_parts(holding, message.content)
    holding.mark(lenient(dict[str, Any], bytes(fields.get("cache_control", b"")), None))


def _hold_anthropic_parts(holding: Holding, raw: bytes | None, depth: int = _DEPTH) -> None:
    for part in _each(_AnthropicPart, raw):
        holding.mark(part.cache_control)
        if part.type == "tool_result" and depth:
            _hold_anthropic_parts(holding, part.content, depth - 1)
        elif part.type in ("image", "document") and part.source is not None:
            if part.source.type == "base64":
                holding.file(part.source.media_type, bytes(part.source.data))
            elif part.source.type in ("url", "file"):
                holding.named.add(part.type)
            elif part.source.type == "content" and depth:
                _hold_anthropic_parts(holding, part.source.content, depth - 1)
        elif part.type == "container_upload":
            holding.named.add("file")


# ---- OpenAI: Chat Completions and Responses


class _Link(msgspec.Struct):
    url: msgspec.Raw = _NOTHING


class _Audio(msgspec.Struct):
    id: Any = None
    data: msgspec.Raw = _NOTHING
    format: Any = None


class _File(msgspec.Struct):
    file_id: Any = None
    file_data: msgspec.Raw = _NOTHING


class _ChatPart(msgspec.Struct):
    type: Any = None
    image_url: _Link | None = None
    video_url: _Link | None = None
    input_audio: _Audio | None = None
    file: _File | None = None
    cache_control: Any = None


class _ChatMessage(msgspec.Struct):
    content: msgspec.Raw = _NOTHING
    audio: _Audio | None = None
    """What the model has said before, by its id."""
    cache_control: Any = None


def hold_chat(holding: Holding, fields: dict[str, msgspec.Raw]) -> None:
    for tool in _each(_ChatPart, fields.get("tools")):
        holding.mark(tool.cache_control)
    for message in _each(_ChatMessage, fields.get("messages")):
        holding.mark(message.cache_control)
        if message.audio is not None and message.audio.id is not None:
            holding.named.add("audio")
        for part in _each(_ChatPart, message.content):
            _hold_chat_part(holding, part)


def _hold_chat_part(holding: Holding, part: _ChatPart) -> None:
    holding.mark(part.cache_control)
    if part.type == "image_url" and part.image_url is not None:
        holding.link(_text(bytes(part.image_url.url)), "image")
    elif part.type == "video_url" and part.video_url is not None:
        holding.link(_text(bytes(part.video_url.url)), "video")
    elif part.type == "input_audio" and part.input_audio is not None:
        holding.file(f"audio/{part.input_audio.format}", bytes(part.input_audio.data))
    elif part.type == "file" and part.file is not None:
        _hold_file(holding, part.file.file_id, part.file.file_data)


def _hold_file(holding: Holding, file_id: Any, data: bytes) -> None:
    if file_id is not None:
        holding.named.add("file")
    elif (url := _text(bytes(data))).startswith(b"data:"):
        holding.link(url)


class _ResponsesPart(msgspec.Struct):
    type: Any = None
    content: msgspec.Raw = _NOTHING
    output: msgspec.Raw = _NOTHING
    image_url: msgspec.Raw = _NOTHING
    file_url: msgspec.Raw = _NOTHING
    file_id: Any = None
    file_data: msgspec.Raw = _NOTHING
    input_audio: _Audio | None = None
    result: msgspec.Raw = _NOTHING


_IMAGES = ("input_image", "computer_screenshot")


def hold_responses(holding: Holding, fields: dict[str, msgspec.Raw]) -> None:
    for item in _each(_ResponsesPart, fields.get("input")):
        _hold_responses_part(holding, item)
        if item.type == "item_reference":
            holding.named.add("item")
        elif item.type == "image_generation_call":
            holding.file("image/png", bytes(item.result))
        for raw in (item.content, item.output):
            for part in _parts(raw):
                _hold_responses_part(holding, part)
    if bytes(fields.get("prompt", _NOTHING)) not in (b"", b"null"):
        holding.named.add("prompt")


def _parts(raw: bytes) -> Iterator[_ResponsesPart]:
    """Yield the parts of a list, or the one of a screenshot."""
    data = bytes(raw)
    yield from _each(_ResponsesPart, b"[" + data + b"]" if data.startswith(b"{") else data)


def _hold_responses_part(holding: Holding, part: _ResponsesPart) -> None:
    if part.type in _IMAGES:
        holding.link(_text(bytes(part.image_url)) or (b"id" if part.file_id else b""), "image")
    elif part.type == "input_audio" and part.input_audio is not None:
        holding.file(f"audio/{part.input_audio.format}", bytes(part.input_audio.data))
    elif part.type == "input_file":
        named = part.file_id if part.file_id is not None else _text(bytes(part.file_url)) or None
        _hold_file(holding, named, bytes(part.file_data))


# ---- Gemini, which takes each name in two spellings


class _Blob(msgspec.Struct):
    mime_type: Any = None
    mime: Any = msgspec.field(default=None, name="mimeType")
    data: msgspec.Raw = _NOTHING


class _GeminiPart(msgspec.Struct):
    inline_data: _Blob | None = None
    inline: _Blob | None = msgspec.field(default=None, name="inlineData")
    file_data: _Blob | None = None
    file: _Blob | None = msgspec.field(default=None, name="fileData")
    function_response: "_GeminiContent | None" = None
    function: "_GeminiContent | None" = msgspec.field(default=None, name="functionResponse")


class _GeminiContent(msgspec.Struct):
    parts: list[_GeminiPart] = []


def hold_gemini(holding: Holding, fields: dict[str, msgspec.Raw]) -> None:
    for content in _each(_GeminiContent, fields.get("contents")):
        _hold_gemini_parts(holding, content)


def _hold_gemini_parts(holding: Holding, content: _GeminiContent, depth: int = _DEPTH) -> None:
    for part in content.parts:
        for blob in (part.inline_data, part.inline):
            if blob is not None:
                holding.file(blob.mime or blob.mime_type, bytes(blob.data))
        for blob in (part.file_data, part.file):
            if blob is not None:
                holding.named.add(str(blob.mime or blob.mime_type).partition("/")[0])
        for inner in (part.function_response, part.function):
            if inner is not None and depth:
                _hold_gemini_parts(holding, inner, depth - 1)
