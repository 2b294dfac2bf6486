"""Accounts as they are saved: money in USD, as everywhere outside the core. These are hooks for msgspec."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from ..core.account import Account, Hold, Use
from ..core.money import to_nanos, to_usd
from ..protocol.kinds import COSTS
from ..protocol.types import LimitKind, Source


class _Parts(Struct):
    sources: dict[Source, Use]
    holds: dict[str, Hold]
    held: dict[LimitKind, int]
    below: dict[LimitKind, int]
    ended: dict[LimitKind, int]
    levels: dict[LimitKind, float]


_SUMS = ("held", "below", "ended")

_NOTHING: dict[str, dict[str, Any]] = {name: {} for name in _Parts.__struct_fields__}


def to_saved(value: Any) -> Any:
    """Return what to save of an account."""
    if not isinstance(value, Account):
        raise NotImplementedError(f"{type(value)} cannot be saved")
    if not (value.sources or value.holds or value.below or value.levels):
        return _NOTHING  # of most runs, each time they are saved
    parts = {name: msgspec.to_builtins(getattr(value, name)) for name in _Parts.__struct_fields__}
    _convert(parts, to_usd)
    return parts


def from_saved(wanted: type, saved: Any) -> Any:
    """Return the account that was saved. Raise `ValueError` for a form of another version."""
    if wanted is not Account:
        raise NotImplementedError(f"{wanted} is not saved")
    try:
        _convert(saved, to_nanos)
        for name in _SUMS:  # version 0.1.0 saved floats, of tokens too
            saved[name] = {kind: int(amount) for kind, amount in saved[name].items()}
    except (AttributeError, KeyError) as error:
        raise ValueError(f"this is no account: {error}") from error
    parts = msgspec.convert(saved, _Parts)
    return Account(**msgspec.structs.asdict(parts))


def _convert(parts: dict[str, dict[str, Any]], convert: Callable[[Any], Any]) -> None:
    for amounts in _amounts(parts):
        for kind in COSTS & amounts.keys():
            amounts[kind] = convert(amounts[kind])


def _amounts(parts: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield from parts["sources"].values()
    yield from parts["holds"].values()
    yield from (parts[name] for name in _SUMS)
