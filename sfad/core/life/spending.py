"""What runs spend: their accounts, their ancestors' accounts, and the money budgets of their users
and teams."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace as dataclass_replace
from typing import Any

from msgspec.structs import replace

from ...protocol.event_types import EventType
from ...protocol.kinds import TREE_USE
from ...protocol.types import Action, Event, LimitKind, Source, Status
from ...protocol.units import format_usd
from .. import commands as c
from .. import events as e
from ..context import Context, Reading
from ..state.account import (
    NO_TREE_USE,
    NOTHING,
    OF_AGENT,
    OpenReservation,
    Periods,
    TreeUse,
    Use,
    add_below,
    add_ended,
)
from ..state.budgets import Budget, Budgets, to_usd
from ..state.limits import Numbers, numbers_of
from ..state.run import Run

# ---- What the calls under way of each user take, summed when one begins or ends: no decision asks
# every live run for it


class CallsUnderWay:
    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._doubts: Counter[str] = Counter()

    def begin(self, user: str, reservation: OpenReservation) -> None:
        self._counts[user] += reservation.messages
        self._doubts[user] += reservation.more_cost

    def end(self, user: str, reservation: OpenReservation) -> None:
        self._counts[user] -= reservation.messages
        self._doubts[user] -= reservation.more_cost

    def count(self, user: str) -> int:
        return self._counts.get(user, 0)

    def doubts(self, user: str) -> int:
        """Return nano-dollars that they may cost beyond what they have charged."""
        return self._doubts.get(user, 0)


# ---- Accounts and budgets


_COST = TREE_USE.index(LimitKind.COST)


def _marked(run: Run, source: Source, use: Use) -> Use:
    """Return what a source tells, as partial if it is known not to know of all calls."""
    misses = run.goes_around if source == "gateway" else run.misses_calls and source in OF_AGENT
    return dataclass_replace(use, partial=True) if misses else use


def _print_in(run: Run) -> Iterator[Run]:
    """Yield the runs above whose output holds what this one prints, the nearest first."""
    name = run.asked.prints_in
    for above in reversed(run.ancestors):
        if above.id == name:
            yield above
            name = above.asked.prints_in


def _agent_cost_counts(run: Run) -> bool:
    return run.goes_around or run.asked.sources.tells_each_call


class Spending:
    def __init__(self, context: Context, reserved: int = 0) -> None:
        """`reserved`: so many reservations may have been made before; their names are not used
        again."""
        self._ctx = context
        self.budgets = Budgets()
        self.under_way = CallsUnderWay()
        self._last_reservation = reserved
        self.budgets_changed = False
        """A budget may have run out, or have been given back to, since `take_used_up`."""
        context.readings.append(self._measured)
        self.postponed: list[e.SpawnRequested | e.ReserveRequested] = []
        """Requests that wait for more of a budget from another node."""

    def restore(self, runs: Sequence[Run]) -> None:
        """Continue with what an earlier daemon has counted for all its runs. Each was saved at
        another moment, so their sums are counted again: whatever is given back later was part of
        them."""
        for run in runs:
            run.account.agent_cost_counts = _agent_cost_counts(run)
            for reservation in run.account.reservations.values():
                self.under_way.begin(run.user, reservation)
            run.account.below = dict(run.account.ended)
            run.account.reserved_below = {}
            run.account.printed = run.account.printed_ended.get(LimitKind.TOKENS, 0)
            self._last_reservation = max(
                [
                    self._last_reservation,
                    *(int(name.rpartition("-")[2]) for name in run.account.reservations),
                ]
            )
        # children first: what they print is a part of what the runs above tell
        for run in sorted(runs, key=lambda run: len(run.lineage), reverse=True):
            own = run.account.own_tree_use()
            add_below((above.account for above in run.ancestors), NO_TREE_USE, own)
            for prints in _print_in(run):
                prints.account.printed += own.tokens

    def set_use(self, run: Run, source: Source, use: Use) -> None:
        """Take what a source tells of the run's use in all."""
        before = run.account.own_tree_use()
        run.account.sources[source] = _marked(run, source, use)
        self._count(run, before)

    def note_around(self, run: Run) -> None:
        """Note that the run has called its model around the gateway: what that saw is not all."""
        before = run.account.own_tree_use()
        if (seen := run.account.sources.get("gateway")) is not None:
            run.account.sources["gateway"] = _marked(run, "gateway", seen)
        self._count(run, before)

    def end_call(self, run: Run, name: str, used: Use, **how: Any) -> None:
        """Replace a call's reservation by what it has used, and have the call recorded. `how`:
        other fields of its `CallInfo`."""
        reservation = run.account.reservations[name]
        self.add_use(run, used, settled=name)
        self._record(run, reservation, used, **how)

    def _record(self, run: Run, reservation: OpenReservation, used: Use, **how: Any) -> None:
        if reservation.call is None:
            return
        ended = replace(
            reservation.call,
            input_tokens=used.input_tokens,
            cached_tokens=used.cached_tokens,
            output_tokens=used.output_tokens,
            cost_usd=to_usd(used.cost),
            partial=used.partial,
            at_most=used.at_most,
            **({"state": "ended"} | how),
        )
        self._ctx.do(c.RecordCall(ended, run.lineage_ids))

    def add_use(self, run: Run, more: Use, *, settled: str | None = None) -> None:
        """Add to what was reported of the run, or to what the gateway saw. `settled`: the
        reservation that it replaces."""
        before = run.account.own_tree_use()
        source: Source = "report"
        periods = None
        if settled is not None:
            reservation = self._release(run, settled)
            source, periods = reservation.source, reservation.periods
        known = run.account.sources.get(source, NOTHING)
        run.account.sources[source] = _marked(run, source, known.plus(more))
        self._ctx.changed(run)
        self._count(run, before, periods)

    def _count(self, run: Run, before: TreeUse, periods: Periods | None = None) -> None:
        run.account.agent_cost_counts = _agent_cost_counts(run)
        after = run.account.own_tree_use()
        if after != before:
            add_below((above.account for above in run.ancestors), before, after)
            change = after.counted[_COST] - before.counted[_COST]
            if run.asked.prints_in is not None:
                # charged in one sum: it may be counted for another run now, and cost no more
                change += self._count_once(run, after.tokens - before.tokens)
            self._charge(run, change, periods)
        self._ctx.used_more(run)
        self.budgets_changed |= any(
            budget.over or budget.exhausted for budget in self.budgets_of(run)
        )

    def _count_once(self, run: Run, tokens: int) -> int:
        """Leave so many more tokens of the run out of what the runs tell that print what it prints.
        Return by how many nano-dollars that changes their costs."""
        change = 0
        for prints in _print_in(run):
            before = prints.account.own_tree_use()
            prints.account.printed += tokens
            after = prints.account.own_tree_use()
            add_below((above.account for above in prints.ancestors), before, after)
            self._ctx.used_more(prints)
            change += after.counted[_COST] - before.counted[_COST]
            change += self._count_once(prints, after.tokens - before.tokens)
        return change

    def _charge(self, run: Run, nanos: int, periods: Periods | None) -> None:
        """`periods`: when what is given back was charged."""
        for budget in self.budgets_of(run):
            change = max(nanos, -budget.charged)
            if (
                change < 0
                and periods is not None
                and (budget.scope, budget.name, budget.begins) not in periods
            ):
                continue  # it was charged to an earlier period
            if change:
                budget.charged += change
                self._ctx.measured = True
                self._ctx.do(c.Charge(budget.scope, budget.name, change))
            if not budget.near and self._has_used(budget, self._ctx.policy.nearing):
                budget.near = True
                self._publish(EventType.LIMIT_NEARING, run, budget)
            if not budget.over and self._has_used(budget, 1):
                budget.over = True
                self._publish(EventType.LIMIT_EXCEEDED, run, budget)

    def _has_used(self, budget: Budget, part: float) -> bool:
        """Return whether so much of a budget is used. What is only reserved may be given back."""
        most = part * budget.allowed
        return budget.used >= most and budget.used - self.reserved_of(budget) >= most

    def budgets_of(self, run: Run) -> Sequence[Budget]:
        """Return the budgets that a run is charged to: none, if another node has granted its tree
        and charged all of it."""
        return () if run.granted else self.budgets.of(run.user)

    def close(self, run: Run) -> None:
        """Charge an ending run in full for what it has reserved."""
        account = run.account
        before = account.own_tree_use()
        for name in list(account.reservations):
            reservation = self._release(run, name)
            source = reservation.source
            account.sources[source] = account.sources.get(source, NOTHING).plus(reservation.use)
            self.budgets_changed = True  # what was only reserved is used now
            self._record(
                run,
                reservation,
                reservation.use,
                error="its run ended before it did; it was charged as reserved",
            )
        if not account.sources:
            return
        assert run.ending is not None
        if run.ending.outcome is Status.LOST:  # it may have used more than was read
            account.lose()
        self._count(run, before)
        for budget in self.budgets_of(run):
            marks = budget.partial, budget.at_most
            budget.partial |= account.cost_may_grow
            budget.at_most |= account.cost_at_most
            if marks != (budget.partial, budget.at_most):
                self._ctx.do(c.Charge(budget.scope, budget.name, 0))  # so that it is saved
        used = account.own_tree_use().counted
        if any(used):
            add_ended((above.account for above in run.ancestors), used)
            for prints in _print_in(run):
                prints.account.print_ended(account.own_tree_use().tokens)
            for above in run.ancestors:
                above.account.end_below(account)
                above.partial_below |= account.partial
                self._ctx.changed(above)

    def next_number(self) -> int:
        """Return a number that no reservation and no call has had."""
        self._last_reservation += 1
        return self._last_reservation

    def reserve(self, run: Run, reservation: OpenReservation) -> str:
        call = reservation.call
        name = f"{run.id}-{call.number if call is not None else self.next_number()}"
        before = run.account.own_tree_use()
        periods = tuple(
            (budget.scope, budget.name, budget.begins) for budget in self.budgets_of(run)
        )
        run.account.reserve(name, dataclass_replace(reservation, periods=periods))
        self.under_way.begin(run.user, reservation)
        self._ctx.changed(run)
        self._count(run, before)
        return name

    def _release(self, run: Run, name: str) -> OpenReservation:
        reservation = run.account.release(name)
        self.under_way.end(run.user, reservation)
        return reservation

    def reservation(self, name: str) -> tuple[Run, OpenReservation] | None:
        run = self._ctx.tree.get(name.rpartition("-")[0])
        return (
            (run, run.account.reservations[name])
            if run is not None and name in run.account.reservations
            else None
        )

    def check_budgets(self, run: Run, cost: int) -> Budget | None:
        """Return the budget in which so much more is not left, and publish that once a period."""
        budget = next((budget for budget in self.budgets_of(run) if not budget.admits(cost)), None)
        if budget is not None and not (
            budget.refused or budget.over or self.draw_if_possible(budget, cost)
        ):
            budget.refused = True
            self._publish(EventType.LIMIT_EXCEEDED, run, budget, cost)
        return budget

    def draw_if_possible(self, budget: Budget, nanos: int) -> bool:
        """Return whether other nodes may give this one more of a budget, so that what needs it
        waits. `nanos`: how much has to be left of it."""
        if budget.keeper is None or budget.used_up or self._ctx.policy.budget_action is Action.WARN:
            return False
        if not budget.asked and budget.waits is None:
            budget.asked = True
            self._ctx.do(c.Draw(budget.scope, budget.name, nanos))
        return budget.asked

    def take_postponed(self) -> list[e.SpawnRequested | e.ReserveRequested]:
        postponed, self.postponed = self.postponed, []
        return postponed

    def forget_postponed(self, client: int) -> None:
        """Start nothing for a client that is gone."""
        self.postponed = [
            each
            for each in self.postponed
            if not isinstance(each, e.SpawnRequested) or each.asked.tied_to != client
        ]

    def found_short(self, budget: Budget) -> None:
        """Note that too little is left of a budget for a model call."""
        budget.short = self._ctx.measured = True

    def take_used_up(self) -> set[tuple[str, str]]:
        """Return `used_up` of all budgets, and note that they were looked at."""
        self.budgets_changed = False
        return self.used_up(self.budgets)

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

    def doubts_of(self, budget: Budget) -> int:
        """Return what calls under way may cost beyond what they have charged to a budget."""
        return sum(map(self.under_way.doubts, budget.members))

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
