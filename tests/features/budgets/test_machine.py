"""The machine with budgets against the simulated shell."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar, Literal

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from msgspec.structs import replace

from sfad.core import events as e
from sfad.core.purses import Purses
from sfad.core.state.money import NANOS
from sfad.core.state.policy import Policy
from sfad.features.budgets.budgets import Budget
from sfad.features.budgets.feature import NAME, BudgetsConfig
from sfad.features.budgets.purses import BudgetPurses
from sfad.features.budgets.told import BudgetsKnown, Charge
from sfad.protocol.types import Action, Status
from tests.core.machine_model import Purse, World
from tests.core.test_machine_stateful import (
    SELDOM,
    SETTINGS,
    USERS,
    MachineAgainstShell,
)
from tests.core.test_storm import WALKS, Printing, Walk, walked

ACTIONS: st.SearchStrategy[Literal["pause", "terminate", "warn"]] = st.sampled_from(
    ["pause", "pause", "terminate", "warn"]
)


class BudgetedWorld(World):
    """A world whose runs spend budgets."""

    PURSES: ClassVar[type[Purses] | None] = BudgetPurses

    @property
    def half(self) -> BudgetPurses:
        """The half of them in the core."""
        found = self.machine.purses()
        assert isinstance(found, BudgetPurses)
        return found

    def know(self, budgets: tuple[Budget, ...]) -> None:
        """Announce the budgets as they are."""
        self.purses = {(b.scope, b.name): Purse(b.members, b.allowed, b.charged) for b in budgets}
        self.feed(e.Told(self.now, BudgetsKnown(budgets)))

    def know_again(self) -> None:
        known = tuple(
            Budget(scope, name, purse.allowed, purse.members, charged=purse.charged)  # type: ignore[arg-type]
            for (scope, name), purse in self.purses.items()
        )
        self.feed(e.Told(self.now, BudgetsKnown(known)))

    def told(self, what: object) -> None:
        assert isinstance(what, Charge)
        assert (what.scope, what.name) in self.half.charges.unsaved
        self.charged((what.scope, what.name), what.nanos)


class BudgetsAgainstShell(MachineAgainstShell):
    """The same rules and invariants, and those of budgets."""

    WORLD = BudgetedWorld

    @property
    def budgeted(self) -> BudgetedWorld:
        assert isinstance(self.world, BudgetedWorld)
        return self.world

    def with_features(self, policy: Policy, data: st.DataObject) -> Policy:
        action = data.draw(ACTIONS)
        return replace(policy, sections={**policy.sections, NAME: BudgetsConfig(action=action)})

    def fund(self) -> None:
        self.learn(4 * NANOS, team=True, renewed=False)

    @precondition(lambda self: self.world.live)
    @rule(
        allowed=st.sampled_from([500_000_000, 4 * NANOS, 64 * NANOS]),
        team=st.booleans(),
        renewed=st.booleans(),
        really=SELDOM,
    )
    def budgets_known(self, allowed: int, team: bool, renewed: bool, really: bool) -> None:
        """Budgets become known, or are renewed."""
        if really or not self.world.purses:
            self.learn(allowed, team=team, renewed=renewed)

    def learn(self, allowed: int, *, team: bool, renewed: bool) -> None:
        world = self.budgeted
        wanted = [("user", "ann", frozenset({"ann"}))] + (
            [("team", "crew", frozenset(USERS))] if team else []
        )
        kept = {key: 0 if renewed else purse.charged for key, purse in world.purses.items()}
        world.know(
            tuple(
                Budget(scope, name, allowed, who, charged=kept.get((scope, name), 0))  # type: ignore[arg-type]
                for scope, name, who in wanted
            )
        )

    @invariant()
    def no_tree_goes_on_without_money(self) -> None:
        """Where budgets pause, a tree that can spend is paused for a budget exactly while one has
        run out."""
        charges = self.budgeted.half.charges
        empty, budgets = charges.used_up(charges.budgets), charges.budgets
        pauses = charges.action is Action.PAUSE
        for root in self.world.machine.tree.roots():
            spent = any((budget.scope, budget.name) in empty for budget in budgets.of(root.user))
            if root.status in {Status.RUNNING, Status.PAUSED}:
                assert (root.no_money is not None) == (spent and pauses and root.tree_can_spend)
            assert root.no_money is None or root.paused

    @invariant()
    def charges_add_up(self) -> None:
        """What the core knows to be charged is what was told of it."""
        for budget in self.budgeted.half.budgets:
            assert budget.charged == self.world.purses[budget.scope, budget.name].charged


BudgetsAgainstShell.TestCase.settings = SETTINGS
TestBudgetsAgainstShell = BudgetsAgainstShell.TestCase


# ---- random walks


class Spending(Walk):
    """A walk in which budgets are renewed now and then."""

    SHELL = BudgetsAgainstShell

    def __init__(self, number: int) -> None:
        super().__init__(number)
        early = (self.drain, self.re_execute)
        at = next(index for index, (_, step) in enumerate(self.steps) if step in early)
        self.steps.insert(at, (0.5, self.budgets))

    def begin(self) -> None:
        self.budgets()

    def budgets(self) -> None:
        assert isinstance(self.shell, BudgetsAgainstShell)
        self.shell.learn(
            self.dice.choice([NANOS, 4 * NANOS, 64 * NANOS]),
            team=self.dice.random() < 0.5,
            renewed=self.dice.random() < 0.5,
        )


class PrintingAndSpending(Spending, Printing):
    """The same of runs that print in one another."""


def test_walks() -> None:
    done: Counter[str] = Counter()
    for number in WALKS:
        try:
            done += walked(number, Spending)
        except BaseException as error:
            error.add_note(f"in walk {number}")
            raise
    for met in ("Tell", "run_paused", "run_resumed", "limit_exceeded time"):
        assert sum(count for name, count in done.items() if name.startswith(met)) > 2, met


def test_walks_among_runs_that_print_in_one_another() -> None:
    for number in WALKS[:8]:
        try:
            walked(number, PrintingAndSpending)
        except BaseException as error:
            error.add_note(f"in walk {number}")
            raise
