"""Alerts: looks after each event at what it has changed, and publishes what is raised or cleared.

It reads the state of runs and decides nothing about them, so no other component needs to know of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..protocol.types import LimitKind
from . import commands as c
from . import events as e
from .account import Account
from .alert import RaisedAlert, changed
from .alert_board import AlertBoard
from .budget_alerts import budgets_in_use
from .context import Context
from .run import Run
from .run_alerts import is_quiet, message_of, next_look, watched_of
from .shared_alerts import Key, SavedAlerts, SharedAlerts, subject_of
from .spending import Spending
from .vocabulary import EventType, ReasonKind

_BY_A_BOUND = (ReasonKind.LIMIT, ReasonKind.BUDGET)

_ABOUT_ALL = (e.AlertsDue, e.Reconfigured, e.RunsAdopted, e.BudgetsKnown)
"""They may raise or clear an alert about all runs, though nothing is counted."""


class Alerts:
    def __init__(self, context: Context, board: AlertBoard, spending: Spending) -> None:
        self._ctx = context
        self._board = board
        self._spending = spending
        self._shared = SharedAlerts()
        self._due: float | None = None
        """When `AlertsDue` will be fed."""
        self.saved = self._shared.saved
        self.cost = self._shared.cost

    @property
    def shared(self) -> Mapping[Key, RaisedAlert]:
        """Return the alerts that are raised and about no single run."""
        return self._shared.raised

    def restore(self, saved: SavedAlerts) -> None:
        """Continue with what an earlier daemon had raised. `RunsAdopted` arms what follows."""
        self._shared.restore(saved, self._ctx.policy)

    def look(self, outcome: c.Outcome, event: e.Event) -> None:
        """Look at the runs that an event has changed, and at what is counted of all runs."""
        counted = False
        for run in self._touched(outcome, event):
            if run.account.sources or run.status.terminal:
                counted |= self._count(run, event.at)
            if run.status.terminal:
                continue
            if is_quiet(run, self._ctx.policy, event.at):
                self._board.look_at(run, None)
            else:
                self._look_at(run, event.at)
        if counted or self._spending.take_charged() or isinstance(event, _ABOUT_ALL):
            self._look_at_all(event.at, counted=counted)

    def _touched(self, outcome: c.Outcome, event: e.Event) -> Iterable[Run]:
        runs = outcome.changed
        if outcome.used:
            runs = {above.id: above for run in outcome.used.values() for above in run.lineage} | runs
        if isinstance(event, e.OfRun) and event.run not in runs and (run := self._ctx.tree.get(event.run)) is not None:
            return [*runs.values(), run]
        return list(runs.values())  # to look at one changes it

    def _count(self, run: Run, at: float) -> bool:
        """Count what the run has cost since the last look, and its end. Return whether anything was counted."""
        cost, reason = _cost(run.account), run.ending.reason if run.ending is not None else None
        more = cost - run.counted_cost
        if more > 0:
            run.counted_cost = cost
            self._shared.spent(run.user, more, self._ctx.policy, at)
        by_bound = run.status.terminal and reason is not None and reason.kind in _BY_A_BOUND
        if by_bound:
            self._shared.terminated(self._ctx.policy, at)
        return more > 0 or by_bound

    def _look_at(self, run: Run, at: float) -> None:
        for word, now in watched_of(run, self._ctx.policy, at).items():
            before = run.alerts.get(word)
            if before is None and (now is None or not now.above):
                continue
            what = EventType(word)
            over_since = before.over_since if before is not None else None
            after, change = changed(before, now, at)
            if change is not None or (after is not None and after.over_since != over_since):
                self._ctx.changed(run)
            if change is None:
                continue
            message = message_of(what, run, self._ctx.policy, at)
            if after is not None:
                run.alerts[what] = after
                after.message = message
                self._board.tell_of_run(what, change, after.measure, message, run)
            elif before is not None:
                del run.alerts[what]
                self._board.tell_of_run(what, change, now or before.measure, message, run)
        self._board.look_at(run, next_look(run, self._ctx.policy, at))

    def _look_at_all(self, at: float, *, counted: bool) -> None:
        changes = list(self._shared.look(self._ctx.policy, at, budgets_in_use(self._spending, self._ctx.policy)))
        if changes or counted:
            self._ctx.do(c.SaveAlerts(soon=not changes))
        for key, change, measure, message in changes:
            self._board.tell_of_all(EventType(key[0]), change, measure, message, subject_of(key)[0])
        due = self._shared.next_look()
        if due != self._due:
            self._due = due
            self._ctx.do(c.ArmAlerts(due))


def _cost(account: Account) -> int:
    """Return what a run itself has cost as far as it is known, in nano-dollars, without what is only reserved."""
    if not account.sources:
        return 0
    return max((cost for use in account.sources.values() if (cost := use.of(LimitKind.COST)) is not None), default=0)
