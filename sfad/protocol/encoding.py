"""Messages as msgpack and values as JSON, by msgspec. `light` has the same functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import Any, TypeVar

import msgspec

from .framing import BadMessage

T = TypeVar("T", bound=msgspec.Struct)
_encoder = msgspec.msgpack.Encoder()


def pack(value: Any) -> bytes:
    return _encoder.encode(value)


def reader(base: type[T]) -> Callable[[bytes], T]:
    """Return a function that makes of msgpack a struct of one of the classes that `base` has now, and raises `BadMessage`."""
    decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(reduce(or_, base.__subclasses__()))

    def read(body: bytes) -> T:
        # msgspec raises different exceptions for a wrong type, a truncation, bad UTF-8 and deep nesting
        try:
            return decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadMessage(f"not a message of this protocol: {error}") from error

    return read


def tag(kind: type[msgspec.Struct]) -> str:
    return str(kind.__struct_config__.tag)


def to_json(value: Any) -> bytes:
    return msgspec.json.encode(value)


class _OnlyId(msgspec.Struct):
    id: int = 0


def request_id(body: bytes) -> int:
    """Return the id of a request that cannot be decoded, for the `Error` that answers it; 0 if there is none."""
    try:
        return msgspec.msgpack.decode(body, type=_OnlyId).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0
