"""The half of it in the core: looks at what an event has changed, and publishes what is raised or
cleared. It is pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from ...core import commands as c
from ...core.context import Context
from ...core.state.account import Account
from ...core.state.limits import ActiveLimit, amount, bare
from ...core.state.policy import Policy
from ...core.state.run import Run
from ...core.state.vocabulary import BY_BOUND
from ...protocol.event_types import EventType
from ...protocol.kinds import KINDS
from ...protocol.types import Event, LimitKind, Repetition, RunId, Severity, Status
from .feature import NAME, AlertsConfig
from .measures import (
    Change,
    Key,
    Measure,
    OfRun,
    RaisedAlert,
    SavedAlerts,
    SharedAlerts,
    changed,
    subject_of,
)

# ---- What alerts watch of one run: the share of its limits that it has used, a repeated tool call,
# an API that does not answer


UNREACHABLE_AFTER = 120.0
"""Seconds for which a run must have failed to reach its model."""

Raised = Mapping[str, RaisedAlert]
"""By their types."""
Watched = dict[str, Measure | None]
"""By type; `None` where there is nothing to watch any more."""


def _config(policy: Policy) -> AlertsConfig:
    return policy.section(NAME, AlertsConfig)


def is_quiet(run: Run, raised: Raised, policy: Policy, at: float) -> bool:
    """Return whether nothing is known that may raise an alert of the run or clear one: only its
    clock counts, and has a timer that fires at the share. So it is with most runs, from beginning
    to end."""
    if (
        run.account.known
        or raised
        or run.streak is not None
        or run.latest.failing_since is not None
    ):
        return False
    time, share = run.limits.get(LimitKind.TIME), _config(policy).limit_share
    # a little less, because the sum of two times may miss the share by a rounding
    return time is None or (
        share == policy.limits.nearing
        and run.clock.elapsed(at) < 0.999 * share * time.limit.threshold
    )


def watched_of(run: Run, raised: Raised, policy: Policy, at: float) -> Watched:
    """Return what could raise an alert of the run, and what could clear one that is raised."""
    watched: Watched = dict.fromkeys(raised)
    share = _config(policy).limit_share
    # the quotient may miss the share by a rounding where the clock's timer has said that it is
    # reached
    if (used := _largest_share(run, at)) >= share - 1e-9 or EventType.ALERT_LIMIT in watched:
        watched[EventType.ALERT_LIMIT] = Measure(round(used, 4), share, used >= share - 1e-9)
    if run.streak is not None:
        watched[EventType.ALERT_REPEATING] = Measure(
            run.streak.count, policy.limits.repeats, run.streak.said
        )
    if (since := run.unreachable_since) is not None:
        watched[EventType.ALERT_UNREACHABLE] = Measure(
            round(at - since, 3), UNREACHABLE_AFTER, at >= since + UNREACHABLE_AFTER
        )
    return watched


def next_look(run: Run, raised: Raised, policy: Policy, at: float) -> float | None:
    """Return when the passing of time alone may raise or clear an alert of the run."""
    share = _config(policy).limit_share
    times = [alert.due for alert in raised.values() if alert.due is not None]
    since = run.unreachable_since
    if since is not None and EventType.ALERT_UNREACHABLE not in raised:
        times.append(since + UNREACHABLE_AFTER)
    # at `nearing` the run's own clock looks, with the timer that it has anyway
    if share != policy.limits.nearing and EventType.ALERT_LIMIT not in raised:
        times += _clock_reaches(run, share, at)
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
    if account.known:
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
            share = _config(policy).limit_share
            return f"{_share_of(active, used)} (alerts.limit_share is {share:g})"
        case EventType.ALERT_REPEATING if run.streak is not None:
            sentence = Repetition(tool=run.streak.tool, count=run.streak.count).sentence
            return f"{sentence} (limits.repeats is {policy.limits.repeats})"
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


class Alerts:
    def __init__(self, context: Context) -> None:
        self._ctx = context
        self._shared = SharedAlerts()
        self._runs: dict[RunId, OfRun] = {}
        self._dues: dict[str, float] = {}
        """When `Reminded` will be fed, by its keys."""
        self._unsaved = False
        self.told: set[RunId] = set()
        """Runs of which other alerts are raised than when this was emptied."""
        self.cost = self._shared.cost

    @property
    def shared(self) -> Mapping[Key, RaisedAlert]:
        """Return the alerts that are raised and about no single run."""
        return self._shared.raised

    def of(self, run: RunId) -> Raised:
        """Return the alerts of a run that are raised."""
        known = self._runs.get(run)
        return known.raised if known is not None else {}

    def saved(self) -> SavedAlerts:
        shared = self._shared.saved()
        return SavedAlerts(shared.windows, shared.raised, self._runs)

    def restore(self, saved: SavedAlerts) -> None:
        """Continue with what an earlier daemon had raised, before its runs are adopted."""
        self._shared.restore(saved, _config(self._ctx.policy))
        self._runs = dict(saved.runs)
        self.told.update(self._runs)

    def look(self, runs: Collection[Run], at: float, *, at_all: bool) -> None:
        counted = False
        for run in runs:
            if run.account.sources or run.status.terminal:
                counted |= self._count(run, at)
            if run.status.terminal:
                counted |= self._runs.pop(run.id, None) is not None
            elif is_quiet(run, self.of(run.id), self._ctx.policy, at):
                self._remind(run.id, None)
            else:
                self._look_at(run, at)
        if counted or at_all:
            self._look_at_all(at)
        if counted or self._unsaved:
            self._ctx.do(c.SaveOf(NAME, soon=not self._unsaved))
            self._unsaved = False

    def ending(self, run: Run) -> None:
        """Clear the alerts of the run. It cannot raise them again, so nothing is held."""
        self._remind(run.id, None)
        if (known := self._runs.get(run.id)) is None or not known.raised:
            return
        for what, alert in known.raised.items():
            self._tell(what, "cleared", alert.measure, "the run has ended", run)
        known.raised = {}

    def _count(self, run: Run, at: float) -> bool:
        """Count what the run has cost since the last look, and its end. Return whether anything was
        counted."""
        cost, reason = _cost(run.account), run.ending.reason if run.ending is not None else None
        known = self._runs.get(run.id)
        more = cost - (known.counted if known is not None else 0)
        if more > 0:
            self._known(run).counted = cost
            self._shared.spent(run.user, more, _config(self._ctx.policy), at)
        by_bound = run.status.terminal and reason is not None and reason.kind in BY_BOUND
        if by_bound:
            self._shared.terminated(_config(self._ctx.policy), at)
        return more > 0 or by_bound

    def _known(self, run: Run) -> OfRun:
        return self._runs.setdefault(run.id, OfRun())

    def _look_at(self, run: Run, at: float) -> None:
        policy = self._ctx.policy
        for word, now in watched_of(run, self.of(run.id), policy, at).items():
            before = self.of(run.id).get(word)
            if before is None and (now is None or not now.above):
                continue
            over_since = before.over_since if before is not None else None
            after, change = changed(before, now, at)
            self._unsaved |= after is not None and after.over_since != over_since
            if change is None:
                continue
            message = message_of(EventType(word), run, policy, at)
            if after is not None:
                self._known(run).raised[word] = after
                after.message = message
                self._tell(word, change, after.measure, message, run)
            elif before is not None:
                del self._known(run).raised[word]
                self._tell(word, change, now or before.measure, message, run)
        self._remind(run.id, next_look(run, self.of(run.id), policy, at))

    def _tell(self, what: str, change: Change, measure: Measure, message: str, run: Run) -> None:
        self._unsaved = True
        self.told.add(run.id)
        self._ctx.changed(run)
        self._ctx.publish_event(_event(what, change, measure, message, "run"), run)

    def _look_at_all(self, at: float) -> None:
        config = _config(self._ctx.policy)
        readings = {
            (f"alert_{what}", whose): reading
            for measured in self._ctx.readings
            for (what, whose), reading in measured(config.limit_share, at).items()
        }
        for key, change, measure, message in self._shared.look(config, at, readings):
            self._unsaved = True
            event = _event(key[0], change, measure, message, subject_of(key)[0])
            self._ctx.do(c.Publish(event, ()))
        self._remind("", self._shared.next_look())

    def _remind(self, key: str, due: float | None) -> None:
        """Have the run, or all that is shared, looked at again at that time; `None`: when something
        happens."""
        if due == self._dues.get(key):
            return
        if due is not None:
            self._dues[key] = due
        else:
            del self._dues[key]
        self._ctx.do(c.Remind(NAME, key, due))


def _cost(account: Account) -> int:
    """Return what a run itself has cost as far as it is known, in nano-dollars, without what is
    only reserved."""
    if not account.sources:
        return 0
    best = account.best
    return (best[1].cost if best is not None else None) or 0


def _event(what: str, change: Change, measure: Measure, message: str, scope: str) -> Event:
    severity: Severity = "low"
    if change == "raised":
        part_left = what == EventType.ALERT_BUDGET and measure.threshold < 1
        severity = "medium" if part_left else "high"
    else:
        message = f"over: {message}" if message else "over"
    return Event(
        type=what, severity=severity, message=message, scope=scope, state=change,
        value=measure.value, threshold=measure.threshold, window_s=measure.window,
    )  # fmt: skip


watcher = Alerts
"""What the core makes when there is something to look at."""
