"""`list --fleet` and `tree --fleet`: the runs of all nodes as one list."""

from __future__ import annotations

from sfad.protocol.requests.listing import List
from sfad.protocol.structs import to_json

from . import connection, output, table
from .commands import list as listing
from .exits import UsageError, worst
from .fleet import merged, tell_unanswered
from .options import count
from .selection import labels

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from sfad.protocol.types import RunInfo

    from .fleet import Fleet

_NOT_YET = ("root", "group", "sum_", "live")
"""Options that mean something on one node only."""


def shown(verb: str, fleet: Fleet, values: Mapping[str, Any]) -> int:
    for name in _NOT_YET:
        if values.get(name):
            raise UsageError(
                f"--fleet cannot be given with {'RUN' if name == 'root' and verb == 'tree' else '--' + name.rstrip('_')}"
            )
    json, wide = bool(values.get("json")), bool(values.get("wide"))
    since = values.get("since")
    most = count("--limit-rows", values.get("limit_rows"))

    def ask(node: str) -> list[RunInfo]:
        wanted = List(
            id=0,
            status=[listing.status_of(text) for text in values.get("status", ())],
            name=list(values.get("name", ())) or None,
            user=values.get("user"),
            since=None if since is None else listing.moment(since),
            labels=labels(values.get("label", ())),
            limits=json or wide,
        )
        with connection.connect(fleet.place(node)) as client:
            client.be_patient(10.0)
            return list(listing.collect(client, wanted, most, lambda run: run).runs.values())

    found, unanswered = fleet.each(ask)
    rows = merged(found)
    if verb == "tree":
        from .commands.tree import show

        code = show([run for _, run in rows], json=json)
    else:
        code = _list(rows, fleet, unanswered, values, json=json, wide=wide)
    return worst([code, tell_unanswered(unanswered)])


def _list(
    rows: list[tuple[str, RunInfo]],
    fleet: Fleet,
    unanswered: Mapping[str, str],
    values: Mapping[str, Any],
    *,
    json: bool,
    wide: bool,
) -> int:
    if json:
        runs = b",".join(b'{"node":%b,%b' % (to_json(node), to_json(run)[1:]) for node, run in rows)
        more = to_json({"nodes": fleet.names, "unanswered": sorted(unanswered)})
        output.write(b'{"runs":[%b],%b\n' % (runs, more[1:]))
        return 0
    columns = [
        column
        for column in listing.COLUMNS
        if column.name != "PARENT" and column.shown(live=False, labels=bool(values.get("labels")), wide=wide)
    ]
    lines = [[cells[0], node, *cells[1:]] for node, run in rows for cells in [[column.cell(run) for column in columns]]]
    names = [columns[0].name, "NODE", *(column.name for column in columns[1:])]
    known = {column.name for column in columns if column.known}
    kept = [i for i, name in enumerate(names) if name not in known or any(line[i] not in ("-", "") for line in lines)]
    text = table.drawn(
        [names[i] for i in kept],
        [[line[i] for i in kept] for line in lines],
        listing.LEAST_FIRST,
        room=None if wide else table.terminal_width(),
    )
    print(text)
    return 0
