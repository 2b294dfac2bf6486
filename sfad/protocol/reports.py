"""The answers to `recommend` and `summary`."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import Struct

from .types import LimitKind, RunId, Status


class Advice(Struct, frozen=True, kw_only=True):
    """Advice about one kind of limit. The unit is that of `Limit.threshold`: seconds, USD, else a number."""

    kind: LimitKind
    runs: int
    """Successful runs whose use of it is known."""
    p95: float | None
    """What 95 in 100 of them used at most; `None` if they are too few."""
    suggested: float | None
    """`p95` and a quarter, rounded up, within the range of the kind; `None` if `p95` is."""
    failed_share: float | None
    """The share of all ended runs that ended by a breach of it, 0 to 1; `None` if none has ended."""
    ended: int = 0
    """All ended runs that were read. Refused runs are not among them."""
    limit: float | None = None
    """The threshold of the newest run that had such a limit; `None` if none had one."""
    least: float | None = None
    """The lower end of the range. `most` is the upper end; `None` if there is none."""
    most: float | None = None
    note: str = ""
    """Why there is no suggestion, or that the range changed it."""


By = Literal["name", "label", "user", "model", "type"]
"""What runs are grouped by."""


class Group(Struct, frozen=True, kw_only=True):
    """Runs with one name, label, user, model or type."""

    key: str | None
    """A label as `K=V`; `None` where the run has no model or type."""
    runs: int
    cost_usd: float | None
    tokens: int | None
    failed: int
    partial: bool = False


class Breach(Struct, frozen=True, kw_only=True):
    """A limit that was exceeded, whatever its action."""

    run_id: RunId
    limit_kind: str
    used: float | None
    threshold: float | None


class Failed(Struct, frozen=True, kw_only=True):
    """A run that ended as failed, timeout or lost."""

    run_id: RunId
    name: str
    reason: str


class Costly(Struct, frozen=True, kw_only=True):
    """One of the runs that cost most."""

    run_id: RunId
    name: str
    status: Status
    cost_usd: float
    tokens: int | None
    partial: bool


class Summary(Struct, frozen=True, kw_only=True):
    """The runs that were created in a period, children included. Each run's own use is counted once."""

    since: datetime
    until: datetime
    runs: int
    by_status: dict[Status, int]
    cost_usd: float | None
    """`None` where no cost is known."""
    tokens: int | None
    partial: bool
    """The sums are that much at least."""
    groups: list[Group]
    """The most expensive first, at most 100."""
    breaches: list[Breach]
    """The newest 1 000, oldest first."""
    failed: list[Failed]
    """The newest 1 000, oldest first."""
    costly: list[Costly] = []
    """The most expensive first, at most 5."""
