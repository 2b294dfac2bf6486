from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from sfad.protocol.requests.listing import List, RunList
from sfad.protocol.texts.units import counted
from sfad.protocol.types import RunInfo, Usage

from .. import output
from ..app import OverFleet, app
from ..connecting.connection import connect
from ..options.shared import Json, MaybeRun, Socket, flag
from ..showing.lines import Line, line_of
from ..showing.pages import QUEUED, tell_queued
from ..showing.waiting import awaited, near, share
from ..top.table import children

Below = Mapping[str | None, Sequence[RunInfo]]


@app.command(cls=OverFleet)
def tree(
    root: MaybeRun = None,
    socket: Socket = None,
    json: Json = False,
    live: Annotated[bool, flag("Show the processes and memory of each run")] = False,
) -> None:
    """Show runs as a tree.

    Shows live runs and those that ended recently, below their parents. With RUN, only its tree.
    The time is the age of a live run, and how long one that has ended ran. The user is named if
    there are runs of other users. The first 20 queued runs are shown, and the others counted.
    """
    with connect(socket) as client:
        page = client.call(List(id=0, root=root, live=live, queued=QUEUED), RunList)
        runs = page.runs
        # each line is told once, where it ends
        ends = (
            {}
            if json
            else {
                run.id: line_of(client, run)
                for run in runs
                if run.continues is not None and run.continued_by is None
            }
        )
    show(runs, json=json, ends=ends)
    tell_queued(page.queued)


def show(
    runs: Sequence[RunInfo], *, json: bool, ends: Mapping[str, Line | None] | None = None
) -> None:
    below = children(runs)
    if json:
        output.print_json({"tree": [_nested(run, below) for run in below.get(None, ())]})
    else:
        users = output.of_others(run.user for run in runs)
        print("\n".join(lines(below, users=users, ends=ends)) or "no runs")


def lines(
    below: Below,
    parent: str | None = None,
    indent: str = "",
    *,
    users: bool = False,
    ends: Mapping[str, Line | None] | None = None,
) -> Iterator[str]:
    """Yield a line for each run, children drawn below their parent. `users`: name the user of each
    tree; `ends`: by the last runs of lines, those lines."""
    siblings = below.get(parent, ())
    for run in siblings:
        last = run is siblings[-1]
        branch, deeper = ("", "") if parent is None else ("└─ ", "   ") if last else ("├─ ", "│  ")
        ended = (ends or {}).get(run.id)
        yield (
            indent
            + branch
            + describe(run, user=users and parent is None)
            + (f"  ({ended.words})" if ended is not None else "")
        )
        yield from lines(below, run.id, indent + deeper, ends=ends)


def describe(run: RunInfo, *, user: bool = False) -> str:
    processes = "" if run.processes is None else counted(run.processes, "process", "processes")
    load = f"  {processes}  {output.size(run.memory_bytes)}" if processes else ""
    tight = "".join(
        f"  {state.kind} {output.percent(share(state))}"
        for state in near(run)[:1]
        if not run.status.terminal
    )
    said = f"  {output.plain(run.milestone)}" if run.milestone else ""
    whose = f"  {output.plain(run.user)}" if user else ""
    ran = f"  ran {output.seconds(run.usage.elapsed_s)}" if run.usage.elapsed_s is not None else ""
    time = ran if run.status.terminal else f"  {output.age(run.created_at)}"
    who = f"{run.id}  {output.plain(run.name)}{whose}"
    waits = f" after {awaited(run)}" if run.after else ""
    waits += f"  continued by {run.continued_by}" if run.continued_by is not None else ""
    return (
        f"{who}  {output.outcome(run)}{waits} "
        f" depth {run.depth}{time}{load}{_used(run.usage)}{tight}{said}"
    )


def _used(usage: Usage) -> str:
    turns = "" if usage.turns is None else f"  {counted(usage.turns, 'turn')}"
    tokens = "" if usage.tokens is None else f"  {output.tokens(usage)} tokens"
    return turns + tokens + ("" if usage.cost_usd is None else f"  {output.cost(usage)} USD")


def _nested(run: RunInfo, below: Below) -> dict[str, object]:
    return {"run": run, "children": [_nested(child, below) for child in below.get(run.id, ())]}
