"""One alert, and what alerts watch of all runs together: what they cost within a window, how many
limits have ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from msgspec import Struct

from ...core.context import Reading
from ...core.state.money import to_nanos, to_usd
from ...protocol.event_types import EventType
from ...protocol.texts.units import format_duration, format_usd
from ...protocol.types import RunId
from .feature import AlertsConfig

# ---- One alert: raised when its value crosses the threshold, cleared when the value has stayed
# below it for `HOLD`
#
# Without the hold, a run whose use goes up and down around a threshold would raise an alert, and
# wake an operator, each time.


HOLD = 60.0
"""Seconds that a value must stay below the threshold until the alert is cleared."""

Change = Literal["raised", "cleared"]


class Measure(Struct, frozen=True):
    """What an alert watches, as it is now."""

    value: float
    threshold: float
    above: bool
    window: float | None = None


class RaisedAlert(Struct):
    measure: Measure
    """When it was raised."""
    at: float
    message: str = ""
    over_since: float | None = None
    """Since when the value has been below the threshold."""

    @property
    def due(self) -> float | None:
        """When it is cleared if nothing changes."""
        return self.over_since + HOLD if self.over_since is not None else None


def changed(
    raised: RaisedAlert | None, now: Measure | None, at: float
) -> tuple[RaisedAlert | None, Change | None]:
    """Return the alert after a look at its value, `None` where it is not raised, and what has
    changed. `now`: `None` if nothing is left to watch, as with a limit that was taken away."""
    above = now is not None and now.above
    if raised is None:
        return (RaisedAlert(now, at), "raised") if now is not None and above else (None, None)
    if above:
        raised.over_since = None
        return raised, None
    if raised.over_since is None:
        raised.over_since = at
    if at >= raised.over_since + HOLD:
        return None, "cleared"
    return raised, None


# ---- Sums over the last hour, or another span, in bounded memory


PARTS = 60
"""Parts of a window: an amount leaves it up to one part late."""


class SummedWindow:
    """The sum of what was added within the last `span` seconds."""

    __slots__ = ("_parts", "_total", "span")

    def __init__(self, span: float, parts: Iterable[tuple[float, int]] = ()) -> None:
        """`parts`: what `parts` of an earlier window had, of whatever span."""
        self.span = span
        self._parts: deque[tuple[float, int]] = deque(parts)
        """For each part of the span in which something was added: when it was added last, and the
        sum."""
        self._total = sum(amount for _, amount in self._parts)

    @property
    def parts(self) -> tuple[tuple[float, int], ...]:
        return tuple(self._parts)

    def add(self, amount: int, at: float) -> None:
        width = self.span / PARTS
        self._total += amount
        if self._parts and self._parts[-1][0] // width == at // width:
            amount += self._parts.pop()[1]
        self._parts.append((at, amount))

    def total(self, at: float) -> int:
        """Return the sum of the window that ends at `at`."""
        while self._parts and self._parts[0][0] + self.span <= at:
            self._total -= self._parts.popleft()[1]
        return self._total

    def changes_at(self) -> float | None:
        """Return when the sum becomes smaller if nothing is added; `None` if it is 0."""
        return self._parts[0][0] + self.span if self._parts else None


# ---- What alerts watch of all runs together: what they cost within a window, how many of them
# limits have ended, and budgets


Key = tuple[str, str]
"""The type of an alert, and the user that it is about, `team NAME`, or an empty text."""

AlertScope = Literal["user", "team", "daemon"]

_TEAM = "team "

RUN_OUT = 1.0
"""The threshold of the second alert about a budget."""

EVERYBODY: Key = (EventType.ALERT_COST, "")
TERMINATIONS: Key = (EventType.ALERT_TERMINATIONS, "")


def subject_of(key: Key) -> tuple[AlertScope, str]:
    """Return whom an alert is about: a user, a team, or everybody (an empty name)."""
    what, name = key
    if what == EventType.ALERT_PLAN:
        return "daemon", ""
    if what == EventType.ALERT_BUDGET and name.startswith(_TEAM):
        return "team", name.removeprefix(_TEAM)
    return ("user", name) if name else ("daemon", "")


class OfRun(Struct, array_like=True):
    """What is kept of a live run."""

    raised: dict[str, RaisedAlert] = {}
    """By their types."""
    counted: int = 0
    """The part of its own cost, in nano-dollars, that was counted."""


class SavedAlerts(Struct, frozen=True, array_like=True):
    """What the next daemon must know. Times are on the core's clock."""

    windows: dict[str, tuple[tuple[float, int], ...]] = {}
    """By the words of a key."""
    raised: dict[str, RaisedAlert] = {}
    runs: dict[RunId, OfRun] = {}


