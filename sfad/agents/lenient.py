"""JSON of which one field is wrong: that field is lost, and no other."""

import re
from types import NoneType, UnionType
from typing import Any, Generic, TypeVar, get_args, get_origin

import msgspec

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_NO_NUMBER = re.compile(
    rb"(?<=[\[:,\s])(?:-?(?:NaN|Infinity)|-?[0-9.]+[eE]\+?[0-9]{3,})(?=[\s,\]}])"
)
"""What Python and JavaScript print for numbers that JSON has not, and numbers beyond a float."""
_BLANKED = bytes(max(each, 0x20) for each in range(256))
"""Control characters as blanks: between values they mean nothing, and in a text they are wrong."""

S = TypeVar("S", bound=msgspec.Struct)


def mended(line: bytes) -> bytes:
    """Return JSON without what msgspec refuses even in fields that it skips: lone surrogates, bytes
    that are no UTF-8, control characters, NaN and its like.

    JavaScript prints half of an emoji as a lone surrogate. Text that was cut inside a character
    must not lose the numbers beside it."""
    text = _SURROGATE.sub(rb"\\ufffd", line).decode(errors="replace").encode()
    return _NO_NUMBER.sub(b"null", text.translate(_BLANKED))


class LenientDecoder(Generic[S]):
    """Decodes a struct whose fields all have defaults. Takes a slow way only where a field has
    another type than is expected, or what is around them is no JSON."""

    def __init__(self, kind: type[S]) -> None:
        self._kind = kind
        self._strict = msgspec.json.Decoder(kind)

    def decode(self, data: bytes) -> S:
        """Raises `msgspec.DecodeError` if the data are no JSON object."""
        try:
            return self._decoded(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return self._decoded(mended(data))

    def _decoded(self, data: bytes) -> S:
        try:
            return self._strict.decode(data)
        except msgspec.ValidationError:
            return _struct(self._kind, data)


_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])


def lenient(kind: Any, data: bytes, default: Any) -> Any:
    """Return what is right in a value; `default` if nothing is, or it is no JSON."""
    try:
        found = _value(kind, data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return default
    return default if found is msgspec.UNSET else found


def _struct(kind: type[S], data: bytes) -> S:
    told, found = _FIELDS.decode(data), kind()
    for field in msgspec.structs.fields(kind):
        raw = told.get(field.encode_name)
        value = msgspec.UNSET if raw is None else _value(field.type, bytes(raw))
        if value is not msgspec.UNSET:
            setattr(found, field.name, value)
    return found


def _value(kind: Any, data: bytes) -> Any:
    """Return what is right in a value; `UNSET` if nothing is."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError:
        if kind is Any:  # a number beyond a float in it
            return msgspec.json.decode(mended(data))
    if isinstance(kind, UnionType):
        kind = next(each for each in get_args(kind) if each is not NoneType)
    try:
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return _struct(kind, data)
        if get_origin(kind) is list:
            items = [_value(get_args(kind)[0], bytes(raw)) for raw in _ITEMS.decode(data)]
            return [item for item in items if item is not msgspec.UNSET]
    except msgspec.ValidationError:
        pass
    return msgspec.UNSET
