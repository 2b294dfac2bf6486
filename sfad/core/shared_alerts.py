"""What alerts watch of all runs together: what they cost within a window, how many of them limits have ended, and budgets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from msgspec import Struct

from ..protocol.units import format_duration, format_usd
from .alert import Change, Measure, RaisedAlert, changed
from .budgets import Budget
from .money import to_nanos, to_usd
from .policy import Policy
from .vocabulary import EventType
from .windows import SummedWindow

Key = tuple[str, str]
"""The type of an alert, and the user that it is about, `team NAME`, or an empty text."""

Scope = Literal["user", "team", "daemon"]

_TEAM = "team "

RUN_OUT = 1.0
"""The threshold of the second alert about a budget."""

EVERYBODY: Key = (EventType.ALERT_COST, "")
TERMINATIONS: Key = (EventType.ALERT_TERMINATIONS, "")


def key_of_budget(budget: Budget) -> Key:
    return EventType.ALERT_BUDGET, budget.name if budget.scope == "user" else _TEAM + budget.name


def subject_of(key: Key) -> tuple[Scope, str]:
    """Return whom an alert is about: a user, a team, or everybody (an empty name)."""
    what, name = key
    if what == EventType.ALERT_BUDGET and name.startswith(_TEAM):
        return "team", name.removeprefix(_TEAM)
    return ("user", name) if name else ("daemon", "")


class BudgetUse(NamedTuple):
    share: float
    """Of what is allowed."""
    run_out: bool
    message: str


class SavedAlerts(Struct, frozen=True, array_like=True):
    """What the next daemon must know. Times are on the core's clock."""

    windows: dict[str, tuple[tuple[float, int], ...]] = {}
    """By the words of a key."""
    raised: dict[str, RaisedAlert] = {}


class SharedAlerts:
    def __init__(self) -> None:
        self._windows: dict[Key, SummedWindow] = {}
        self.raised: dict[Key, RaisedAlert] = {}

    def restore(self, saved: SavedAlerts, policy: Policy) -> None:
        for words, parts in saved.windows.items():
            self._windows[_key(words)] = SummedWindow(policy.alerts.window, parts)
        self.raised = {_key(words): alert for words, alert in saved.raised.items()}

    def saved(self) -> SavedAlerts:
        windows = {" ".join(key): window.parts for key, window in self._windows.items()}
        return SavedAlerts(windows, {" ".join(key): alert for key, alert in self.raised.items()})

    def spent(self, user: str, nanos: int, policy: Policy, at: float) -> None:
        self._window(EVERYBODY, policy).add(nanos, at)
        self._window(_of_user(user), policy).add(nanos, at)

    def cost(self, user: str | None, at: float) -> int:
        """Return what the runs of a user have cost within the window, or those of all users (`None`), in nano-dollars."""
        window = self._windows.get(EVERYBODY if user is None else _of_user(user))
        return window.total(at) if window is not None else 0

    def terminated(self, policy: Policy, at: float) -> None:
        self._window(TERMINATIONS, policy).add(1, at)

    def _window(self, key: Key, policy: Policy) -> SummedWindow:
        window = self._windows.setdefault(key, SummedWindow(policy.alerts.window))
        window.span = policy.alerts.window
        return window

    def look(
        self, policy: Policy, at: float, budgets: Mapping[Key, BudgetUse]
    ) -> Iterator[tuple[Key, Change, Measure, str]]:  # fmt: skip
        """Yield each alert that has changed, with its value and what it says."""
        for key in sorted(self._windows.keys() | self.raised.keys() | budgets.keys()):
            if key[0] == EventType.ALERT_BUDGET:
                yield from self._look_at_budget(key, budgets.get(key), policy, at)
                continue
            now = self._reading(key, policy, at)
            yield from self._change(key, now, _message(key, now) if now is not None else "", at)
            if key in self._windows and not self._windows[key].total(at):
                del self._windows[key]

    def _look_at_budget(
        self, key: Key, use: BudgetUse | None, policy: Policy, at: float
    ) -> Iterator[tuple[Key, Change, Measure, str]]:  # fmt: skip
        """Look at both thresholds of a budget. The alert at the second one takes the place of that at the first."""
        share, before = policy.alerts.limit_share, self.raised.get(key)
        message = use.message if use is not None else before.message if before is not None else ""
        above = before is not None and before.measure.threshold >= RUN_OUT
        if use is not None and use.run_out and not above:
            self.raised.pop(key, None)
            above = True
        if above:
            yield from self._change(key, None if use is None else Measure(use.share, RUN_OUT, use.run_out), message, at)
        if key not in self.raised or not above:
            yield from self._change(key, None if use is None else Measure(use.share, share, use.share >= share), message, at)

    def _change(self, key: Key, now: Measure | None, message: str, at: float) -> Iterator[tuple[Key, Change, Measure, str]]:
        before = self.raised.pop(key, None)
        after, change = changed(before, now, at)
        if after is not None:
            self.raised[key] = after
            after.message = message if change == "raised" else after.message
        if change is not None and (measure := now or (before and before.measure)):
            yield key, change, measure, message

    def next_look(self) -> float | None:
        """Return when the passing of time alone may clear an alert."""
        times = [alert.due for alert in self.raised.values() if alert.due is not None]
        for key, alert in self.raised.items():
            window = self._windows.get(key)
            if alert.over_since is None and window is not None and (change := window.changes_at()) is not None:
                times.append(change)
        return min(times, default=None)

    def _reading(self, key: Key, policy: Policy, at: float) -> Measure | None:
        threshold, window = _threshold(key, policy), self._windows.get(key)
        if threshold is None or window is None:
            return None
        total = window.total(at)
        if key == TERMINATIONS:
            return Measure(total, threshold, total > threshold, window.span)
        return Measure(round(to_usd(total), 6), threshold, total > to_nanos(threshold), window.span)


def _message(key: Key, now: Measure) -> str:
    span = format_duration(now.window or 0)
    if key == TERMINATIONS:
        return f"limits and budgets ended {now.value:g} runs within {span} (alerts.terminations is {now.threshold:g})"
    whose, name = (f"runs of user {key[1]}", "cost_usd_per_user") if key[1] else ("runs", "cost_usd")
    return f"{whose} cost {format_usd(now.value)} USD within {span} (alerts.{name} is {format_usd(now.threshold)})"


def _threshold(key: Key, policy: Policy) -> float | None:
    if key == TERMINATIONS:
        return policy.alerts.terminations
    return policy.alerts.cost_usd if key == EVERYBODY else policy.alerts.cost_usd_per_user


def _of_user(user: str) -> Key:
    return EventType.ALERT_COST, user


def _key(words: str) -> Key:
    type_, _, user = words.partition(" ")
    return type_, user
