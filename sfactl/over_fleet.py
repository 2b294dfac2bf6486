"""Verbs with --fleet: over all nodes, or on the node where a run is."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from sfad.protocol.encoding import to_json
from sfad.protocol.requests.base import RunReply
from sfad.protocol.requests.listing import Info, List, RunList
from sfad.protocol.requests.subscriptions import (
    ListSubscriptions,
    SubscriptionInfo,
    SubscriptionList,
)
from sfad.protocol.requests.summary import Summarise, Summarised, Summary
from sfad.protocol.types import Limit, RunInfo, Status

from . import exits, fleet_run, output, table
from .commands import events, plans, summary, top, tree, web
from .commands import list as list_
from .connection import connect
from .exits import ExitCode, Quit, UsageError
from .fleet import ANSWER, Fleet, merged, tell_unanswered
from .fleet_calls import added, with_node
from .waiting import Waiting
from .web.options import WebOptions


def carry_out(verb: str, function: Callable[..., int | None], values: dict[str, Any]) -> int:
    """Carry out a verb with --fleet."""
    fleet = Fleet(values.pop("socket", None))
    if verb in _AS_ONE:
        return _AS_ONE[verb](fleet, values)
    limits: list[Limit] = []
    if verb == "limit":
        words = values.pop("words")
        values["runs"] = [word for word in words if isinstance(word, str)]
        limits = [word for word in words if isinstance(word, Limit)]
    single = "run" in values
    handles = [values.pop("run")] if single else values.pop("runs", [])
    if not handles:
        if not (values.get("everything") or values.get("name") or values.get("label")):
            raise UsageError("name runs as NODE/ID, or choose them by --all, --name or --label")
        return _of_each(
            fleet, function, values | ({"words": limits} if verb == "limit" else {"runs": []})
        )
    by_node: dict[str, list[str]] = {}
    code: int = ExitCode.DONE
    for handle in handles:
        try:
            node, run = fleet.find(handle, verb)
        except Quit as error:
            output.note(f"sfactl: {handle}: {error.message}")
            code = exits.worst([code, error.code])
        else:
            by_node.setdefault(node, []).append(run)
    for node, runs in by_node.items():
        given: dict[str, Any] = (
            {"run": runs[0]}
            if single
            else {"words": [*runs, *limits]}
            if verb == "limit"
            else {"runs": runs}
        )
        code = exits.worst([code, function(**values, **given, socket=fleet.place(node))])
    return code


def _of_each(fleet: Fleet, function: Callable[..., int | None], values: Mapping[str, Any]) -> int:
    """Carry out a verb on all nodes at once. Name the nodes that did not answer."""
    codes, unanswered = fleet.each(lambda node: function(**values, socket=fleet.place(node)))
    return exits.worst([*codes.values(), tell_unanswered(unanswered)])


# ---- `list` and `tree`: the runs of all nodes as one list

CLOCKS = 300.0
"""Seconds by which the clocks of two nodes may differ when the runs below one are looked for."""


def _runs(verb: str, fleet: Fleet, values: dict[str, Any]) -> int:
    wanted = list_.ListOptions(**values)
    if wanted.sum_:
        raise UsageError("--fleet and --sum exclude each other: sum what --json prints")
    top = None
    if wanted.root:
        top, began = _of_fleet(fleet, wanted.root)
        wanted = replace(wanted, root=None, since=max(wanted.since or 0.0, began - CLOCKS))

    def ask(node: str) -> list[RunInfo]:
        with connect(fleet.place(node)) as client:
            client.be_patient(10.0)
            found = list_.collect(client, wanted.request(), wanted.limit_rows, lambda run: run)
            return list(found.runs.values())

    found, unanswered = fleet.each(ask)
    rows = merged(found) if top is None else _below(top, merged(found))
    if verb == "tree":
        tree.show([run for _, run in rows], json=wanted.json)
    else:
        _list(rows, fleet, unanswered, wanted)
    return tell_unanswered(unanswered)


def _of_fleet(fleet: Fleet, handle: str) -> tuple[str, float]:
    """Return a run's name in the fleet, and when it was created."""
    node, run = fleet.find(handle, "list")
    with connect(fleet.place(node)) as client:
        found = client.call(Info(id=0, run=run), RunReply).run
    given = found.fleet is not None and found.fleet.giver
    return (
        found.fleet.id if found.fleet is not None and given else f"{node}/{found.id}",
        found.created_at.timestamp(),
    )


def _below(top: str, rows: Sequence[tuple[str, RunInfo]]) -> list[tuple[str, RunInfo]]:
    """Return a run and the runs below it. A filter may have left out the run itself."""
    children: dict[str | None, list[str]] = {}
    for _, run in rows:
        children.setdefault(run.parent_id, []).append(run.id)
    kept, left = set(), [top]
    while left:
        kept.add(run_id := left.pop())
        left += children.get(run_id, ())
    return [(node, run) for node, run in rows if run.id in kept]


