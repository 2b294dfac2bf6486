"""Messages as msgpack and values as JSON, by msgspec."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, TypeVar, cast

import msgspec

from .framing import BadMessage

T = TypeVar("T", bound=msgspec.Struct)
_encoder = msgspec.msgpack.Encoder()


def pack(value: Any) -> bytes:
    return _encoder.encode(value)


class _Head(msgspec.Struct):
    type: str
    id: int = 0


_head_decoder = msgspec.msgpack.Decoder(_Head)


def reader(base: type[T], strange: Callable[[int], T] | None = None) -> Callable[[bytes], T]:
    """Return a function that makes of msgpack a struct of one of the classes below `base`, and
    raises `BadMessage`. A message of a type that no imported module declares is what `strange`
    makes of its id, and without that a bad message."""
    # one decoder of all classes would take 12 ms to make, and a verb of the client needs two or
    # three of them
    decoders: dict[str, msgspec.msgpack.Decoder[T]] = {}

    def decoder_of(word: str) -> msgspec.msgpack.Decoder[T] | None:
        if word not in decoders:
            found = [kind for kind in base.__subclasses__() if tag(kind) == word]
            decoders.update((word, msgspec.msgpack.Decoder(kind)) for kind in found)
        return decoders.get(word)

    def read(body: bytes) -> T:
        # msgspec raises different exceptions for a wrong type, a truncation, bad UTF-8 and deep
        # nesting
        try:
            head = _head_decoder.decode(body)
            if (decoder := decoder_of(head.type)) is not None:
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


def to_json(value: Any) -> bytes:
    """Return a value as JSON. A struct has all its fields, also those that messages leave out
    because they have their defaults. It may be shown at a terminal."""
    data = msgspec.json.encode(_whole(value))
    if data.isascii() and b"\x7f" not in data:
        return data
    from .texts.sanitise import visible_json  # takes 3 ms, and most verbs do not need it

    return visible_json(data)


def _whole(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        fields = (
            (key, getattr(value, name))
            for key, name in zip(
                value.__struct_encode_fields__, value.__struct_fields__, strict=True
            )
        )
        whole = {key: _whole(field) for key, field in fields if field is not msgspec.UNSET}
        return (
            {value.__struct_config__.tag_field: tag(type(value)), **whole}
            if value.__struct_config__.tag
            else whole
        )
    if isinstance(value, dict):
        return {key: _whole(each) for key, each in value.items()}
    return [_whole(each) for each in value] if isinstance(value, list | tuple) else value


def lean(
    kind: type[msgspec.Struct], names: Sequence[str]
) -> tuple[Callable[..., object], Callable[[Any], tuple[Any, ...]]]:
    """Return a struct of these fields of another one, which is encoded without those that have
    their defaults, and a function that returns what such a struct is made of."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    chosen = sorted((fields[name] for name in names), key=lambda field: not field.required)
    declared = [
        (field.name, Any) if field.required else (field.name, Any, _default(field))
        for field in chosen
    ]
    made = msgspec.defstruct(
        f"Lean{kind.__name__}", declared, omit_defaults=True, frozen=True, gc=False
    )
    return made, attrgetter(*made.__struct_fields__)


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return msgspec.field(default_factory=cast("Callable[[], object]", field.default_factory))


class _OnlyId(msgspec.Struct):
    id: int = 0


def request_id(body: bytes) -> int:
    """Return the id of a request that cannot be decoded, for the `Error` that answers it; 0 if
    there is none."""
    try:
        return msgspec.msgpack.decode(body, type=_OnlyId).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0
