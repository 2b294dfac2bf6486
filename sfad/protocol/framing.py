"""Frames: a 4-byte big-endian length, then that many bytes of msgpack; the versions of the
protocol; its errors; the messages in frames. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec

VERSION = 1
SUPPORTED = (1,)
"""Every version this build speaks. `Hello.versions` and `Welcome.version` negotiate the highest
both sides know."""


class ProtocolError(Exception):
    """A frame or message breaks the protocol. The connection it came from cannot be trusted to be
    in step any more."""


class FrameTooLarge(ProtocolError):
    """A frame announces more bytes than its reader accepts."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"a frame of {size} bytes was announced; at most {limit} are accepted")
        self.size = size
        self.limit = limit


class BadMessage(ProtocolError):
    """A frame's body is not a message this side knows. The stream itself is still in step."""


HEADER = 4
MAX_REQUEST = 4 * 1024 * 1024
"""Bytes of one request. A spawn carries argv and environment, and Linux holds those to 6 MiB (3/4
of `_STK_LIM`, execve(2)), in practice to 2 MiB with an 8 MiB stack; 4 MiB leaves room and bounds
what a stranger can make the daemon buffer."""
MAX_REPLY = 64 * 1024 * 1024
"""Bytes of one reply: a list of 20 000 runs with long command lines."""


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(HEADER, "big") + body


class FrameDecoder:
    """Cuts a byte stream into frame bodies.

    The announced length is checked before anything of the body is kept, so a peer can make this
    side hold at most `limit` bytes and one header. After `FrameTooLarge` the stream is out of step:
    close it."""

    __slots__ = ("_buffer", "_limit", "pending")

    def __init__(self, limit: int) -> None:
        self._buffer = bytearray()
        self._limit = limit
        self.pending = 0
        """Bytes that are kept of a frame that is not complete."""

    @property
    def rest(self) -> bytes:
        return bytes(self._buffer)

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        """Yields every body that is complete once `data` has arrived. Raises `FrameTooLarge`."""
        if (
            not self._buffer
            and HEADER < len(data) <= self._limit
            and int.from_bytes(data[:HEADER], "big") == len(data) - HEADER
        ):
            return iter((bytes(data[HEADER:]),))  # one whole frame, as nearly always
        return self._cut(data)

    def _cut(self, data: bytes | memoryview) -> Iterator[bytes]:
        buffer = self._buffer
        buffer += data
        self.pending = len(buffer)
        start = 0
        try:
            while len(buffer) - start >= HEADER:
                size = int.from_bytes(buffer[start : start + HEADER], "big")
                if size > self._limit:
                    raise FrameTooLarge(size, self._limit)
                end = start + HEADER + size
                if len(buffer) < end:
                    break
                # a slice of the buffer itself would be one copy more
                with memoryview(buffer) as view:
                    body = bytes(view[start + HEADER : end])
                start = end
                yield body
        finally:
            del buffer[:start]
            self.pending = len(buffer)


# ---- The messages in frames


T = TypeVar("T", bound=msgspec.Struct)
_encoder = msgspec.msgpack.Encoder()


def pack(value: Any) -> bytes:
    return _encoder.encode(value)


class _Head(msgspec.Struct):
    type: str
    id: int = 0


_head_decoder = msgspec.msgpack.Decoder(_Head)
_TYPE = b"\xa4type"
"""The key of a message's type. msgspec writes it first, after a byte that counts the fields."""


def _first_word(body: bytes) -> bytes:
    """Return the type of a message that begins with it. A `_Head` reads all of the message, which
    takes a seventh of the time in which a list of runs is decoded."""
    start = 1 + len(_TYPE)
    if body[1:start] != _TYPE or len(body) == start:
        return b""
    return body[start + 1 : start + 1 + (body[start] & 31)]


def reader(base: type[T], strange: Callable[[int], T] | None = None) -> Callable[[bytes], T]:
    """Return a function that makes of msgpack a struct of one of the classes below `base`, and
    raises `BadMessage`. A message of a type that no imported module declares is what `strange`
    makes of its id, and without that a bad message."""
    # one decoder of all classes would take 12 ms to make, and a verb of the client needs two or
    # three of them
    decoders: dict[bytes, msgspec.msgpack.Decoder[T]] = {}

    def new_decoder(word: str) -> msgspec.msgpack.Decoder[T] | None:
        found = [kind for kind in base.__subclasses__() if tag(kind) == word]
        decoders.update((word.encode(), msgspec.msgpack.Decoder(kind)) for kind in found)
        return decoders.get(word.encode())

    def read(body: bytes) -> T:
        # msgspec raises different exceptions for a wrong type, a truncation, bad UTF-8 and deep
        # nesting
        try:
            decoder = decoders.get(_first_word(body))
            if decoder is not None:
                return decoder.decode(body)
            head = _head_decoder.decode(body)
            decoder = decoders.get(head.type.encode()) or new_decoder(head.type)
            if decoder is not None:
                return decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadMessage(f"not a message of this protocol: {error}") from error
        if strange is None:
            raise BadMessage(
                f"not a message of this protocol: the type '{head.type[:100]}' is unknown"
            )
        return strange(head.id)

    return read


def tag(kind: type[msgspec.Struct]) -> str:
    return str(kind.__struct_config__.tag)


class _OnlyId(msgspec.Struct):
    id: int = 0


def request_id(body: bytes) -> int:
    """Return the id of a request that cannot be decoded, for the `Error` that answers it; 0 if
    there is none."""
    try:
        return msgspec.msgpack.decode(body, type=_OnlyId).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0
