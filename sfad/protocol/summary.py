"""The answer to `summary`: how the runs of a period ended, and what they used."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import Struct

from .types import RunId, Status

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
