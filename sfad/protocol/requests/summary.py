"""How runs ended and what they used: sums of a period."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import Struct

from ..types import RunId, Status, WindowShare
from .base import Reply, Request

By = Literal["name", "label", "user", "model", "type"]
GROUPED_BY: tuple[By, ...] = ("name", "label", "user", "model", "type")


class Group(Struct, frozen=True, kw_only=True):
    """The runs of a group: what they used, and how many failed, timed out or were lost."""

    key: str | None
    """A label as `K=V`; `None` for runs without a model or type."""
    runs: int
    cost_usd: float | None
    tokens: int | None
    failed: int
    """Failed, timed out or lost."""
    partial: bool = False
    at_most: bool = False
    checked: int = 0
    """Completed, and checked before (docs/checks.md)."""
    unchecked: int = 0
    """Completed without a check."""
    plans: list[WindowShare] = []
    """The sums of its runs' shares of windows."""


class Breach(Struct, frozen=True, kw_only=True):
    """A limit that was exceeded, with any action."""

    run_id: RunId
    limit_kind: str
    used: float | None
    threshold: float | None
    scope: str = "run"
    """Whose limit it is. `user` and `team`: a budget, of which the run has used the last part."""
    refused: bool = False
    """More was asked for and refused."""
    reserved: float | None = None
    """What was reserved beyond `used`, if anything. The limit counts both."""


class Failed(Struct, frozen=True, kw_only=True):
    """A run that failed."""

    run_id: RunId
    name: str
    reason: str
    """For people."""
    below: list[RunId] = []
    """The path to the run whose failure is the cause: the end of `reason`, after the path."""


class Costly(Struct, frozen=True, kw_only=True):
    """One of the most expensive runs, with what it used itself."""

    run_id: RunId
    name: str
    status: Status
    cost_usd: float
    """What it has used itself, without its descendants."""
    tokens: int | None
    partial: bool
    at_most: bool = False


class ContinuedLine(Struct, frozen=True, kw_only=True):
    """Runs that have continued each other's session."""

    runs: list[RunId]
    """The first run, the one that continues it, and so on. Those before the period are left out."""
    name: str
    status: Status
    """Of the last."""
    cost_usd: float | None
    """Of these runs, without their descendants."""
    tokens: int | None
    partial: bool
    at_most: bool = False


class Summary(Struct, frozen=True, kw_only=True):
    """The runs created in a period, with descendants. Each run's own use counts once."""

    since: datetime
    until: datetime
    runs: int
    by_status: dict[Status, int]
    cost_usd: float | None
    """`None` if no cost is known, as `tokens`."""
    tokens: int | None
    partial: bool
    """The sums are that much at least."""
    groups: list[Group]
    """Most expensive first, at most 100."""
    breaches: list[Breach]
    """The newest 1 000, oldest first."""
    failed: list[Failed]
    """The newest 1 000, oldest first."""
    costly: list[Costly] = []
    """The most expensive runs, at most 5."""
    at_most: bool = False
    """A part of the sums is an upper bound."""
    lines: list[ContinuedLine] = []
    """Of the period, by their last runs."""


class Summarise(Request, tag="summary"):
    """Return how runs ended and what they used. Answered by `Summarised`."""

    repeats = 1

    since: float
    """Unix time, as in `List`."""
    by: By = "name"
    """What groups are made by."""
    name: str | list[str] | None = None
    user: str | None = None
    labels: dict[str, str | list[str]] = {}
    until: float | None = None
    """Only runs created before."""
    groups_only: bool = False
    """Leave all but the groups empty: each other figure reads all rows again."""
    here: bool = False
    """Without the runs that another node has taken: that one tells of them."""
    missing: list[str] = []
    """With `here`: nodes that do not answer, so that this one tells of what they have taken."""
    run_type: str | list[str] | None = None
    """As in `List`, like the next two."""
    channel: str | list[str] | None = None
    model: str | list[str] | None = None


class Summarised(Reply, tag="summarised"):
    summary: Summary
