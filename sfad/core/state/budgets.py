"""Money budgets of users and teams (docs/limits.md). The shell knows the calendar, and tells when a period begins."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, overload

from ...protocol.kinds import COSTS
from ...protocol.types import LimitKind
from ...protocol.units import format_usd

# ---- Money inside the core: whole nano-dollars (1 USD = 1 000 000 000), so that sums and comparisons are exact
#
# Ten reservations of 0.1 USD must fit a limit of 1 USD and the eleventh must not; with floats each comparison needs a tolerance.
# Micro-dollars are too coarse, because one token can cost less than that. Nano-dollars are the 9 decimals that the wire shows.
#
# Amounts are in USD, as floats, everywhere outside: on the wire, in the config, in prices, in the ledger and in the spool. They are
# converted only by the functions here.

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
    """Return an amount of a kind as the core counts it: money in nano-dollars, the rest as it is."""
    return to_nanos(amount) if kind in COSTS else amount


def to_wire(kind: LimitKind, amount: float) -> float:
    """Return an amount that the core has counted in the unit of its kind."""
    return amount / NANOS if kind in COSTS else amount


# ---- Money budgets of users and teams (docs/limits.md). The shell knows the calendar, and tells when a period begins


@dataclass(slots=True)
class Budget:
    """What a user, or the members of a team together, may spend in a period."""

    scope: Literal["user", "team"]
    name: str
    allowed: int
    """Nano-dollars in a period."""
    members: frozenset[str]
    period: Literal["day", "week", "month"] = "day"
    begins: str = ""
    renews: str = ""
    charged: int = 0
    """Nano-dollars in this period, reservations included."""
    partial: bool = False
    """A run ended before its agent had told its final figures."""
    at_most: bool = False
    """A part of `charged` may not have been used."""
    near: bool = False
    over: bool = False
    refused: bool = False
    """It was published that a reservation was refused because of it."""
    short: bool = False
    """What is left of it was too little for a model call: it counts as run out."""
    renews_at: float | None = None
    """When that is, on the shell's clock."""

    @property
    def key(self) -> str:
        return f"budgets.users.{self.name}.daily_usd" if self.scope == "user" else f"budgets.teams.{self.name}.usd"

    @property
    def exhausted(self) -> bool:
        return self.charged >= self.allowed

    def admits(self, more: int) -> bool:
        return self.charged + more <= self.allowed

    @property
    def sentence(self) -> str:
        used = f"{format_usd(to_usd(self.charged))} of {format_usd(to_usd(self.allowed))} USD a {self.period}"
        most = "at most " if self.at_most else ""
        return f"{self.scope} {self.name} has used {most}{used}; it renews at {self.renews.replace('T', ' ')[:16]}"


class Budgets:
    def __init__(self) -> None:
        self._by_user: dict[str, list[Budget]] = {}

    def __iter__(self) -> Iterator[Budget]:
        return iter({(budget.scope, budget.name): budget for found in self._by_user.values() for budget in found}.values())

    def know(self, budgets: Iterable[Budget]) -> None:
        self._by_user = {}
        for budget in budgets:
            for user in budget.members:
                self._by_user.setdefault(user, []).append(budget)

    def of(self, user: str) -> Sequence[Budget]:
        return self._by_user.get(user, ())

    def exhausted(self, user: str) -> Budget | None:
        return next((budget for budget in self.of(user) if budget.exhausted), None)
