"""Accounts as they are saved: money in USD, as everywhere outside the core. These are hooks for msgspec."""

from collections.abc import Callable
from typing import Any

import msgspec

from ..core.account import Account, OpenReservation, Use
from ..core.money import to_nanos, to_usd
from ..protocol.kinds import COSTS
from ..protocol.types import LimitKind, Source

_PARTS: dict[str, tuple[str, Any]] = {
    "sources": ("sources", dict[Source, Use]),
    "holds": ("reservations", dict[str, OpenReservation]),
    "held": ("reserved", dict[LimitKind, int]),
    "below": ("below", dict[LimitKind, int]),
    "ended": ("ended", dict[LimitKind, int]),
    "levels": ("levels", dict[LimitKind, float]),
    "ended_unsure": ("ended_unsure", dict[LimitKind, int]),
}
"""The attribute of `Account` and its type, by the key that it is saved under."""

_MONEY = COSTS | {"more_cost", "unsure_cost"}
_SUMS = ("held", "below", "ended", "ended_unsure")
_NOTHING: dict[str, dict[str, Any]] = {key: {} for key in _PARTS}


def to_saved(value: Any) -> Any:
    if not isinstance(value, Account):
        raise NotImplementedError(f"{type(value)} cannot be saved")
    if not value.known:
        return _NOTHING  # of most runs, each time they are saved
    return _converted({key: msgspec.to_builtins(getattr(value, name)) for key, (name, _) in _PARTS.items()}, to_usd)


def from_saved(wanted: type, saved: Any) -> Any:
    """Return the account that was saved. Raise `ValueError` for a form of another version."""
    if wanted is not Account:
        raise NotImplementedError(f"{wanted} is not saved")
    try:
        saved.setdefault("ended_unsure", {})  # earlier versions saved none
        _converted(saved, to_nanos)
        for name in _SUMS:  # version 0.1.0 saved floats, of tokens too
            saved[name] = {kind: int(amount) for kind, amount in saved[name].items()}
        return Account(**{name: msgspec.convert(saved[key], type_) for key, (name, type_) in _PARTS.items()})
    except (AttributeError, KeyError) as error:
        raise ValueError(f"this is no account: {error}") from error


def _converted(parts: dict[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    for amounts in (*parts["sources"].values(), *parts["holds"].values(), *(parts[name] for name in _SUMS)):
        for kind in _MONEY & amounts.keys():
            amounts[kind] = convert(amounts[kind])
    return parts
