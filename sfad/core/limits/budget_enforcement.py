"""Pauses or ends live trees that can spend and whose budgets have run out, and resumes them when there is money again."""

from dataclasses import dataclass

from ...protocol.types import Action, Reason, Status
from .. import events as e
from ..context import Context
from ..life.pausing import Pausing
from ..life.spending import Spending
from ..life.stopping import Stopping
from ..state.budgets import Budget
from ..state.money import to_usd
from ..state.run import Run
from ..state.vocabulary import ReasonKind
from .enforcement import LimitEnforcement


@dataclass(frozen=True, slots=True)
class BudgetEnforcement:
    _ctx: Context
    _spending: Spending
    _stopping: Stopping
    _pausing: Pausing
    _limit_enforcement: LimitEnforcement

    def budgets_known(self, ev: e.BudgetsKnown) -> None:
        self._spending.budgets.know(ev.budgets)
        self.enforce(ev.at)

    def enforce(self, at: float) -> None:
        """Pause or end each live tree whose budgets have run out, and resume those that were paused only for that."""
        used_up = self._spending.take_used_up()
        for root in self._ctx.tree.roots():
            self._enforce_on(root, used_up, at)

    def run_short(self, budget: Budget, at: float) -> None:
        """Take the action for a budget of which too little is left for a model call."""
        self._spending.found_short(budget)
        self.enforce(at)

    def enforce_on(self, run: Run, at: float) -> None:
        """Do the same for the tree of a run that has just been launched."""
        budgets, root = self._spending.budgets_of(run), run.root
        if budgets or root.no_money is not None:
            self._enforce_on(root, self._spending.used_up(budgets), at)

    def agent_seen(self, run: Run, at: float) -> None:
        """Note that a run holds an agent program, so that its tree can spend."""
        if not run.holds_agent:
            run.holds_agent = True
            self._ctx.changed(run)
            self.enforce_on(run, at)

    def _enforce_on(self, root: Run, used_up: set[tuple[str, str]], at: float) -> None:
        budgets = self._spending.budgets_of(root)
        budget = next((budget for budget in budgets if (budget.scope, budget.name) in used_up), None)
        action = self._ctx.policy.budget_action
        if budget is None or action is Action.WARN:
            self._resume_funded(root, at)
        elif root.status not in {Status.RUNNING, Status.PAUSED} or not root.tree_can_spend:
            return
        elif action is Action.TERMINATE:
            self._stopping.stop_for(root, _out_of_money(ReasonKind.LIMIT, budget), at)
        else:
            self._pause(root, _out_of_money(ReasonKind.BUDGET, budget), at)

    def _pause(self, root: Run, reason: Reason, at: float) -> None:
        paused = root.paused
        if paused is None:
            self._pausing.pause(root, at, reason.message, no_money=reason)
        elif paused.no_money != reason:
            if paused.no_money is None:
                paused.by_hand = root.breach is None
            paused.no_money = reason
            self._ctx.changed(root)

    def _resume_funded(self, root: Run, at: float) -> None:
        paused = root.paused
        if paused is None or paused.no_money is None:
            return
        stays = paused.by_hand or root.breach is not None
        paused.no_money, paused.by_hand = None, False
        self._ctx.changed(root)
        if not stays:
            self._pausing.resume(root, at)
            self._limit_enforcement.enforce_subtree(root, at)


def _out_of_money(kind: ReasonKind, budget: Budget) -> Reason:
    return Reason(
        kind=kind,
        message=f"there is no money left in a budget: {budget.sentence}",
        limit_kind="cost" if kind is ReasonKind.LIMIT else None,  # no limit of the run is to be raised
        threshold=to_usd(budget.allowed),
        used=round(to_usd(budget.charged), 6),
        exceeded_by=round(to_usd(max(0, budget.charged - budget.allowed)), 6),
    )
