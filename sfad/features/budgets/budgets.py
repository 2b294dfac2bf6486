"""Money budgets of users and teams (docs/limits.md). The shell knows the calendar, and tells when a
period begins."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from msgspec import Struct, field

from ...core.state.money import to_usd
from ...protocol.texts.units import format_usd


class Given(Struct):
    """What the keeper has given a node of a budget (`allowances`)."""

    number: int
    """Of the node's newest request."""
    allowance: int
    """Nano-dollars that the node may charge in this period."""
    charged: int
    """What it had charged of that when it asked last."""
    lacks: bool = False
    """It asked for more than was left."""


class Budget(Struct):
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
    keeper: str | None = None
    """The machine that gives this one its allowance; empty if that is not known yet.
    `None`: this daemon keeps it."""
    allowance: int = 0
    """Nano-dollars that the keeper lets this node charge in this period."""
    given: dict[str, Given] = field(default_factory=dict)
    """What this daemon, as the keeper, has given to other nodes."""
    asked: bool = False
    """The keeper was asked for more and has not answered: what needs it waits."""
    waits: str | None = None
    """Why the keeper gives no more now."""
    used_up: bool = False
    """The keeper says that nothing is left on any node."""

    @property
    def key(self) -> str:
        return (
            f"budgets.users.{self.name}.daily_usd"
            if self.scope == "user"
            else f"budgets.teams.{self.name}.usd"
        )

    @property
    def whose(self) -> str:
        """Return the name of its user, or `team NAME`."""
        return self.name if self.scope == "user" else f"team {self.name}"

    @property
    def most(self) -> int:
        """Return the nano-dollars that this daemon may charge in the period."""
        if self.keeper is not None:
            return self.allowance
        return (
            self.allowed - sum(each.allowance for each in self.given.values())
            if self.given
            else self.allowed
        )

    @property
    def left(self) -> int:
        return self.most - self.charged

    @property
    def used(self) -> int:
        """Return the nano-dollars that are known to be charged, on other nodes too."""
        return (
            self.charged + sum(each.charged for each in self.given.values())
            if self.given
            else self.charged
        )

    @property
    def exhausted(self) -> bool:
        return self.charged >= self.most

    @property
    def may_grow(self) -> bool:
        """Return whether more may come from other nodes in this period."""
        if self.keeper is not None:
            return not self.used_up
        return any(each.charged < each.allowance for each in self.given.values())

    def admits(self, more: int) -> bool:
        return self.charged + more <= self.most

    def sentence(self, reserved: int) -> str:
        """Return what is used of it, in words. `reserved`: the nano-dollars of `charged` that are
        only reserved."""
        most = "at most " if self.at_most else ""
        used, allowed, mine = (
            format_usd(to_usd(each)) for each in (self.used - reserved, self.allowed, self.most)
        )
        if self.keeper is not None:
            words = (
                f"{most}{used} USD here, of {mine} that node {self.keeper or '?'} has given of "
                f"{allowed} USD a {self.period}"
            )
            words += f" ({self.waits})" if self.waits is not None else ""
        elif self.given:
            held = format_usd(to_usd(self.held))
            words = (
                f"{most}{used} of {allowed} USD a {self.period} in the fleet, "
                f"and other nodes hold {held} more"
            )
        else:
            words = f"{most}{used} of {allowed} USD a {self.period}"
        if reserved:
            words += f" ({format_usd(to_usd(reserved))} more reserved)"
        return (
            f"{self.scope} {self.name} has used {words}; "
            f"it renews at {self.renews.replace('T', ' ')[:16]}"
        )

    @property
    def held(self) -> int:
        """Return the nano-dollars that other nodes may charge and have not."""
        return sum(max(0, each.allowance - each.charged) for each in self.given.values())


class Budgets:
    def __init__(self) -> None:
        self._by_user: dict[str, list[Budget]] = {}

    def __iter__(self) -> Iterator[Budget]:
        return iter(
            {
                (budget.scope, budget.name): budget
                for found in self._by_user.values()
                for budget in found
            }.values()
        )

    def know(self, budgets: Iterable[Budget]) -> None:
        self._by_user = {}
        for budget in budgets:
            for user in budget.members:
                self._by_user.setdefault(user, []).append(budget)

    def of(self, user: str) -> Sequence[Budget]:
        return self._by_user.get(user, ())

    def find(self, scope: str, name: str) -> Budget | None:
        return next(
            (budget for budget in self if (budget.scope, budget.name) == (scope, name)), None
        )

    def exhausted(self, user: str) -> Budget | None:
        """Return a budget of the user of which nothing will be left in this period. If other nodes
        may give some back, a run can start, and its calls wait."""
        return next(
            (budget for budget in self.of(user) if budget.exhausted and not budget.may_grow), None
        )