def _list(
    rows: list[tuple[str, RunInfo]],
    fleet: Fleet,
    unanswered: Mapping[str, str],
    wanted: list_.ListOptions,
) -> None:
    if wanted.json:
        runs = b",".join(b'{"node":%b,%b' % (to_json(node), to_json(run)[1:]) for node, run in rows)
        more = to_json({"nodes": fleet.names, "unanswered": sorted(unanswered)})
        output.write(b'{"runs":[%b],%b\n' % (runs, more[1:]))
        return
    nodes = {run.id: node for node, run in rows}
    first, *others = (column for column in wanted.columns() if column.name != "PARENT")
    columns = [first, list_.Column("NODE", lambda run: nodes[run.id]), *others]
    cells = [[column.cell(run) for column in columns] for _, run in rows]
    users = {run.user for _, run in rows}
    room = None if wanted.wide else table.terminal_width()
    print(list_.drawn(columns, cells, users, wide=wanted.wide, room=room))


# ---- `summary`: each run is told by the node that executes it


def _summary(fleet: Fleet, values: dict[str, Any]) -> int:
    options = summary.SummaryOptions(**values)
    wanted = options.request()
    wanted.here = True
    found, unanswered = fleet.each(lambda node: _told(fleet, node, wanted))
    if found:
        whole = added([told for told, _ in found.values()])
        waits = [one for _, told in found.values() for one in told]
        if options.json:
            summary.print_json(whole, waits, nodes=fleet.names, unanswered=sorted(unanswered))
        else:
            summary.show(whole, waits, options.by)
    return tell_unanswered(unanswered)


def _told(fleet: Fleet, node: str, wanted: Summarise) -> tuple[Summary, list[Waiting]]:
    """Return what a node tells of the runs that it executes, with the names that these have in the
    fleet."""
    with connect(fleet.place(node)) as client:
        found = client.call(wanted, Summarised).summary
        live = client.call(
            List(id=0, status=[each for each in Status if not each.terminal], rows=0), RunList
        ).runs
        own = {run.id for run in live if run.fleet is None or run.fleet.node is None}
        named = _namer(
            node, {run.id for run in live} | {each.run for run in live for each in run.after}
        )
        waits = [
            one  # its worktree is on this node, where `land` takes no other name
            if one.what == "unlanded"
            else replace(
                one,
                runs=[f"{node}/{run}" for run in one.runs],
                message=named(one.message),
                command=named(one.command),
            )
            for one in summary.waiting(client, wanted, found, here=node == fleet.own)
            if not one.runs or one.what == "unlanded" or own.intersection(one.runs)
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


def _plans(fleet: Fleet, values: dict[str, Any]) -> int:
    found, unanswered = fleet.each(lambda node: _accounts(fleet, node))
    newest: dict[tuple[str, str], SubscriptionInfo] = {}
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
        plans.show(list(newest.values()), forecast=bool(values.get("forecast")))
    return tell_unanswered(unanswered)


def _accounts(fleet: Fleet, node: str) -> list[SubscriptionInfo]:
    with connect(fleet.place(node)) as client:
        accounts = client.call(ListSubscriptions(id=0), SubscriptionList).accounts
    return [
        replace(account, held=[f"{node}/{run}" for run in account.held]) for account in accounts
    ]


# ---- `events` and `top`


def _events(fleet: Fleet, values: dict[str, Any]) -> int:
    """Print the events of each node, with its name. They are in the order in which they come."""
    options = events.EventOptions(**values)
    if options.run:
        raise UsageError(
            "--fleet and --run exclude each other: events of a run are on its node (sfactl info "
            "NODE/ID)"
        )
    lock = threading.Lock()

    def tell(line: str) -> None:
        with lock:
            print(line, flush=True)

    def show(node: str) -> None:
        events.show(options.request(), fleet.place(node), json=options.json, tell=tell, node=node)

    _, unanswered = fleet.each(show, within=None if options.follow_ else ANSWER)
    return tell_unanswered(unanswered)


def _top(fleet: Fleet, values: dict[str, Any]) -> int:
    if values["root"]:
        raise UsageError(
            "--fleet shows the runs of all nodes: leave out RUN, and type / to filter them"
        )
    return top.show(top.TopOptions(**values), fleet)


_AS_ONE: dict[str, Callable[[Fleet, dict[str, Any]], int]] = {
    "list": partial(_runs, "list"),
    "tree": partial(_runs, "tree"),
    "summary": _summary,
    "plans": _plans,
    "web": lambda fleet, values: web.serve(WebOptions(**values), fleet),
    "top": _top,
    "events": _events,
    "logs": fleet_run.logs,
}
