"""What the daemon has counted since its start, for metrics. A re-execution hands it over; a start
begins at zero.

Everything here is bounded: labels come from the code or the operator's config, and types that runs
choose are capped.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct, field

from ..protocol.types import CallInfo, Event, RunId, RunInfo

MAX_TYPES = 50
"""Types with figures of their own, beside those of registered agents. Each has some 40 lines of
text."""

MAX_USERS = 100
"""Users with figures of their own."""

OTHER = "other"
"""The type, or user, of runs whose own one is not counted apart."""

UNTYPED = "untyped"

HOUR = 60
"""Minutes that `Counts.hit_by_minute` keeps."""

SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""Upper bounds, in seconds, for what takes milliseconds."""
FIRST_BYTE = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
LONG = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)
TURNS = (1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 1000.0)
COST = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 50.0)

_ODD = re.compile(r"[^\w .:/+-]", re.ASCII)

Outcome = Literal["answered", "failed", "refused", "withdrawn"]


class Histogram(Struct, kw_only=True):
    bounds: tuple[float, ...]
    """Upper bounds of all buckets but the last, which has none."""
    counts: list[int]
    total: float = 0.0
    """The sum of all values."""

    @classmethod
    def of(cls, bounds: tuple[float, ...]) -> "Histogram":
        return cls(bounds=bounds, counts=[0] * (len(bounds) + 1))

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)


def _empty(bounds: tuple[float, ...]) -> Histogram:
    return field(default_factory=lambda: Histogram.of(bounds))


class TypeCounts(Struct, kw_only=True):
    """Ended runs of one type. What is not known of a run is not counted, so the histograms may have
    different counts."""

    duration: Histogram = _empty(LONG)
    turns: Histogram = _empty(TURNS)
    cost: Histogram = _empty(COST)
    input_tokens: int = 0
    output_tokens: int = 0


class UserCounts(Struct, kw_only=True):
    """Ended runs of one user, as far as it is known what they used."""

    ended: int = 0
    cost_usd: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0


class Counts(Struct, kw_only=True):
    ended: dict[str, int] = {}
    """Runs by status."""
    refused: dict[str, int] = {}
    """Spawns by the guard's rule."""
    events: dict[str, int] = {}
    hit: dict[str, dict[str, int]] = {}
    """Breaches by kind of limit and action."""
    hit_by_minute: dict[int, int] = {}
    """Breaches by minute of Unix time, of the last hour."""
    calls: dict[str, dict[Outcome, int]] = {}
    """Model calls by upstream and outcome."""
    by_type: dict[str, TypeCounts] = {}
    by_user: dict[str, UserCounts] = {}
    spawn: Histogram = _empty(SHORT)
    """Seconds from a request to the execution of its command, of runs that did not wait in the
    queue."""
    queue_wait: Histogram = _empty(LONG)
    """Seconds from a request to the execution of its command, of runs that did."""
    commit: Histogram = _empty(SHORT)
    """Seconds of each transaction of the ledger."""
    first_byte: Histogram = _empty(FIRST_BYTE)
    """Seconds until an upstream began its reply."""
    of_features: dict[str, dict[str, int]] = {}
    """What features have counted, by the metric's name and the value of its one label."""
    slow_clients: int = 0
    """Clients that were dropped because they did not read."""
    unrecorded: int = 0
    """Events and rows that the ledger will never have."""
    registered: list[str] = []
    """Types of registered agents. Each is counted apart."""

    queued: list[RunId] = []
    """Live runs that have waited in the queue, or do."""

    def published(self, event: Event, now: float) -> None:
        """Count an event. `now`: Unix time."""
        self.events[event.type] = self.events.get(event.type, 0) + 1
        if event.type == "limit_exceeded":
            self._hit(event, int(now) // 60)
        elif event.type == "run_queued" and event.run_id is not None:
            self.queued.append(event.run_id)

    def _hit(self, event: Event, minute: int) -> None:
        kind = "budget" if event.scope in {"user", "team"} else event.limit_kind or OTHER
        actions = self.hit.setdefault(kind, {})
        action = event.action or "none"
        actions[action] = actions.get(action, 0) + 1
        self.hit_by_minute = {
            at: hits for at, hits in self.hit_by_minute.items() if at > minute - HOUR
        }
        self.hit_by_minute[minute] = self.hit_by_minute.get(minute, 0) + 1

    def hit_in_an_hour(self, now: float) -> int:
        """Return the breaches of the hour before `now`, in Unix seconds, to the minute."""
        return sum(hits for at, hits in self.hit_by_minute.items() if at > now // 60 - HOUR)

    def spawn_refused(self, rule: str) -> None:
        self.refused[rule] = self.refused.get(rule, 0) + 1

    def run_started(self, run: RunId, seconds: float) -> None:
        """Count the first start of a run that was asked for so many seconds ago."""
        (self.queue_wait if run in self.queued else self.spawn).observe(seconds)

    def run_ended(self, info: RunInfo) -> None:
        if info.id in self.queued:
            self.queued.remove(info.id)
        self.ended[info.status] = self.ended.get(info.status, 0) + 1
        usage, counts = info.usage, self._of_type(info)
        if usage.elapsed_s is not None:
            counts.duration.observe(usage.elapsed_s)
        if usage.turns is not None:
            counts.turns.observe(usage.turns)
        if usage.cost_usd is not None:
            counts.cost.observe(usage.cost_usd)
        users = self.by_user.setdefault(self.user_label(info.user), UserCounts())
        users.ended += 1
        users.cost_usd += usage.cost_usd or 0.0
        for each in (counts, users):
            each.input_tokens += usage.input_tokens or 0
            each.output_tokens += usage.output_tokens or 0

    def user_label(self, user: str) -> str:
        """Return a user's name as metrics show it, or `OTHER` where too many are counted apart
        already."""
        label = type_label(user)
        return label if label in self.by_user or len(self.by_user) < MAX_USERS else OTHER

    def _of_type(self, info: RunInfo) -> TypeCounts:
        label = type_label(info.type or info.meter or UNTYPED)
        found = self.by_type.get(label)
        if found is None:
            # a run must not use up the types of its operator, so only a root introduces one
            room = info.parent_id is None and len(self.by_type) < MAX_TYPES
            label = label if room or label == UNTYPED or label in self.registered else OTHER
            found = self.by_type.setdefault(label, TypeCounts())
        return found

    def call_recorded(self, call: CallInfo) -> None:
        """Count a call that has ended or was not made."""
        outcome: Outcome
        if call.state in {"refused", "withdrawn"}:
            outcome = "refused" if call.state == "refused" else "withdrawn"
        else:
            outcome = "answered" if call.error is None and (call.status or 0) < 400 else "failed"
        outcomes = self.calls.setdefault(call.upstream, {})
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        if call.first_byte_s is not None:
            self.first_byte.observe(call.first_byte_s)

    def of_feature(self, metric: str, label: str) -> None:
        counted = self.of_features.setdefault(metric, {})
        counted[label] = counted.get(label, 0) + 1

    def registers(self, types: Iterable[str]) -> None:
        self.registered = sorted({type_label(each) for each in types})


def type_label(text: str) -> str:
    """Return a run's type without what could act on a terminal, or break a line of a log."""
    return _ODD.sub("?", text[:64])


Labels = tuple[str, ...]
Values = Mapping[str, Mapping[Labels, float | Histogram]]
"""By the metric's name and the values of its labels. A metric without labels has one value, at
`()`."""
