"""Money budgets of users and teams: pauses or ends live trees that can spend and whose budgets have
run out, and resumes them when there is money again. One machine may keep the budgets of
several, and give the others their parts (`state.allowances`)."""

from dataclasses import dataclass

from ...protocol.requests.allowances import Allowances
from ...protocol.types import Action, Reason, Status
from .. import commands as c
from .. import events as e
from ..context import Context
from ..life.pausing import Pausing
from ..life.spending import Spending
from ..life.stopping import Stopping
from ..state.allowances import give
from ..state.budgets import Budget, to_nanos, to_usd
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
        self._ctx.measured |= bool(ev.budgets or list(self._spending.budgets))
        self._spending.budgets.know(ev.budgets)
        self.enforce(ev.at)

    def enforce(self, at: float) -> None:
        """Pause or end each live tree whose budgets have run out, and resume those that were paused
        only for that."""
        used_up = self._spending.take_used_up()
        for root in self._ctx.tree.roots():
            self._enforce_on(root, used_up, at)

    def allowances_asked(self, ev: e.AllowancesAsked) -> None:
        """Give another machine its part of budgets."""
        given = []
        for wanted in ev.wanted:
            budget = self._spending.budgets.find(wanted.scope, wanted.name)
            before = budget.left if budget is not None else 0
            given.append(give(budget, ev.node, ev.number, wanted, here=ev.here))
            if budget is not None:
                budget.short &= budget.left <= before
                self._ctx.do(c.SaveBudget(wanted.scope, wanted.name))
        self._spending.budgets_changed = self._ctx.measured = True
        self._ctx.reply(ev.token, Allowances(id=0, number=ev.number, allowances=given))

    def allowances_known(self, ev: e.AllowancesKnown) -> None:
        """Go on with what the keeper has given, or without its answer."""
        known = {(each.scope, each.name): each for each in ev.allowances}
        for budget in self._spending.budgets:
            allowance = known.get((budget.scope, budget.name))
            if budget.keeper is None or (
                allowance is not None and allowance.begins != budget.begins
            ):
                continue
            if allowance is None:
                budget.waits = ev.waits if budget.asked else budget.waits
                budget.asked &= ev.waits is None
                continue
            more = to_nanos(allowance.usd) - budget.allowance
            budget.allowance += more
            budget.asked, budget.waits, budget.used_up = False, allowance.waits, allowance.used_up
            budget.short &= more <= 0
            self._ctx.do(c.SaveBudget(budget.scope, budget.name))
        self._spending.budgets_changed = True

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
        budget = next(
            (budget for budget in budgets if (budget.scope, budget.name) in used_up), None
        )
        action = self._ctx.policy.budget_action
        if budget is None or action is Action.WARN:
            self._resume_funded(root, at)
        elif root.status not in {Status.RUNNING, Status.PAUSED} or not root.tree_can_spend:
            return
        elif action is Action.TERMINATE and not budget.may_grow:
            self._stopping.stop_for(root, self._out_of_money(ReasonKind.LIMIT, budget), at)
        else:
            self._pause(root, self._out_of_money(ReasonKind.BUDGET, budget), at)

    def _pause(self, root: Run, reason: Reason, at: float) -> None:
        paused = root.paused
        if paused is None:
            self._pausing.pause(root, at, reason.message, no_money=reason)
        elif paused.no_money != reason:
            if paused.no_money is None:
                paused.by_hand = paused.by_hand or (
                    root.limit_hold is None and root.window_hold is None
                )
            paused.no_money = reason
            self._ctx.changed(root)

    def _resume_funded(self, root: Run, at: float) -> None:
        paused = root.paused
        if paused is None or paused.no_money is None:
            return
        stays = paused.by_hand or root.limit_hold is not None or root.window_hold is not None
        paused.no_money = None
        paused.by_hand = paused.by_hand and root.window_hold is not None
        self._ctx.changed(root)
        if not stays:
            self._pausing.resume(root, at)
            self._limit_enforcement.enforce_subtree(root, at)

    def _out_of_money(self, kind: ReasonKind, budget: Budget) -> Reason:
        return Reason(
            kind=kind,
            message=f"there is no money left in a budget: {self._spending.sentence_of(budget)}",
            # no limit of the run is to be raised
            limit_kind="cost" if kind is ReasonKind.LIMIT else None,
            threshold=to_usd(budget.allowed),
            **self._spending.numbers_of(budget, exceeded=True),
        )
