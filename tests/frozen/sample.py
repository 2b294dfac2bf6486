"""A value of any type of a message: each field is filled, and it is the same each time."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

WHEN = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)


def sample(kind: Any) -> Any:
    """Return a value of a type."""
    return _of(inspect.type_info(kind), ())


def _of(info: inspect.Type, within: tuple[type, ...]) -> Any:
    match info:
        case inspect.StructType():
            return _struct(info, within)
        case inspect.UnionType(types=types):
            found = [each for each in types if not isinstance(each, inspect.NoneType)]
            inner = [each for each in found if not _recurs(each, within)]
            return _of(inner[0], within) if inner else None
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return [] if _recurs(item, within) else [_of(item, within)]
        case inspect.CollectionType(item_type=item):
            return [_of(item, within)]
        case inspect.TupleType(item_types=items):
            return [_of(each, within) for each in items]
        case inspect.DictType(key_type=key, value_type=value):
            return {} if _recurs(value, within) else {_of(key, within): _of(value, within)}
        case inspect.EnumType(cls=cls):
            return next(iter(cls)).value
        case inspect.LiteralType(values=values):
            return values[0]
        case inspect.BoolType():
            return True
        case inspect.IntType(ge=least):
            return max(7, least or 0)
        case inspect.FloatType():
            return 1.5
        case inspect.BytesType():
            return b"\xffbytes"
        case inspect.DateTimeType():
            return WHEN
        case inspect.RawType():
            return {}
        case inspect.StrType() | inspect.AnyType():
            return "text"
    raise NotImplementedError(info)


def _recurs(info: inspect.Type, within: tuple[type, ...]) -> bool:
    return isinstance(info, inspect.StructType) and info.cls in within


def _struct(info: inspect.StructType, within: tuple[type, ...]) -> Any:
    inner = (*within, info.cls)
    fields = {field.encode_name: _of(field.type, inner) for field in info.fields}
    if info.array_like:
        return list(fields.values())
    return ({info.tag_field: info.tag} if info.tag_field else {}) | fields


@cache
def message(kind: type[Any]) -> Any:
    """Return a message of a type."""
    return msgspec.convert(sample(kind), kind)
