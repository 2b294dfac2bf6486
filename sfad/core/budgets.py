"""Money budgets of users and teams (SPEC section 5). Periods are the shell's: it says when one begins anew."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from ..protocol.units import format_usd
from .limits import ROUNDING


@dataclass(slots=True)
class Budget:
    """What a user, or the members of a team together, may spend in a period."""

    scope: Literal["user", "team"]
    name: str
    usd: float
    members: frozenset[str]
    """Users whose use is charged."""
    period: Literal["day", "week", "month"] = "day"
    begins: str = ""
    """Tells this period from another."""
    renews: str = ""
    """When the period ends, for people."""
    charged: float = 0.0
    """USD in this period, reservations included."""
    partial: bool = False
    """A run was charged to it that ended before its agent had told its final figures."""
    near: bool = False
    over: bool = False
    refused: bool = False
    """It has been said that something was refused for it."""

    @property
    def key(self) -> str:
        """The key of the config that sets it."""
        return f"budgets.users.{self.name}.daily_usd" if self.scope == "user" else f"budgets.teams.{self.name}.usd"

    @property
    def exhausted(self) -> bool:
        """Whether nothing may start any more."""
        return self.charged >= self.usd - ROUNDING

    def admits(self, more: float) -> bool:
        """Whether so much more stays within it."""
        return self.charged + more <= self.usd + ROUNDING

    @property
    def told(self) -> str:
        """Its name, numbers and renewal in a few words."""
        spent = f"{format_usd(self.charged)} of {format_usd(self.usd)} USD a {self.period}"
        return f"{self.scope} {self.name} has used {spent}; it renews at {self.renews}"


class Budgets:
    """All of them, by user."""

    def __init__(self) -> None:
        self._by_user: dict[str, list[Budget]] = {}

    def __iter__(self) -> Iterator[Budget]:
        return iter({(budget.scope, budget.name): budget for found in self._by_user.values() for budget in found}.values())

    def know(self, budgets: Iterable[Budget]) -> None:
        """Replaces what was known."""
        self._by_user = {}
        for budget in budgets:
            for user in budget.members:
                self._by_user.setdefault(user, []).append(budget)

    def of(self, user: str) -> Iterator[Budget]:
        """Those that this user's spending is charged to."""
        return iter(self._by_user.get(user, ()))

    def exhausted(self, user: str) -> Budget | None:
        """The first one with nothing left."""
        return next((budget for budget in self.of(user) if budget.exhausted), None)
