"""A transcript of a machine with budgets."""

from __future__ import annotations

from typing import Any, Literal

from sfad.core import commands as c
from sfad.core import events as e
from sfad.core.state.money import to_nanos, to_usd
from sfad.features.budgets.budgets import Budget
from sfad.features.budgets.feature import NAME, BudgetsConfig
from sfad.features.budgets.messages import Allowance, Allowances, AskAllowances
from sfad.features.budgets.purses import BudgetPurses
from sfad.features.budgets.told import (
    AllowancesAsked,
    AllowancesKnown,
    BudgetsKnown,
    Charge,
    Draw,
)
from sfad.features.gateway.calls import Calls
from tests.core.test_adopting import Life
from tests.core.transcript import Transcript


def purse(
    usd: float, *members: str, team: str = "", charged: float = 0.0, begins: str = "today"
) -> Budget:
    """A money budget of a user, or of a team."""
    scope: Literal["user", "team"] = "team" if team else "user"
    who = frozenset(members)
    return Budget(
        scope,
        team or members[0],
        to_nanos(usd),
        who,
        begins=begins,
        renews="midnight",
        charged=to_nanos(charged),
    )


class Budgeted(Transcript):
    """A transcript in which runs spend budgets."""

    def __init__(
        self, *args: Any, action: Literal["pause", "terminate", "warn"] = "pause", **more: Any
    ) -> None:
        sections = {NAME: BudgetsConfig(action=action), **more.pop("sections", {})}
        super().__init__(*args, purses=BudgetPurses, calls=Calls, sections=sections, **more)
        self.machine.calls()

    @property
    def purses(self) -> BudgetPurses:
        """The half of them in the core."""
        found = self.machine.purses()
        assert isinstance(found, BudgetPurses)
        return found

    def budgets(self, *known: Budget) -> e.Told:
        """Budgets become known."""
        return e.Told(self.at, BudgetsKnown(known))

    def allowances(self, *given: Allowance, waits: str | None = None) -> e.Told:
        """The keeper gives these."""
        return e.Told(self.at, AllowancesKnown(given, waits))

    def asks(self, asked: AskAllowances) -> e.Told:
        """Another node asks this one, the keeper."""
        self.last_token += 1
        return e.Told(self.at, AllowancesAsked(asked, "here"), self.last_token)

    def _note_told(self, what: object) -> None:
        if isinstance(what, Charge):
            key = f"{what.scope} {what.name}"
            self.charged[key] = to_usd(to_nanos(self.charged.get(key, 0.0)) + what.nanos)

    def _words_of(self, what: object) -> str:
        assert isinstance(what, Charge | Draw)
        return f"{type(what).__name__.lower()} {what.scope} {what.name} {to_usd(what.nanos):g}"

    def given(self, token: int) -> list[float]:
        """Return what the keeper has answered a node, in USD."""
        answer = self.answers[token]
        assert isinstance(answer, c.OnRecord)
        assert isinstance(answer.reply, Allowances)
        return [each.usd for each in answer.reply.allowances]


class BudgetedLife(Budgeted, Life):
    """The same with several daemons, one after the other."""
