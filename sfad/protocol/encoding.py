"""Messages as msgpack and values as JSON, by msgspec. `light` has the same functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import attrgetter, or_
from typing import Any, TypeVar, cast

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


def lean(kind: type[msgspec.Struct], names: Sequence[str] = ()) -> Callable[[Any], Any]:
    """Return a function that makes of a struct one with these fields, or with all, that is encoded without those which have their
    defaults."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    chosen = sorted((fields[name] for name in names or fields), key=lambda field: not field.required)
    declared = [(field.name, Any) if field.required else (field.name, Any, _default(field)) for field in chosen]
    made = msgspec.defstruct(f"Lean{kind.__name__}", declared, omit_defaults=True, frozen=True, gc=False)
    values = attrgetter(*made.__struct_fields__)
    return lambda whole: made(*values(whole))


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return msgspec.field(default_factory=cast("Callable[[], object]", field.default_factory))


class _OnlyId(msgspec.Struct):
    id: int = 0


def request_id(body: bytes) -> int:
    """Return the id of a request that cannot be decoded, for the `Error` that answers it; 0 if there is none."""
    try:
        return msgspec.msgpack.decode(body, type=_OnlyId).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0
