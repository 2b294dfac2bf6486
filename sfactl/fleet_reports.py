"""`summary` and `plans` of all nodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from msgspec.structs import replace

from sfad.protocol.requests.advice import Summarise, Summarised, Summary
from sfad.protocol.requests.listing import List, RunList
from sfad.protocol.requests.plans import PlanAccount, PlanList, Plans
from sfad.protocol.types import Status

from . import connection, output
from .commands import plans as one_nodes_plans
from .commands import summary as one_nodes_summary
from .fleet import Fleet, tell_unanswered
from .fleet_calls import added, with_node
from .waiting import Waiting

Told = tuple[Summary, list[Waiting]]


# ---- `summary`: each run is told by the node that executes it


def summary(fleet: Fleet, values: Mapping[str, Any]) -> int:
    options = one_nodes_summary.SummaryOptions(**values)
    wanted = options.request()
    wanted.here = True
    found, unanswered = fleet.each(lambda node: _told(fleet, node, wanted))
    if found:
        whole = added([told for told, _ in found.values()])
        waits = [one for _, told in found.values() for one in told]
        if options.json:
            one_nodes_summary.print_json(
                whole, waits, nodes=fleet.names, unanswered=sorted(unanswered)
            )
        else:
            one_nodes_summary.show(whole, waits, options.by)
    return tell_unanswered(unanswered)


def _told(fleet: Fleet, node: str, wanted: Summarise) -> Told:
    """Return what a node tells of the runs that it executes, with the names that these have in the
    fleet."""
    with connection.connect(fleet.place(node)) as client:
        found = client.call(wanted, Summarised).summary
        live = client.call(
            List(id=0, status=[each for each in Status if not each.terminal], rows=0), RunList
        ).runs
        own = {run.id for run in live if run.fleet is None or run.fleet.node is None}
        named = _namer(
            node, {run.id for run in live} | {each.run for run in live for each in run.after}
        )
        waits = [
            replace(
                one,
                runs=[f"{node}/{run}" for run in one.runs],
                message=named(one.message),
                command=named(one.command),
            )
            for one in one_nodes_summary.waiting(client, wanted, found)
            if not one.runs or own.intersection(one.runs)
        ]
    return with_node(found, node), waits


def _namer(node: str, known: Collection[str]) -> Callable[[str], str]:
    """Return what puts the node before each of these ids in a text."""
    return lambda text: re.sub(
        r"(?<![\w/])[a-z][0-9a-v]+(?!\w)",
        lambda m: f"{node}/{m[0]}" if m[0] in known else m[0],
        text,
    )


# ---- `plans`: each subscription once, as it was heard of last


def plans(fleet: Fleet, values: Mapping[str, Any]) -> int:
    found, unanswered = fleet.each(lambda node: _accounts(fleet, node))
    newest: dict[tuple[str, str], PlanAccount] = {}
    for account in (each for accounts in found.values() for each in accounts):
        key = account.provider, account.account
        before = newest.get(key)
        latest = account if before is None or account.heard_at > before.heard_at else before
        newest[key] = replace(
            latest, held=[*(before.held if before is not None else ()), *account.held]
        )
    if values.get("json"):
        output.print_json(
            {
                "accounts": list(newest.values()),
                "nodes": fleet.names,
                "unanswered": sorted(unanswered),
            }
        )
    elif found:
        one_nodes_plans.show(list(newest.values()), forecast=bool(values.get("forecast")))
    return tell_unanswered(unanswered)


def _accounts(fleet: Fleet, node: str) -> list[PlanAccount]:
    with connection.connect(fleet.place(node)) as client:
        accounts = client.call(Plans(id=0), PlanList).accounts
    return [
        replace(account, held=[f"{node}/{run}" for run in account.held]) for account in accounts
    ]
