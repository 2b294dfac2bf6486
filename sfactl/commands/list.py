from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Annotated, Any

from msgspec import Struct

from sfad.protocol.encoding import to_json
from sfad.protocol.requests.listing import List, RunList
from sfad.protocol.types import RunId, RunInfo, Status, Usage
from sfad.protocol.units import counted

from .. import output
from ..app import OverFleet, app
from ..connecting.connection import Client, unanswered_by
from ..connecting.history import connect
from ..exits import ExitCode, Quit
from ..options.selection import RunSelection, labels
from ..options.shared import (
    CHANNEL,
    COUNT,
    GROUP,
    MOMENT,
    ONE_MODEL,
    RUN,
    TYPE,
    Json,
    Labels,
    Names,
    Socket,
    User,
    Value,
    flag,
    one_of,
)
from ..options.spreading import spread
from ..showing import table

LAST = 50
"""Maximum ended runs without a filter."""
PAGE = 250
"""Ended runs in one request, about 10 ms of the daemon's time."""


LIVE = "live"
"""The word for all that have not ended."""
_LIVE = [status for status in Status if not status.terminal]


class Statuses(list[Status]):
    """What one text means."""


def _statuses(text: str) -> Statuses:
    if text == LIVE:
        return Statuses(_LIVE)
    return Statuses([Status(one_of([*Status, LIVE], "status")(text))])


class ListOptions(Struct, frozen=True):
    socket: Socket = None
    json: Json = False
    status: Annotated[
        list[Statuses],
        Value("STATUS", _statuses, words="status").option(
            "Only runs with this status; live: all that have not ended"
        ),
    ] = []
    name: Names = []
    user: User = None
    root: Annotated[str | None, RUN.option("Only this run's tree")] = None
    since: Annotated[
        float | None,
        MOMENT.option("Only runs created since then: 1h (ago), 22:00, yesterday, 2026-01-31T22:00"),
    ] = None
    label: Labels = []
    group: Annotated[str | None, GROUP.option("Only trees of this group")] = None
    type: Annotated[list[str], TYPE.option("Only runs of this type")] = []
    channel: Annotated[list[str], CHANNEL.option("Only runs of this channel")] = []
    model: Annotated[
        list[str], ONE_MODEL.option("Only runs with this model, as in 'claude-opus-*'")
    ] = []
    limit_rows: Annotated[
        int | None, COUNT.option("Maximum ended runs (default: 50; with a filter, all)")
    ] = None
    live: Annotated[bool, flag("Show the processes and memory of each run")] = False
    sum_: Annotated[bool, flag("Add a row with the sum of the runs' own use", "--sum")] = False
    labels: Annotated[bool, flag("Show labels")] = False
    wide: Annotated[bool, flag("Show all columns, in full")] = False

    def request(self) -> List:
        return List(
            id=0,
            status=list(dict.fromkeys(chain.from_iterable(self.status))),
            name=list(self.name) or None,
            user=self.user,
            root=self.root,
            since=self.since,
            labels=labels(self.label),
            group=self.group,
            run_type=self.type or None,
            channel=self.channel or None,
            model=self.model or None,
            live=self.live,
            limits=self.json or self.wide,
        )

    def columns(self) -> list["Column"]:
        return [
            column
            for column in COLUMNS
            if column.needs == "" or self.wide or getattr(self, column.needs)
        ]


@app.command("list", cls=OverFleet)
@spread(ListOptions)
def list_(wanted: ListOptions) -> None:
    """List runs (alias: ps).

    Without a filter: the live runs and the last 50 that ended, newest last. With a filter: all
    runs that match. --status, --name, --label, --type, --channel and --model may be repeated, and
    match any of the values given; labels of several keys must all match.

    TOKENS and USD are the run's own use; TOTAL is the cost of the run and its descendants. A
    column without any figure is left out, USER where all runs are yours, and on a terminal also
    the columns that do not fit: see --wide. A figure with ≥ may still grow, one with ≤ is an
    upper bound, one with ≈ an estimate. Times are local.
    """
    with connect(wanted.socket) as client:
        nodes = client.fleet.nodes if client.fleet is not None else None
        columns = wanted.columns() if nodes is None else of_fleet(wanted.columns())

        def shape(run: RunInfo) -> Any:
            if not wanted.json:
                return [column.cell(run) for column in columns]
            return to_json(run) if nodes is None else _with_node(run)

        found = collect(client, wanted.request(), wanted.limit_rows, shape)
    if wanted.json:
        output.write(_object(found, nodes, sum_=wanted.sum_))
    else:
        rows = found.in_order()
        if wanted.sum_:
            rows.append([_sums(found).get(column.name, "") for column in columns])
        room = None if wanted.wide else table.terminal_width()
        print(drawn(columns, rows, found.users, wide=wanted.wide, room=room))
    if found.truncated and wanted.limit_rows is not None:
        output.note(
            f"sfactl: only the newest {wanted.limit_rows} of the ended runs are shown; "
            "there are more (--limit-rows)"
        )


