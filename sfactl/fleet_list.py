"""`list --fleet` and `tree --fleet`: the runs of all nodes as one list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from sfad.protocol.encoding import to_json
from sfad.protocol.requests.base import RunReply
from sfad.protocol.requests.listing import Info
from sfad.protocol.types import RunInfo

from . import connection, output, table
from .commands import list as listing
from .exits import UsageError, worst
from .fleet import Fleet, merged, tell_unanswered

CLOCKS = 300.0
"""Seconds by which the clocks of two nodes may differ when the runs below one are looked for."""


def shown(verb: str, fleet: Fleet, values: Mapping[str, Any]) -> int:
    wanted = listing.ListOptions(**values)
    if wanted.sum_:
        raise UsageError("--fleet and --sum exclude each other: sum what --json prints")
    top = None
    if wanted.root:
        top, began = _of_fleet(fleet, wanted.root)
        wanted = replace(wanted, root=None, since=max(wanted.since or 0.0, began - CLOCKS))

    def ask(node: str) -> list[RunInfo]:
        with connection.connect(fleet.place(node)) as client:
            client.be_patient(10.0)
            found = listing.collect(client, wanted.request(), wanted.limit_rows, lambda run: run)
            return list(found.runs.values())

    found, unanswered = fleet.each(ask)
    rows = merged(found) if top is None else _below(top, merged(found))
    if verb == "tree":
        from .commands.tree import show

        code = show([run for _, run in rows], json=wanted.json)
    else:
        code = _list(rows, fleet, unanswered, wanted)
    return worst([code, tell_unanswered(unanswered)])


def _of_fleet(fleet: Fleet, handle: str) -> tuple[str, float]:
    """Return a run's name in the fleet, and when it was created."""
    node, run = fleet.find(handle, "list")
    with connection.connect(fleet.place(node)) as client:
        found = client.call(Info(id=0, run=run), RunReply).run
    given = found.fleet is not None and found.fleet.giver
    return (
        found.fleet.id if found.fleet is not None and given else f"{node}/{found.id}",
        found.created_at.timestamp(),
    )


def _below(top: str, rows: Sequence[tuple[str, RunInfo]]) -> list[tuple[str, RunInfo]]:
    """Return a run and the runs below it."""
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
    wanted: listing.ListOptions,
) -> int:
    if wanted.json:
        runs = b",".join(b'{"node":%b,%b' % (to_json(node), to_json(run)[1:]) for node, run in rows)
        more = to_json({"nodes": fleet.names, "unanswered": sorted(unanswered)})
        output.write(b'{"runs":[%b],%b\n' % (runs, more[1:]))
        return 0
    columns = [column for column in wanted.columns() if column.name != "PARENT"]
    lines = [
        [cells[0], node, *cells[1:]]
        for node, run in rows
        for cells in [[column.cell(run) for column in columns]]
    ]
    names = [columns[0].name, "NODE", *(column.name for column in columns[1:])]
    known = {column.name for column in columns if column.known}
    kept = [
        i
        for i, name in enumerate(names)
        if name not in known or any(line[i] not in ("-", "") for line in lines)
    ]
    text = table.drawn(
        [names[i] for i in kept],
        [[line[i] for i in kept] for line in lines],
        listing.LEAST_FIRST,
        room=None if wanted.wide else table.terminal_width(),
    )
    print(text)
    return 0
