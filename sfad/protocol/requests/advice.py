"""What is learned from runs: advice about limits, and sums."""

from __future__ import annotations

from ..structs import Literal, Struct, datetime
from ..types import Limit, LimitKind, RunId, Status
from .base import Reply, Request

# ---- The answers to `recommend` and `summary`. docs/protocol.md describes each field.


class Advice(Struct, frozen=True, kw_only=True):
    """Advice about one kind of limit. The unit is that of `Limit.threshold`: seconds, USD, else a number."""

    kind: LimitKind
    runs: int
    p95: float | None
    """What 95 in 100 of them used at most; `None` if they are too few."""
    suggested: float | None
    failed_share: float | None
    """The share of all ended runs that ended by a breach of it, 0 to 1; `None` if none has ended."""
    ended: int = 0
    limit: float | None = None
    least: float | None = None
    """The lower end of the range. `most` is the upper end; `None` if there is none."""
    most: float | None = None
    note: str = ""


By = Literal["name", "label", "user", "model", "type"]
GROUPED_BY: tuple[By, ...] = ("name", "label", "user", "model", "type")


class Group(Struct, frozen=True, kw_only=True):
    key: str | None
    runs: int
    cost_usd: float | None
    tokens: int | None
    failed: int
    partial: bool = False
    at_most: bool = False


class Breach(Struct, frozen=True, kw_only=True):
    run_id: RunId
    limit_kind: str
    used: float | None
    threshold: float | None
    scope: str = "run"
    """Whose limit it is. `user` and `team`: a budget, of which the run has used the last part."""


class Failed(Struct, frozen=True, kw_only=True):
    run_id: RunId
    name: str
    reason: str
    below: list[RunId] = []
    """The path to the run whose failure is the cause: the end of `reason`, after the path."""


class Costly(Struct, frozen=True, kw_only=True):
    run_id: RunId
    name: str
    status: Status
    cost_usd: float
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
    """The runs that were created in a period, children included. Each run's own use is counted once."""

    since: datetime
    until: datetime
    runs: int
    by_status: dict[Status, int]
    cost_usd: float | None
    tokens: int | None
    partial: bool
    """The sums are that much at least."""
    groups: list[Group]
    breaches: list[Breach]
    failed: list[Failed]
    costly: list[Costly] = []
    at_most: bool = False
    """A part of the sums is an upper bound."""
    lines: list[ContinuedLine] = []
    """Of the period, by their last runs."""


# ---- advice


class Recommend(Request, tag="recommend"):
    """Suggest limits from past successful runs. Answered by `Recommended`."""

    repeats = 1

    run_type: str | None = None
    name: str | None = None


class Recommended(Reply, tag="recommended"):
    """Advice for each kind of limit, and the limits in force for a run of this type that sets none itself."""

    runs: int
    advice: list[Advice]
    in_force: list[Limit]


class Summarise(Request, tag="summary"):
    """Report how the runs created since a time ended, and what they used; live runs as they are now. Answered by `Summarised`."""

    repeats = 1

    since: float
    by: By = "name"
    name: str | list[str] | None = None
    user: str | None = None
    labels: dict[str, str | list[str]] = {}


class Summarised(Reply, tag="summarised"):
    summary: Summary
