"""What alerts watch of all runs together: what they cost within a window, and how many of them limits have ended."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ..protocol.units import format_duration, format_usd
from .alert import Change, Measure, RaisedAlert, changed
from .money import to_nanos, to_usd
from .policy import Policy
from .vocabulary import EventType
from .windows import SummedWindow

Key = tuple[str, str]
"""The type of an alert, and the user that it is about, or an empty text."""

EVERYBODY: Key = (EventType.ALERT_COST, "")
TERMINATIONS: Key = (EventType.ALERT_TERMINATIONS, "")


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

    def look(self, policy: Policy, at: float) -> Iterator[tuple[Key, Change, Measure, str]]:
        """Yield each alert that has changed, with its value and what it says."""
        for key in sorted(self._windows.keys() | self.raised.keys()):
            now, before = self._reading(key, policy, at), self.raised.pop(key, None)
            after, change = changed(before, now, at)
            message = _message(key, now) if now is not None else ""
            if after is not None:
                self.raised[key] = after
                after.message = message if change == "raised" else after.message
            if change is not None and (measure := now or (before and before.measure)):
                yield key, change, measure, message
            if key in self._windows and not self._windows[key].total(at):
                del self._windows[key]

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
