"""`sfactl list`

Without filters: the runs that are live and the last 50 that ended, newest last. Turns, tokens and USD are shown where they are
known of any of them; they are the run's own, without its descendants'.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sfad.protocol import messages as m
from sfad.protocol.types import RunInfo, Status, Usage
from sfad.protocol.units import MOST_WHOLE, parse_duration

from .. import environment, output
from ..connection import connect
from ..exits import Exit, UsageError
from ..options import COMMON, Option, Parameter
from ..several import labels

PARAMETERS: tuple[Parameter, ...] = (
    *COMMON,
    Option(("--status",), "status", "Only runs with this status", "STATUS", many=True, complete="status"),
    Option(("--name",), "name", "Only runs of this name", "NAME", complete="name"),
    Option(("--user",), "user", "Only this user's runs", "USER", complete="user"),
    Option(("--root",), "root", "Only this run's tree", "RUN", complete="run"),
    Option(("--since",), "since", "Only runs created since: 1h ago, or an RFC 3339 time", "TIME"),
    Option(
        ("--label",), "label", "Only runs with this label; of one key, any of the values given", "K=V", many=True, complete="label"
    ),
    Option(("--limit-rows",), "limit_rows", "Ended runs at most; else 50", "N"),
    Option(("--live",), "live", "Count processes and memory of each run"),
)


def main(
    *,
    status: Sequence[str] = (),
    name: str | None = None,
    user: str | None = None,
    root: str | None = None,
    since: str | None = None,
    label: Sequence[str] = (),
    limit_rows: str | None = None,
    live: bool = False,
    socket: str | None = None,
    json: bool = False,
) -> int:
    """Lists runs."""
    wanted = m.List(
        id=0,
        status=[_status(text) for text in status],
        name=name,
        user=user,
        root=root,
        since=None if since is None else moment(since),
        labels=labels(label),
        rows=50 if limit_rows is None else environment.whole("--limit-rows", limit_rows, 0, MOST_WHOLE),
        live=live,
    )
    with connect(socket) as client:
        wanted.id = client.next_id()
        found = client.call(wanted, m.RunList).runs
    if json:
        output.print_json({"runs": found})
    else:
        print(_table(found, live))
    return Exit.DONE


def _status(text: str) -> Status:
    try:
        return Status(text)
    except ValueError:
        raise UsageError(f"--status: unknown status {text!r}; choose from: {', '.join(Status)}") from None


def moment(text: str) -> float:
    """Unix seconds of `--since`: a duration ago, or a time. Raises `UsageError`."""
    from datetime import datetime

    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        pass
    try:
        return time.time() - parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--since: {text!r} is neither a time (2026-01-31T12:00:00Z) nor a duration: {error}") from None


def _table(runs: Sequence[RunInfo], live: bool) -> str:
    used = [column for column in USAGE if any(column.cell(run.usage) != "-" for run in runs)]
    load = ("PROCS", "MEMORY") if live else ()
    header = ["ID", "NAME", "STATUS", "DEPTH", "PARENT", "AGE", "RAN", *load, *(column.name for column in used), "COMMAND"]
    return output.table(header, (_row(run, live, used) for run in runs))


def _row(run: RunInfo, live: bool, used: Sequence[Column]) -> list[str]:
    load = ["-" if run.processes is None else str(run.processes), output.size(run.memory_bytes)] if live else []
    ages = [output.age(run.created_at), output.seconds(run.usage.elapsed_s)]
    start = [run.id, run.name, output.outcome(run), str(run.depth), run.parent_id or "-"]
    return [*start, *ages, *load, *(column.cell(run.usage) for column in used), output.command(run)]


class Column(NamedTuple):
    """A column of the table that is there if one of the runs has something in it."""

    name: str
    cell: Callable[[Usage], str]


USAGE = (
    Column("TURNS", lambda usage: output.short(usage.turns)),
    Column("TOKENS", lambda usage: output.bounded(output.short(usage.tokens), usage)),
    Column("USD", lambda usage: output.bounded(output.usd(usage.cost_usd), usage)),
)
"""What a run used itself, its descendants not counted."""
