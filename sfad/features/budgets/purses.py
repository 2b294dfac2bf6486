"""The half of it in the core: charges budgets, refuses what they have no room for, pauses or ends
live trees that can spend and whose budgets have run out, and resumes them when there is money
again. It is pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import assert_never

from msgspec import Struct

from ...core import commands as c
from ...core import events as e
from ...core.limits.enforcement import after_cut
from ...core.machine import Components
from ...core.purses import Purse, Purses, Shortage
from ...core.state.account import ChargedTo
from ...core.state.limits import ActiveLimit
from ...core.state.money import to_core, to_nanos, to_usd, to_wire
from ...core.state.policy import Invalid
from ...core.state.run import Run
from ...core.state.vocabulary import ReasonKind
from ...protocol.event_types import EventType
from ...protocol.kinds import KINDS
from ...protocol.texts.units import format_usd
from ...protocol.types import Action, Event, Limit, LimitKind, LimitRefusal, Reason, Status
from .allowances import give
from .budgets import Budget
from .charges import Charges
from .messages import Allowances
from .told import AllowancesAsked, AllowancesKnown, BudgetsKnown


class Money(Struct, frozen=True):
    """A budget as a model call sees it."""

    budget: Budget
    _of: BudgetPurses
    what: str = "a budget"

    @property
    def left(self) -> int:
        return self.budget.left

    @property
    def doubts(self) -> int:
        return self._of.charges.doubts_of(self.budget)

    @property
    def reserved(self) -> int:
        return self._of.charges.reserved_of(self.budget)

    def draws(self, nanos: int) -> bool:
        return self._of.charges.draw_if_possible(self.budget, nanos)

    def refuse(self, more: int, at: float) -> str:
        why = over_budget(self.budget, more, self.reserved).message
        self._of.run_short(self.budget, at)
        return why


class BudgetPurses(Purses):
    def __init__(self, components: Components) -> None:
        self._ctx = components.context
        self._stopping, self._pausing = components.stopping, components.pausing
        self._limits = components.limits
        self.charges = Charges(self._ctx, components.spending.under_way)
        self.budgets = self.charges.budgets
        self.known: Sequence[Budget] = ()
        self._postponed: list[e.SpawnRequested | e.ReserveRequested] = []
        """Requests that wait for more of a budget from another node."""

    # ---- what the part tells

    def told(self, ev: e.Told) -> Sequence[e.SpawnRequested | e.ReserveRequested]:
        what = ev.what
        assert isinstance(what, BudgetsKnown | AllowancesAsked | AllowancesKnown)
        match what:
            case BudgetsKnown():
                self._budgets_known(what, ev.at)
            case AllowancesAsked():
                self._allowances_asked(what, ev)
            case AllowancesKnown():
                self._allowances_known(what)
                postponed, self._postponed = self._postponed, []
                return postponed
            case _:
                assert_never(what)
        return ()

    def _budgets_known(self, what: BudgetsKnown, at: float) -> None:
        self._ctx.measured |= bool(what.budgets or self.known)
        self.budgets.know(what.budgets)
        self.known = tuple(self.budgets)
        self.look(at)

    def _allowances_asked(self, what: AllowancesAsked, ev: e.Told) -> None:
        """Give a node of the fleet its part of budgets."""
        given, asked = [], what.asked
        for wanted in asked.wanted:
            budget = self.budgets.find(wanted.scope, wanted.name)
            before = budget.left if budget is not None else 0
            given.append(give(budget, asked.node, asked.number, wanted, here=what.here))
            if budget is not None:
                budget.short &= budget.left <= before
                self.charges.save(budget)
        self.changed = self._ctx.measured = True
        assert ev.token is not None
        # else the next daemon gives it again
        failing = "the keeper cannot record what it gives: its disk is full, or does not answer"
        reply = Allowances(id=asked.id, number=asked.number, allowances=given)
        self._ctx.reply(ev.token, c.OnRecord(reply, failing))

    def _allowances_known(self, what: AllowancesKnown) -> None:
        """Go on with what the keeper has given, or without its answer."""
        known = {(each.scope, each.name): each for each in what.allowances}
        for budget in self.budgets:
            allowance = known.get((budget.scope, budget.name))
            if budget.keeper is None or (
                allowance is not None and allowance.begins != budget.begins
            ):
                continue
            if allowance is None:
                budget.waits = what.waits if budget.asked else budget.waits
                budget.asked &= what.waits is None
                continue
            more = to_nanos(allowance.usd) - budget.allowance
            budget.allowance += more
            budget.asked, budget.waits, budget.used_up = False, allowance.waits, allowance.used_up
            budget.short &= more <= 0
            self.charges.save(budget)
        self.changed = True

    def client_gone(self, client: int) -> None:
        self._postponed = [
            each
            for each in self._postponed
            if not isinstance(each, e.SpawnRequested) or each.asked.tied_to != client
        ]

    # ---- who else must agree

    def shortage(self, user: str, at: float) -> Shortage | None:
        budget = self.budgets.exhausted(user)
        if budget is None:
            return None
        reserved = self.charges.reserved_of(budget)
        sentence = budget.sentence(reserved)
        return Shortage(
            budget.key,
            sentence,
            f"there is no money left in the budget: {sentence}",
            to_usd(budget.used - reserved),
            to_usd(budget.allowed),
            to_usd(reserved),
            None if budget.renews_at is None else max(0.0, budget.renews_at - at),
        )

    def postpones(self, run: Run, ev: e.SpawnRequested) -> bool:
        least = _least_share(run)
        waits = any(
            self.charges.draw_if_possible(each, least)
            for each in self._binding(run)
            if least > each.left
        )
        if waits:
            self._postponed.append(ev)
        return waits

    def share_out(self, run: Run) -> None:
        for budget in self._binding(run):
            own, kind, left = run.limits.get(LimitKind.COST), LimitKind.COST, budget.left
            if left < to_core(kind, KINDS[kind].least):
                words = self.charges.sentence_of(budget)
                raise Invalid(f"no share fits in what is left of a budget: {words}")
            if own is None or not own.binds or own.threshold > left:
                action = own.action if own is not None and own.binds else Action.TERMINATE
                run.limits[kind] = ActiveLimit(
                    Limit(kind=kind, threshold=to_wire(kind, left), action=action,
                          source=budget.key)
                )  # fmt: skip

    def refuses(self, run: Run, ev: e.ReserveRequested) -> bool:
        cost = ev.reservation.cost or 0
        budget = self.charges.check(run, cost)
        if budget is not None and self.charges.draw_if_possible(budget, cost):
            self._postponed.append(ev)
        elif budget is not None:
            refusal = over_budget(budget, cost, self.charges.reserved_of(budget))
            self._ctx.reply(ev.token, c.ReserveAnswer(run, None, refusal))
        return budget is not None

    def of(self, run: Run) -> Iterable[Purse]:
        return [Money(budget, self) for budget in self._binding(run)]

    def _binding(self, run: Run) -> Sequence[Budget]:
        return self.charges.of(run) if self.charges.action is not Action.WARN else ()

    def cut(self, run: Run, words: str) -> tuple[str, str]:
        budget = next((budget for budget in self.charges.of(run) if budget.near), None)
        why = (
            self.charges.sentence_of(budget)
            if budget is not None
            else "a budget that has been raised since had no room for more"
        )
        words, then = f"{words}; {why}", after_cut(self.charges.action)
        if run.cut is None and budget is None:
            self._ctx.publish(EventType.RUN_PROGRESS, run, words)
        elif run.cut is None and budget is not None:
            told = Event(
                type=EventType.LIMIT_EXCEEDED, severity="medium", message=f"{words}; {then}",
                scope=budget.scope, limit_kind=LimitKind.COST, threshold=to_usd(budget.allowed),
                **self.charges.numbers_of(budget),
            )  # fmt: skip
            self._ctx.publish_event(told, run)
        return words, then

    def teams(self, user: str) -> Sequence[str]:
        return [budget.name for budget in self.budgets.of(user) if budget.scope == "team"]

    # ---- what they are told

    def charged_to(self, run: Run) -> ChargedTo:
        return tuple((each.scope, each.name, each.begins) for each in self.charges.of(run))

    def charge(self, run: Run, nanos: int | None, charged_to: ChargedTo | None) -> None:
        if nanos is not None:
            self.charges.charge(run, nanos, charged_to)
        self.changed |= any(budget.over or budget.exhausted for budget in self.charges.of(run))

    def close(self, run: Run) -> None:
        self.charges.mark(run)

    # ---- what follows

    def look(self, at: float) -> None:
        self.changed = False
        used_up = self.charges.used_up(self.budgets)
        for root in self._ctx.tree.roots():
            self._enforce_on(root, used_up, at)

    def look_at(self, run: Run, at: float) -> None:
        budgets, root = self.charges.of(run), run.root
        if budgets or root.no_money is not None:
            self._enforce_on(root, self.charges.used_up(budgets), at)

    def restore(self, run: Run) -> None:
        """What it has paused is resumed when the part tells that there is money."""

    def run_short(self, budget: Budget, at: float) -> None:
        """Take the action for a budget of which too little is left for a model call."""
        budget.short = self._ctx.measured = True
        self.look(at)

    def _enforce_on(self, root: Run, used_up: set[tuple[str, str]], at: float) -> None:
        budgets = self.charges.of(root)
        budget = next(
            (budget for budget in budgets if (budget.scope, budget.name) in used_up), None
        )
        action = self.charges.action
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
            self._limits.enforce_subtree(root, at)

    def _out_of_money(self, kind: ReasonKind, budget: Budget) -> Reason:
        return Reason(
            kind=kind,
            message=f"there is no money left in a budget: {self.charges.sentence_of(budget)}",
            # no limit of the run is to be raised
            limit_kind="cost" if kind is ReasonKind.LIMIT else None,
            threshold=to_usd(budget.allowed),
            **self.charges.numbers_of(budget, exceeded=True),
        )


def over_budget(budget: Budget, more: int, reserved: int) -> LimitRefusal:
    return LimitRefusal(
        scope=budget.scope,
        whose=budget.name,
        limit_kind=LimitKind.COST,
        threshold=to_usd(budget.allowed),
        used=to_usd(budget.used - reserved),
        reserved=to_usd(reserved),
        asked=to_usd(more),
        message=f"not reserved: {format_usd(to_usd(more))} USD more is not left in the budget: "
        f"{budget.sentence(reserved)}. Finish with what you have.",
    )


def _least_share(run: Run) -> int:
    """Return the nano-dollars that a run takes out of its user's budgets at least: its own limit of
    cost, if it has one."""
    own = run.limits.get(LimitKind.COST)
    return int(
        own.threshold
        if own is not None and own.binds
        else to_core(LimitKind.COST, KINDS[LimitKind.COST].least)
    )


purses = BudgetPurses
"""What the core makes when there are budgets."""
