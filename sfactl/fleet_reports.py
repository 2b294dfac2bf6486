"""`summary` and `plans` of all nodes."""

from __future__ import annotations

import re
from collections import Counter

from sfad.protocol.requests.advice import Group, Summarised, Summary
from sfad.protocol.requests.listing import List, RunList
from sfad.protocol.requests.plans import PlanList, Plans
from sfad.protocol.structs import replace
from sfad.protocol.types import Status

from . import connection, output
from .commands import plans as one_nodes_plans
from .commands import summary as one_nodes_summary
from .fleet import Fleet, tell_unanswered
from .waiting import Waiting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from typing import Any

    from sfad.protocol.requests.advice import Summarise
    from sfad.protocol.requests.plans import PlanAccount
    from sfad.protocol.types import PlanShare

    Told = tuple[Summary, list[Waiting]]


# ---- `summary`: each run is told by the node that executes it

GROUPS, COSTLY = 100, 5
"""As many as one node tells."""


def summary(fleet: Fleet, values: Mapping[str, Any]) -> int:
    since, by = values.get("since", "12h"), values.get("by", "name")
    wanted = one_nodes_summary.wanted_by(since, by, values.get("name", ()), values.get("user"), values.get("label", ()))
    wanted.here = True
    found, unanswered = fleet.each(lambda node: _told(fleet, node, wanted))
    if found:
        whole = added([told for told, _ in found.values()])
        waits = [one for _, told in found.values() for one in told]
        if values.get("json"):
            one_nodes_summary.print_json(whole, waits, nodes=fleet.names, unanswered=sorted(unanswered))
        else:
            one_nodes_summary.show(whole, waits, by)
    return tell_unanswered(unanswered)


def _told(fleet: Fleet, node: str, wanted: Summarise) -> Told:
    """Return what a node tells of the runs that it executes, with the names that these have in the fleet."""
    with connection.connect(fleet.place(node)) as client:
        found = client.call(wanted, Summarised).summary
        live = client.call(List(id=0, status=[each for each in Status if not each.terminal], rows=0), RunList).runs
        own = {run.id for run in live if run.fleet is None or run.fleet.node is None}
        named = _namer(node, {run.id for run in live} | {each.run for run in live for each in run.after})
        waits = [
            replace(one, runs=[f"{node}/{run}" for run in one.runs], message=named(one.message), command=named(one.command))
            for one in one_nodes_summary.waiting(client, wanted, found)
            if not one.runs or own.intersection(one.runs)
        ]
    return with_node(found, node), waits


def _namer(node: str, known: Collection[str]) -> Callable[[str], str]:
    """Return what puts the node before each of these ids in a text."""
    return lambda text: re.sub(r"(?<![\w/])[a-z][0-9a-v]+(?!\w)", lambda m: f"{node}/{m[0]}" if m[0] in known else m[0], text)


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


# ---- `plans`: each subscription once, as it was heard of last


def plans(fleet: Fleet, values: Mapping[str, Any]) -> int:
    found, unanswered = fleet.each(lambda node: _accounts(fleet, node))
    newest: dict[tuple[str, str], PlanAccount] = {}
    for account in (each for accounts in found.values() for each in accounts):
        key = account.provider, account.account
        before = newest.get(key)
        latest = account if before is None or account.heard_at > before.heard_at else before
        newest[key] = replace(latest, held=[*(before.held if before is not None else ()), *account.held])
    if values.get("json"):
        output.print_json({"accounts": list(newest.values()), "nodes": fleet.names, "unanswered": sorted(unanswered)})
    elif found:
        one_nodes_plans.show(list(newest.values()), forecast=bool(values.get("forecast")))
    return tell_unanswered(unanswered)


def _accounts(fleet: Fleet, node: str) -> list[PlanAccount]:
    with connection.connect(fleet.place(node)) as client:
        accounts = client.call(Plans(id=0), PlanList).accounts
    return [replace(account, held=[f"{node}/{run}" for run in account.held]) for account in accounts]
