"""What runs have used together with their descendants, each counted once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from ..protocol.types import RunId, RunInfo, Usage


class Used(NamedTuple):
    """What a run, or several, have used; `None` where it is not known."""

    parent: RunId | None
    cost_usd: float | None
    tokens: int | None
    partial: bool
    at_most: bool

    def plus(self, more: Used) -> Used:
        costs = [cost for cost in (self.cost_usd, more.cost_usd) if cost is not None]
        tokens = [count for count in (self.tokens, more.tokens) if count is not None]
        marks = self.partial or more.partial, self.at_most or more.at_most
        return Used(self.parent, round(sum(costs), 9) if costs else None, sum(tokens) if tokens else None, *marks)


NOTHING = Used(None, None, None, partial=False, at_most=False)


def used_by(parent: RunId | None, usage: Usage) -> Used:
    return Used(parent, usage.cost_usd, usage.tokens, at_least(usage), usage.at_most)


def at_least(usage: Usage) -> bool:
    """Return whether tokens and cost are lower bounds: they may still grow, or some tokens have no price."""
    return usage.partial or bool(usage.unpriced_tokens)


def with_totals(runs: Iterable[RunInfo], used: Mapping[RunId, Used]) -> list[RunInfo]:
    """Add the totals to each run. `used` has the descendants of each run with any."""
    runs = list(runs)
    totals = {**used, **{info.id: used_by(info.parent_id, info.usage) for info in runs}}
    for run in sorted(totals, reverse=True):  # a child has a higher id than its parent
        parent = totals[run].parent
        if parent in totals:
            totals[parent] = totals[parent].plus(totals[run])
    return [_with_total(info, totals[info.id]) for info in runs]


def _with_total(info: RunInfo, total: Used) -> RunInfo:
    return msgspec.structs.replace(
        info,
        total_cost_usd=total.cost_usd,
        total_tokens=total.tokens,
        total_partial=total.partial,
        total_at_most=total.at_most,
    )
