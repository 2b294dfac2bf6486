"""Summaries of several nodes as one."""

from __future__ import annotations

from collections import Counter

from sfad.protocol.requests.advice import Group, Summary
from sfad.protocol.structs import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from sfad.protocol.types import PlanShare, Status

GROUPS, COSTLY = 100, 5
"""As many as one node tells."""


def with_node(found: Summary, node: str) -> Summary:
    """Return a node's summary with the node before the ids of its runs."""
    return replace(
        found,
        breaches=[replace(one, run_id=f"{node}/{one.run_id}") for one in found.breaches],
        failed=[replace(one, run_id=f"{node}/{one.run_id}") for one in found.failed],
        costly=[replace(one, run_id=f"{node}/{one.run_id}") for one in found.costly],
        lines=[replace(one, runs=[f"{node}/{run}" for run in one.runs]) for one in found.lines],
    )


def added(found: Sequence[Summary]) -> Summary:
    """Return the summary of all nodes."""
    by_status: Counter[Status] = Counter()
    groups: dict[str | None, Group] = {}
    for one in found:
        by_status.update(one.by_status)
        for group in one.groups:
            before = groups.get(group.key)
            groups[group.key] = group if before is None else _both(before, group)
    return Summary(
        since=min(one.since for one in found),
        until=max(one.until for one in found),
        runs=sum(one.runs for one in found),
        by_status=dict(sorted(by_status.items())),
        cost_usd=_sum(one.cost_usd for one in found),
        tokens=_sum(one.tokens for one in found),
        partial=any(one.partial for one in found),
        at_most=any(one.at_most for one in found),
        groups=sorted(groups.values(), key=lambda one: (-(one.cost_usd or 0.0), -one.runs, one.key or ""))[:GROUPS],
        breaches=[breach for one in found for breach in one.breaches],
        failed=[failed for one in found for failed in one.failed],
        costly=sorted((costly for one in found for costly in one.costly), key=lambda one: -one.cost_usd)[:COSTLY],
        lines=[line for one in found for line in one.lines],
    )


def _both(one: Group, other: Group) -> Group:
    return replace(
        one,
        runs=one.runs + other.runs,
        failed=one.failed + other.failed,
        cost_usd=_sum((one.cost_usd, other.cost_usd)),
        tokens=_sum((one.tokens, other.tokens)),
        partial=one.partial or other.partial,
        at_most=one.at_most or other.at_most,
        plans=_shares((*one.plans, *other.plans)),
    )


def _shares(plans: Iterable[PlanShare]) -> list[PlanShare]:
    found: dict[tuple[str, str, str], PlanShare] = {}
    for each in plans:
        key = each.provider, each.account, each.window
        found[key] = replace(each, share=round(each.share + (found[key].share if key in found else 0.0), 4))
    return list(found.values())


def _sum(amounts: Iterable[Any]) -> Any:
    """Return the sum of what is known; `None` if nothing is."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None
