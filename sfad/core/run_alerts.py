"""What alerts watch of one run: the share of its limits that it has used, a repeated tool call, an API that does not answer."""

from __future__ import annotations

from collections.abc import Iterator

from ..protocol.kinds import KINDS
from ..protocol.types import LimitKind, Repetition, Status
from .alert import Measure
from .limits import ActiveLimit, amount, bare
from .policy import Policy
from .run import Run
from .vocabulary import EventType

UNREACHABLE_AFTER = 120.0
"""Seconds for which a run must have failed to reach its model."""

Watched = dict[str, Measure | None]
"""By type; `None` where there is nothing to watch any more."""


def is_quiet(run: Run, policy: Policy, at: float) -> bool:
    """Return whether nothing is known that may raise an alert of the run or clear one: only its clock counts, and has a timer that
    fires at the share. So it is with most runs, from beginning to end."""
    if run.account.known or run.alerts or run.streak is not None or run.latest.failing_since is not None:
        return False
    time, share = run.limits.get(LimitKind.TIME), policy.alerts.limit_share
    # a little less, because the sum of two times may miss the share by a rounding
    return time is None or (share == policy.nearing and run.clock.elapsed(at) < 0.999 * share * time.limit.threshold)


def watched_of(run: Run, policy: Policy, at: float) -> Watched:
    """Return what could raise an alert of the run, and what could clear one that is raised."""
    watched: Watched = dict.fromkeys(run.alerts)
    share = policy.alerts.limit_share
    # the quotient may miss the share by a rounding where the clock's timer has said that it is reached
    if (used := _largest_share(run, at)) >= share - 1e-9 or EventType.ALERT_LIMIT in watched:
        watched[EventType.ALERT_LIMIT] = Measure(round(used, 4), share, used >= share - 1e-9)
    if run.streak is not None:
        watched[EventType.ALERT_REPEATING] = Measure(run.streak.count, policy.repeats, run.streak.said)
    if (since := run.unreachable_since) is not None:
        watched[EventType.ALERT_UNREACHABLE] = Measure(round(at - since, 3), UNREACHABLE_AFTER, at >= since + UNREACHABLE_AFTER)
    return watched


def next_look(run: Run, policy: Policy, at: float) -> float | None:
    """Return when the passing of time alone may raise or clear an alert of the run."""
    times = [alert.due for alert in run.alerts.values() if alert.due is not None] if run.alerts else []
    if (since := run.unreachable_since) is not None and EventType.ALERT_UNREACHABLE not in run.alerts:
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
    """Return each limit of which something is used, without what calls under way have reserved: they rarely use it."""
    time, account = run.limits.get(LimitKind.TIME), run.account
    found = [(time, run.clock.elapsed(at))] if time is not None else []
    if account.known:
        for kind, active in run.limits.items():
            if kind is not LimitKind.TIME and not KINDS[kind].instead and (used := account.used(kind)) is not None:
                found.append((active, used - account.under_way.get(kind, 0)))
    return found


def message_of(what: EventType, run: Run, policy: Policy, at: float) -> str:
    """Return what an alert says of a run as it is now; empty if nothing is left to watch."""
    match what:
        case EventType.ALERT_LIMIT if found := _used(run, at):
            active, used = max(found, key=lambda each: each[1] / each[0].threshold)
            return f"{_share_of(active, used)} (alerts.limit_share is {policy.alerts.limit_share:g})"
        case EventType.ALERT_REPEATING if run.streak is not None:
            sentence = Repetition(tool=run.streak.tool, count=run.streak.count).sentence
            return f"{sentence} (limits.repeats is {policy.repeats})"
        case EventType.ALERT_UNREACHABLE if (since := run.unreachable_since) is not None:
            trouble = run.latest.known_trouble
            hosts = ", ".join(silence.host for silence in run.account.silences[:3])
            return f"its model has not answered for {at - since:.0f} s: {trouble.sentence if trouble else f'no byte from {hosts}'}"
    return ""


def _share_of(active: ActiveLimit, used: float) -> str:
    kind, share = active.limit.kind, f"{100 * used / active.threshold:.0f} %"
    if kind is LimitKind.TIME:
        return f"ran {used:.0f} s, {share} of its time limit of {active.threshold:g} s"
    return f"used {amount(kind, used)}, {share} of its {kind} limit of {bare(kind, active.threshold)}"
