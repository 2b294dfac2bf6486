"""Money inside the core: whole nano-dollars (1 USD = 1 000 000 000), so that sums and comparisons
are exact.

Ten reservations of 0.1 USD must fit a limit of 1 USD and the eleventh must not; with floats each
comparison needs a tolerance. Micro-dollars are too coarse, because one token can cost less than
that. Nano-dollars are the 9 decimals that the wire shows.

Amounts are in USD, as floats, everywhere outside: on the wire, in the config, in prices, in the
ledger and in the spool. They are converted only by the functions here."""

from typing import overload

from ...protocol.kinds import COSTS
from ...protocol.types import LimitKind

NANOS = 1_000_000_000


@overload
def to_nanos(usd: float) -> int: ...
@overload
def to_nanos(usd: float | None) -> int | None: ...
def to_nanos(usd: float | None) -> int | None:
    return None if usd is None else round(usd * NANOS)


@overload
def to_usd(nanos: int) -> float: ...
@overload
def to_usd(nanos: int | None) -> float | None: ...
def to_usd(nanos: int | None) -> float | None:
    return None if nanos is None else nanos / NANOS


def to_core(kind: LimitKind, amount: float) -> float:
    """Return an amount of a kind as the core counts it: money in nano-dollars, the rest as it
    is."""
    return to_nanos(amount) if kind in COSTS else amount


def to_wire(kind: LimitKind, amount: float) -> float:
    """Return an amount that the core has counted in the unit of its kind."""
    return amount / NANOS if kind in COSTS else amount