class SharedAlerts:
    def __init__(self) -> None:
        self._windows: dict[Key, SummedWindow] = {}
        self.raised: dict[Key, RaisedAlert] = {}

    def restore(self, saved: SavedAlerts, config: AlertsConfig) -> None:
        for words, parts in saved.windows.items():
            self._windows[_key(words)] = SummedWindow(config.window, parts)
        self.raised = {_key(words): alert for words, alert in saved.raised.items()}

    def saved(self) -> SavedAlerts:
        windows = {" ".join(key): window.parts for key, window in self._windows.items()}
        return SavedAlerts(windows, {" ".join(key): alert for key, alert in self.raised.items()})

    def spent(self, user: str, nanos: int, config: AlertsConfig, at: float) -> None:
        self._window(EVERYBODY, config).add(nanos, at)
        self._window(_of_user(user), config).add(nanos, at)

    def cost(self, user: str | None, at: float) -> int:
        """Return what the runs of a user have cost within the window, or those of all users
        (`None`), in nano-dollars."""
        window = self._windows.get(EVERYBODY if user is None else _of_user(user))
        return window.total(at) if window is not None else 0

    def terminated(self, config: AlertsConfig, at: float) -> None:
        self._window(TERMINATIONS, config).add(1, at)

    def _window(self, key: Key, config: AlertsConfig) -> SummedWindow:
        window = self._windows.setdefault(key, SummedWindow(config.window))
        window.span = config.window
        return window

    def look(
        self, config: AlertsConfig, at: float, readings: Mapping[Key, Reading]
    ) -> Iterator[tuple[Key, Change, Measure, str]]:  # fmt: skip
        """Yield each alert that has changed, with its value and what it says."""
        for key in sorted(self._windows.keys() | self.raised.keys() | readings.keys()):
            reading = readings.get(key)
            if key[0] == EventType.ALERT_BUDGET:
                yield from self._look_at_share(key, reading, config, at)
                continue
            if key[0] == EventType.ALERT_PLAN:
                words = reading.message if reading is not None else ""
                yield from self._change(key, _measure(reading), words, at)
                continue
            now = self._reading(key, config, at)
            yield from self._change(key, now, _message(key, now) if now is not None else "", at)
            if key in self._windows and not self._windows[key].total(at):
                del self._windows[key]

    def _look_at_share(
        self, key: Key, use: Reading | None, config: AlertsConfig, at: float
    ) -> Iterator[tuple[Key, Change, Measure, str]]:  # fmt: skip
        """Look at both thresholds of what is allowed. The alert at the second one takes the place
        of that at the first."""
        share, before = config.limit_share, self.raised.get(key)
        message = use.message if use is not None else before.message if before is not None else ""
        above = before is not None and before.measure.threshold >= RUN_OUT
        if use is not None and use.above and not above:
            self.raised.pop(key, None)
            above = True
        if above:
            yield from self._change(key, _measure(use), message, at)
        if key not in self.raised or not above:
            yield from self._change(
                key,
                None if use is None else Measure(use.value, share, use.value >= share),
                message,
                at,
            )

    def _change(
        self, key: Key, now: Measure | None, message: str, at: float
    ) -> Iterator[tuple[Key, Change, Measure, str]]:
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
            if (
                alert.over_since is None
                and window is not None
                and (change := window.changes_at()) is not None
            ):
                times.append(change)
        return min(times, default=None)

    def _reading(self, key: Key, config: AlertsConfig, at: float) -> Measure | None:
        threshold, window = _threshold(key, config), self._windows.get(key)
        if threshold is None or window is None:
            return None
        total = window.total(at)
        if key == TERMINATIONS:
            return Measure(total, threshold, total > threshold, window.span)
        return Measure(round(to_usd(total), 6), threshold, total > to_nanos(threshold), window.span)


def _measure(reading: Reading | None) -> Measure | None:
    return None if reading is None else Measure(reading.value, RUN_OUT, reading.above)


def _message(key: Key, now: Measure) -> str:
    span = format_duration(now.window or 0)
    if key == TERMINATIONS:
        return (
            f"limits and budgets ended {now.value:g} runs within {span} "
            f"(alerts.terminations is {now.threshold:g})"
        )
    whose, name = (
        (f"runs of user {key[1]}", "cost_usd_per_user") if key[1] else ("runs", "cost_usd")
    )
    return (
        f"{whose} cost {format_usd(now.value)} USD within {span} "
        f"(alerts.{name} is {format_usd(now.threshold)})"
    )


def _threshold(key: Key, config: AlertsConfig) -> float | None:
    if key == TERMINATIONS:
        return config.terminations
    return config.cost_usd if key == EVERYBODY else config.cost_usd_per_user


def _of_user(user: str) -> Key:
    return EventType.ALERT_COST, user


def _key(words: str) -> Key:
    type_, _, user = words.partition(" ")
    return type_, user
