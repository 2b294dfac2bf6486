"""Alerts: looks after each event at what it has changed, and publishes what is raised or cleared.

It reads the state of runs and decides nothing about them, so no other component needs to know of
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ..protocol.event_types import EventType
from ..protocol.kinds import KINDS
from ..protocol.types import LimitKind, Repetition, Status
from . import commands as c
from . import events as e
from .context import Context
from .life.lifecycle import AlertBoard
from .life.spending import Spending
from .limits.subscriptions import Subscriptions
from .state.account import Account
from .state.alerts import (
    BudgetUse,
    Key,
    Measure,
    RaisedAlert,
    SavedAlerts,
    SharedAlerts,
    changed,
    key_of_budget,
    subject_of,
)
from .state.budgets import Budget
from .state.limits import ActiveLimit, amount, bare
from .state.policy import Policy
from .state.run import Run
from .state.vocabulary import ReasonKind

# ---- What alerts watch of budgets: the part of each that is used


def budgets_in_use(spending: Spending, policy: Policy) -> dict[Key, BudgetUse]:
    """Return the budgets of which so much is used that there may be an alert. A budget of nothing
    cannot run out."""
    share = policy.alerts.limit_share
    near = (
        each
        for each in spending.budgets
        if each.allowed and (each.short or each.used >= share * each.allowed)
    )
    return {key_of_budget(budget): _use_of(budget, spending) for budget in near}


def _use_of(budget: Budget, spending: Spending) -> BudgetUse:
    used = budget.used - spending.reserved_of(budget)  # what is only reserved may be given back
    share = round(used / budget.allowed, 4)
    words = spending.sentence_of(budget)
    if budget.short:
        words = f"too little is left for a model call: {words}"
    return BudgetUse(share, budget.short or used >= budget.allowed, words)


# ---- What alerts watch of one run: the share of its limits that it has used, a repeated tool call,
# an API that does not answer


UNREACHABLE_AFTER = 120.0
"""Seconds for which a run must have failed to reach its model."""

Watched = dict[str, Measure | None]
"""By type; `None` where there is nothing to watch any more."""


def is_quiet(run: Run, policy: Policy, at: float) -> bool:
    """Return whether nothing is known that may raise an alert of the run or clear one: only its
    clock counts, and has a timer that fires at the share. So it is with most runs, from beginning
    to end."""
    if (
        run.account.known
        or run.alerts
        or run.streak is not None
        or run.latest.failing_since is not None
    ):
        return False
    time, share = run.limits.get(LimitKind.TIME), policy.alerts.limit_share
    # a little less, because the sum of two times may miss the share by a rounding
    return time is None or (
        share == policy.nearing and run.clock.elapsed(at) < 0.999 * share * time.limit.threshold
    )


def watched_of(run: Run, policy: Policy, at: float) -> Watched:
    """Return what could raise an alert of the run, and what could clear one that is raised."""
    watched: Watched = dict.fromkeys(run.alerts)
    share = policy.alerts.limit_share
    # the quotient may miss the share by a rounding where the clock's timer has said that it is
    # reached
    if (used := _largest_share(run, at)) >= share - 1e-9 or EventType.ALERT_LIMIT in watched:
        watched[EventType.ALERT_LIMIT] = Measure(round(used, 4), share, used >= share - 1e-9)
    if run.streak is not None:
        watched[EventType.ALERT_REPEATING] = Measure(
            run.streak.count, policy.repeats, run.streak.said
        )
    if (since := run.unreachable_since) is not None:
        watched[EventType.ALERT_UNREACHABLE] = Measure(
            round(at - since, 3), UNREACHABLE_AFTER, at >= since + UNREACHABLE_AFTER
        )
    return watched


def next_look(run: Run, policy: Policy, at: float) -> float | None:
    """Return when the passing of time alone may raise or clear an alert of the run."""
    times = (
        [alert.due for alert in run.alerts.values() if alert.due is not None] if run.alerts else []
    )
    if (
        since := run.unreachable_since
    ) is not None and EventType.ALERT_UNREACHABLE not in run.alerts:
        times.append(since + UNREACHABLE_AFTER)
    # at `nearing` the run's own clock looks, with the timer that it has anyway
    if policy.alerts.limit_share != policy.nearing and EventType.ALERT_LIMIT not in run.alerts:
        times += _clock_reaches(run, policy.alerts.limit_share, at)
    return min(times, default=None)


def _clock_reaches(run: Run, share: float, at: float) -> Iterator[float]:
    time = run.limits.get(LimitKind.TIME)
    if time is not None and run.status is Status.RUNNING:
        due = run.clock.reaches(share * time.threshold)
        if due is not None and due > at:
            yield due


def _largest_share(run: Run, at: float) -> float:
    """Return the share that is used of the limit that is nearest to its threshold."""
    return max([used / active.threshold for active, used in _used(run, at)], default=0.0)


def _used(run: Run, at: float) -> list[tuple[ActiveLimit, float]]:
    """Return each limit of which something is used, without what is only reserved."""
    time, account = run.limits.get(LimitKind.TIME), run.account
    found = [(time, run.clock.elapsed(at))] if time is not None else []
    if account.known and run.remote is None:  # else all that it was granted counts as used
        for kind, active in run.limits.items():
            if (
                kind is not LimitKind.TIME
                and not KINDS[kind].instead
                and (used := account.used(kind)) is not None
            ):
                found.append((active, used - account.reserved(kind)))
    return found


def message_of(what: EventType, run: Run, policy: Policy, at: float) -> str:
    """Return what an alert says of a run as it is now; empty if nothing is left to watch."""
    match what:
        case EventType.ALERT_LIMIT if found := _used(run, at):
            active, used = max(found, key=lambda each: each[1] / each[0].threshold)
            return (
                f"{_share_of(active, used)} (alerts.limit_share is {policy.alerts.limit_share:g})"
            )
        case EventType.ALERT_REPEATING if run.streak is not None:
            sentence = Repetition(tool=run.streak.tool, count=run.streak.count).sentence
            return f"{sentence} (limits.repeats is {policy.repeats})"
        case EventType.ALERT_UNREACHABLE if (since := run.unreachable_since) is not None:
            trouble = run.latest.known_trouble
            hosts = ", ".join(silence.host for silence in run.account.silences[:3])
            return (
                f"its model has not answered for {at - since:.0f} s: "
                f"{trouble.sentence if trouble else f'no byte from {hosts}'}"
            )
    return ""


def _share_of(active: ActiveLimit, used: float) -> str:
    kind, share = active.limit.kind, f"{100 * used / active.threshold:.0f} %"
    if kind is LimitKind.TIME:
        return f"ran {used:.0f} s, {share} of its time limit of {active.threshold:g} s"
    return (
        f"used {amount(kind, used)}, {share} of its {kind} limit of {bare(kind, active.threshold)}"
    )


# ---- Raises and clears alerts


_BY_A_BOUND = (ReasonKind.LIMIT, ReasonKind.BUDGET)

_ABOUT_ALL = (
    e.AlertsDue,
    e.Reconfigured,
    e.RunsAdopted,
    e.BudgetsKnown,
    e.AllowancesAsked,
    e.SubscriptionSeen,
    e.SubscriptionsDue,
)
"""They may raise or clear an alert about all runs, though nothing is counted."""


class Alerts:
    def __init__(
        self, context: Context, board: AlertBoard, spending: Spending, subscriptions: Subscriptions
    ) -> None:
        self._subscriptions = subscriptions
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
            runs = {
                above.id: above for run in outcome.used.values() for above in run.lineage
            } | runs
        if (
            isinstance(event, e.OfRun)
            and event.run not in runs
            and (run := self._ctx.tree.get(event.run)) is not None
        ):
            return [*runs.values(), run]
        return list(runs.values())  # to look at one changes it

    def _count(self, run: Run, at: float) -> bool:
        """Count what the run has cost since the last look, and its end. Return whether anything was
        counted."""
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
        budgets = budgets_in_use(self._spending, self._ctx.policy)
        changes = list(
            self._shared.look(self._ctx.policy, at, budgets, self._subscriptions.watched(at))
        )
        if changes or counted:
            self._ctx.do(c.SaveAlerts(soon=not changes))
        for key, change, measure, message in changes:
            self._board.tell_of_all(EventType(key[0]), change, measure, message, subject_of(key)[0])
        due = self._shared.next_look()
        if due != self._due:
            self._due = due
            self._ctx.do(c.ArmAlerts(due))


def _cost(account: Account) -> int:
    """Return what a run itself has cost as far as it is known, in nano-dollars, without what is
    only reserved."""
    if not account.sources:
        return 0
    best = account.best
    return (best[1].cost if best is not None else None) or 0
