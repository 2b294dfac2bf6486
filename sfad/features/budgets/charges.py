"""What is charged to budgets, what of that is only reserved, and what is published of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...core import commands as c
from ...core.context import Context, Reading
from ...core.life.spending import CallsUnderWay
from ...core.state.account import ChargedTo
from ...core.state.limits import Numbers, numbers_of
from ...core.state.money import to_usd
from ...core.state.run import Run
from ...protocol.event_types import EventType
from ...protocol.texts.units import format_usd
from ...protocol.types import Action, Event, LimitKind
from .budgets import Budget, Budgets
from .feature import NAME, BudgetsConfig
from .told import Charge, Draw


class Charges:
    def __init__(self, context: Context, under_way: CallsUnderWay) -> None:
        self._ctx = context
        self._under_way = under_way
        self.budgets = Budgets()
        self.unsaved: set[tuple[str, str]] = set()
        """Budgets of which more is known than when this was emptied."""
        context.readings.append(self._measured)

    @property
    def action(self) -> Action:
        return Action(self._ctx.policy.section(NAME, BudgetsConfig).action)

    def of(self, run: Run) -> Sequence[Budget]:
        """Return the budgets that a run is charged to: none, if another node has granted its tree
        and charged all of it."""
        return () if run.granted else self.budgets.of(run.user)

    # ---- charges

    def charge(self, run: Run, nanos: int, charged_to: ChargedTo | None) -> None:
        """`charged_to`: where what is given back was charged."""
        for budget in self.of(run):
            change = max(nanos, -budget.charged)
            if (
                change < 0
                and charged_to is not None
                and (budget.scope, budget.name, budget.begins) not in charged_to
            ):
                continue  # it was charged to an earlier period
            if change:
                budget.charged += change
                self._ctx.measured = True
                self._do_charge(budget, change)
            if not budget.near and self._has_used(budget, self._ctx.policy.limits.nearing):
                budget.near = True
                self._publish(EventType.LIMIT_NEARING, run, budget)
            if not budget.over and self._has_used(budget, 1):
                budget.over = True
                self._publish(EventType.LIMIT_EXCEEDED, run, budget)

    def mark(self, run: Run) -> None:
        """Note what is unsure of the figures of a run that ends."""
        for budget in self.of(run):
            marks = budget.partial, budget.at_most
            budget.partial |= run.account.cost_may_grow
            budget.at_most |= run.account.cost_at_most
            if marks != (budget.partial, budget.at_most):
                self._do_charge(budget, 0)  # so that it is saved

    def _do_charge(self, budget: Budget, nanos: int) -> None:
        self.save(budget, used=True)
        self._ctx.do(c.Tell(NAME, Charge(budget.scope, budget.name, nanos)))

    def save(self, budget: Budget, *, used: bool = False) -> None:
        """Save what is known of a budget before anything else is done."""
        self.unsaved.add((budget.scope, budget.name))
        self._ctx.do(c.SaveOf(NAME, used=used))

    def _has_used(self, budget: Budget, part: float) -> bool:
        """Return whether so much of a budget is used. What is only reserved may be given back."""
        most = part * budget.allowed
        return budget.used >= most and budget.used - self.reserved_of(budget) >= most

    # ---- what is left

    def check(self, run: Run, cost: int) -> Budget | None:
        """Return the budget in which so much more is not left, and publish that once a period."""
        budget = next((budget for budget in self.of(run) if not budget.admits(cost)), None)
        if budget is not None and not (
            budget.refused or budget.over or self.draw_if_possible(budget, cost)
        ):
            budget.refused = True
            self._publish(EventType.LIMIT_EXCEEDED, run, budget, cost)
        return budget

    def draw_if_possible(self, budget: Budget, nanos: int) -> bool:
        """Return whether other nodes may give this one more of a budget, so that what needs it
        waits. `nanos`: how much has to be left of it."""
        if budget.keeper is None or budget.used_up or self.action is Action.WARN:
            return False
        if not budget.asked and budget.waits is None:
            budget.asked = True
            self._ctx.do(c.Tell(NAME, Draw(budget.scope, budget.name, nanos)))
        return budget.asked

    def used_up(self, budgets: Iterable[Budget]) -> set[tuple[str, str]]:
        """Return the budgets that have run out by what was used. What is only reserved may be given
        back by a run that is not paused."""
        return {
            (budget.scope, budget.name)
            for budget in budgets
            if (budget.short or (budget.exhausted and self._is_used_up(budget)))
            and not self.draw_if_possible(budget, 1)
        }

    def _is_used_up(self, budget: Budget) -> bool:
        return budget.charged - self.reserved_of(budget) >= budget.most

    def reserved_of(self, budget: Budget) -> int:
        """Return what was charged to a budget in its present period and is only reserved."""
        key = (budget.scope, budget.name, budget.begins)
        accounts = (run.account for run in self._ctx.tree if run.account.reservations)
        return sum(
            min(
                account.own_reserved(LimitKind.COST),
                sum(
                    each.cost or 0 for each in account.reservations.values() if key in each.periods
                ),
            )
            for account in accounts
        )

    def doubts_of(self, budget: Budget) -> int:
        """Return what calls under way may cost beyond what they have charged to a budget."""
        return sum(map(self._under_way.doubts, budget.members))

    # ---- what is told

    def _measured(self, share: float, _at: float) -> dict[tuple[str, str], Reading]:
        """Return the budgets of which such a share is used. A budget of nothing cannot run out."""
        near = (
            each
            for each in self.budgets
            if each.allowed and (each.short or each.used >= share * each.allowed)
        )
        return {("budget", budget.whose): self._reading_of(budget) for budget in near}

    def _reading_of(self, budget: Budget) -> Reading:
        used = budget.used - self.reserved_of(budget)  # what is only reserved may be given back
        words = self.sentence_of(budget)
        if budget.short:
            words = f"too little is left for a model call: {words}"
        return Reading(
            round(used / budget.allowed, 4), None, budget.short or used >= budget.allowed, words
        )

    def sentence_of(self, budget: Budget) -> str:
        return budget.sentence(self.reserved_of(budget))

    def numbers_of(self, budget: Budget, refused: int = 0, *, exceeded: bool = False) -> Numbers:
        threshold = budget.allowed if exceeded else None
        counted, reserved = budget.used + refused, self.reserved_of(budget)
        return numbers_of(LimitKind.COST, counted, reserved, refused, threshold)

    def _publish(
        self, what: EventType, run: Run, budget: Budget, refused: int | None = None
    ) -> None:
        words = self.sentence_of(budget)
        if refused is not None:
            words = f"was refused {format_usd(to_usd(refused))} USD more: {words}"
        event = Event(
            type=what,
            severity="medium",
            message=words,
            scope=budget.scope,
            limit_kind=LimitKind.COST,
            threshold=to_usd(budget.allowed),
            **self.numbers_of(budget, refused or 0, exceeded=what is EventType.LIMIT_EXCEEDED),
            refused=refused is not None,
        )
        self._ctx.publish_event(event, run)
