"""JSON of which one field is wrong: that field is lost, and no other."""

import re
from types import NoneType, UnionType
from typing import Any, Generic, TypeVar, get_args, get_origin

import msgspec

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")

S = TypeVar("S", bound=msgspec.Struct)


def without_surrogates(line: bytes) -> bytes:
    """Return the line without lone surrogates, which msgspec refuses even in fields that it skips.

    JavaScript prints half of an emoji as one. Text that was cut inside a character must not lose
    the numbers beside it."""
    return _SURROGATE.sub(rb"\\ufffd", line).decode(errors="replace").encode()


class LenientDecoder(Generic[S]):
    """Decodes a struct whose fields all have defaults. Takes a slow way only where a field has
    another type than is expected, or a text is no Unicode."""

    def __init__(self, kind: type[S]) -> None:
        self._kind = kind
        self._strict = msgspec.json.Decoder(kind)

    def decode(self, data: bytes) -> S:
        """Raises `msgspec.DecodeError` if the data are no JSON object."""
        try:
            return self._strict.decode(data)
        except msgspec.ValidationError:
            return _struct(self._kind, data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            clean = without_surrogates(data)
        try:
            return self._strict.decode(clean)
        except msgspec.ValidationError:
            return _struct(self._kind, clean)


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
        pass
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