# ---- the runs that match


class Found:
    """The runs that match, in the form that is shown, and the sum of their use."""

    def __init__(self) -> None:
        self.runs: dict[RunId, Any] = {}
        self._order: dict[RunId, Any] = {}
        self.ended = 0
        self.truncated = False
        self.cost_usd: float | None = None
        self.tokens: int | None = None
        self.partial = self.at_most = False
        self.users: set[str] = set()

    def add(self, run: RunInfo, shown: Any) -> None:
        """Count a run once: one that ended meanwhile comes a second time, in a later page."""
        if run.id not in self.runs:
            self.runs[run.id] = shown
            self._order[run.id] = _order(run)
            self.ended += run.status.terminal
            self.users.add(run.user)
            self._use(run.usage)

    def _use(self, usage: Usage) -> None:
        if usage.cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + usage.cost_usd
        if usage.tokens is not None:
            self.tokens = (self.tokens or 0) + usage.tokens
        self.partial |= usage.partial or bool(usage.unpriced_tokens)
        self.at_most |= usage.at_most

    def in_order(self) -> list[Any]:
        return [self.runs[run] for run in sorted(self.runs, key=self._order.__getitem__)]


def _order(run: RunInfo) -> Any:
    """Return what the runs of a list are sorted by. The ids of several nodes have no order."""
    return run.created_at if "/" in run.id else run.id


def collect(
    client: Client, wanted: List, most: int | None, shape: Callable[[RunInfo], Any]
) -> Found:
    """Request page after page, and return at most `most` ended runs (default: all that match a
    filter, else the last `LAST`). `shape` makes what is kept of a run, because a hundred thousand
    whole runs would take half a gigabyte."""
    found = Found()
    filtered = wanted != List(id=0, live=wanted.live, limits=wanted.limits)
    stop = most if most is not None else None if filtered else LAST
    while True:
        # one run more than needed shows whether there are more
        wanted.rows = PAGE if stop is None else min(PAGE, stop - found.ended + 1)
        page = client.call(wanted, RunList)
        for run in sorted(
            page.runs, key=lambda run: (not run.status.terminal, _order(run)), reverse=True
        ):
            if run.status.terminal and found.ended == stop:
                found.truncated = True
                return found
            found.add(run, shape(run))
        if page.next is None:
            return found
        wanted.before = page.next


def listed(client: Client, selection: RunSelection) -> RunSelection:
    """Return a selection that names the runs that this verb would show for it, but no refused
    starts. If there are none, raise `Quit` after a note."""
    wanted = List(id=0, name=selection.name or None, labels=labels(selection.label), limits=False)
    found = collect(client, wanted, None, lambda run: run.status.rejected).runs
    runs = [*selection.runs, *(run for run in sorted(found) if not found[run])]
    if not runs:
        output.note("no run matches")
        raise Quit(ExitCode.DONE)
    return RunSelection(runs)


def _with_node(run: RunInfo) -> bytes:
    return b'{"node":%b,%b' % (to_json(run.fleet and run.fleet.node), to_json(run)[1:])


def _object(found: Found, nodes: Sequence[str] | None, *, sum_: bool) -> bytes:
    sums = {
        "runs": len(found.runs),
        "cost_usd": found.cost_usd and round(found.cost_usd, 9),
        "tokens": found.tokens,
    }
    sums |= {"partial": found.partial, "at_most": found.at_most}
    more = to_json(
        ({"sum": sums} if sum_ else {})
        | ({"truncated": True} if found.truncated else {})
        | ({} if nodes is None else {"nodes": nodes, "unanswered": sorted(unanswered_by)})
    )
    return b'{"runs":[%b]%b\n' % (
        b",".join(found.in_order()),
        more.replace(b"{", b",", 1) if len(more) > 2 else more[1:],
    )


