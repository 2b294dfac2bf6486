"""Money budgets of users and teams (docs/limits.md). The shell knows the calendar, and tells when a period begins."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ...protocol.units import format_usd
from .money import to_usd


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
