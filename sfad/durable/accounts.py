"""Accounts as they are saved: money in USD, as everywhere outside the core. These are hooks for msgspec."""

from collections.abc import Callable
from typing import Any

import msgspec

from ..core.account import Account, OpenReservation, Use
from ..core.money import to_nanos, to_usd
from ..protocol.kinds import COSTS
from ..protocol.types import LimitKind, Source

_SUMS = ("reserved", "below", "ended", "ended_unsure")
_PARTS: dict[str, Any] = {
    "sources": dict[Source, Use],
    "reservations": dict[str, OpenReservation],
    **dict.fromkeys(_SUMS, dict[LimitKind, int]),
    "levels": dict[LimitKind, float],
}
"""The attributes of `Account` that are saved, and their types."""

_MONEY = COSTS | {"more_cost", "unsure_cost"}
_NOTHING: dict[str, dict[str, Any]] = {name: {} for name in _PARTS}


def to_saved(value: Any) -> Any:
    if not isinstance(value, Account):
        raise NotImplementedError(f"{type(value)} cannot be saved")
    if not value.known:
        return _NOTHING  # of most runs, each time they are saved
    return _converted({name: msgspec.to_builtins(getattr(value, name)) for name in _PARTS}, to_usd)


def from_saved(wanted: type, saved: Any) -> Any:
    """Return the account that was saved. Raise `ValueError` for a form of another version."""
    if wanted is not Account:
        raise NotImplementedError(f"{wanted} is not saved")
    try:
        _converted(saved, to_nanos)
        return Account(**{name: msgspec.convert(saved[name], type_) for name, type_ in _PARTS.items()})
    except (AttributeError, KeyError) as error:
        raise ValueError(f"this is no account: {error}") from error


def _converted(parts: dict[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    for amounts in (*parts["sources"].values(), *parts["reservations"].values(), *(parts[name] for name in _SUMS)):
        for kind in _MONEY & amounts.keys():
            amounts[kind] = convert(amounts[kind])
    return parts