# ---- the table


class Column(Struct, frozen=True):
    """A column of the table, and when it is shown."""

    name: str
    cell: Callable[[RunInfo], str]
    needs: str = ""
    """The option that shows it: `live`, `labels` or `wide`; empty for a column that is always
    shown."""
    known: bool = False
    """Whether it is left out if it is empty for each run."""


def _total(run: RunInfo) -> str:
    known = run.descendants and run.total_cost_usd is not None
    return output.cost(run.in_all) if known else "-"


def plans(run: RunInfo) -> str:
    """Return about how much of subscriptions' windows a run has used: `12% 5h`."""
    return (
        ",".join(f"{100 * each.share:.0f}% {output.plain(each.window)}" for each in run.plans)
        or "-"
    )


COLUMNS = (
    Column("ID", lambda run: run.id),
    Column("NAME", lambda run: run.name),
    Column("STATUS", output.outcome),
    Column("AFTER", lambda run: ",".join(after.words for after in run.after) or "-", known=True),
    Column("GROUP", lambda run: run.group or "-", known=True),
    Column(
        "ALERTS",
        lambda run: ",".join(alert.type.removeprefix("alert_") for alert in run.alerts) or "-",
        known=True,
    ),
    Column("DEPTH", lambda run: str(run.depth)),
    Column("PARENT", lambda run: run.parent_id or "-"),
    Column("TYPE", lambda run: output.plain(run.type or "-"), "wide"),
    Column("CHANNEL", lambda run: output.plain(run.channel), "wide"),
    Column("MODEL", lambda run: output.plain(run.model or "-"), "wide", known=True),
    Column("USER", lambda run: run.user),
    Column("METER", output.meter, "wide", known=True),
    Column("HEARD", lambda run: output.age(run.last_heard_at), "wide", known=True),
    Column("AGE", lambda run: output.age(run.created_at)),
    Column("RAN", lambda run: output.seconds(run.usage.elapsed_s)),
    Column("ENDED", lambda run: output.clock(run.ended_at), known=True),
    Column(
        "PROCS",
        lambda run: "-" if run.processes is None else str(run.processes),
        "live",
        known=True,
    ),
    Column("MEMORY", lambda run: output.size(run.memory_bytes), "live", known=True),
    Column("TURNS", lambda run: output.short(run.usage.turns), known=True),
    Column("TOKENS", lambda run: output.tokens(run.usage), known=True),
    Column("USD", lambda run: output.cost(run.usage), known=True),
    Column("TOTAL", _total, known=True),
    Column("PLAN", plans, "wide", known=True),
    Column(
        "LABELS",
        lambda run: ",".join(f"{key}={value}" for key, value in run.labels.items()) or "-",
        "labels",
    ),
    Column("COMMAND", output.command),
)


def of_fleet(columns: Sequence[Column]) -> list[Column]:
    """Return the columns for runs of several nodes."""
    first, *others = (column for column in columns if column.name != "PARENT")
    node = Column("NODE", lambda run: output.plain((run.fleet and run.fleet.node) or "-"))
    return [first, node, *others]


LEAST_FIRST = ("DEPTH", "PARENT", "TURNS", "AGE", "TOTAL", "TOKENS", "RAN", "ENDED", "GROUP")
"""Columns to leave out on a narrow terminal, the least important first."""


def drawn(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    users: Iterable[str],
    *,
    wide: bool = False,
    room: int | None = None,
) -> str:
    """Return the table. `rows`: the cells of each run; `users`: whose runs they are."""
    empty = {
        column.name
        for i, column in enumerate(columns)
        if column.known and all(row[i] in ("-", "") for row in rows)
    }
    if not wide and not output.of_others(users):
        empty.add("USER")
    kept = [i for i, column in enumerate(columns) if column.name not in empty]
    names = [columns[i].name for i in kept]
    return table.drawn(names, [[row[i] for i in kept] for row in rows], LEAST_FIRST, room=room)


def _sums(found: Found) -> dict[str, str]:
    figures = {"TOKENS": output.tokens(found), "USD": output.cost(found)}
    return {"ID": "sum", "NAME": counted(len(found.runs), "run"), **figures}
