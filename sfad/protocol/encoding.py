"""Values as JSON, and structs with some fields of another, by msgspec."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from operator import attrgetter
from types import NoneType
from typing import Any, cast

import msgspec

from .framing import tag


def to_json(value: Any) -> bytes:
    """Return a value as JSON. A struct has all its fields, also those that messages leave out
    because they have their defaults. It may be shown at a terminal."""
    data = msgspec.json.encode(_whole(value))
    if data.isascii() and b"\x7f" not in data:
        return data
    from .texts.sanitise import visible_json  # takes 3 ms, and most verbs do not need it

    return visible_json(data)


_PLAIN = frozenset({NoneType, bool, int, float, str, datetime})
"""What most fields are: a run has a hundred, and a call for each would take most of the time."""


def _whole(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        fields = zip(value.__struct_encode_fields__, msgspec.structs.astuple(value), strict=True)
        whole = {
            key: field if type(field) in _PLAIN or not field else _whole(field)
            for key, field in fields
            if field is not msgspec.UNSET
        }
        return (
            {value.__struct_config__.tag_field: tag(type(value)), **whole}
            if value.__struct_config__.tag
            else whole
        )
    if isinstance(value, dict):
        return {key: _whole(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [each if type(each) in _PLAIN else _whole(each) for each in value]
    return value


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
