"""What is learned from runs: advice about limits, and sums."""

from __future__ import annotations

from ..statistics import Advice, By, Summary
from ..types import Limit
from .base import Reply, Request


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
