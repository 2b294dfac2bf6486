from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Annotated

from msgspec import Struct

from sfad.protocol.checks import in_words
from sfad.protocol.encoding import to_json
from sfad.protocol.requests.listing import List
from sfad.protocol.texts.units import counted
from sfad.protocol.types import RunInfo, Status, Usage

from .. import output
from ..app import OverFleet, app
from ..connecting.connection import Client, unanswered_by
from ..connecting.history import connect
from ..exits import UsageError
from ..options.selection import labels
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
from ..showing.pages import QUEUED, Newest, every, tell_queued

LAST = 50
"""Maximum ended runs without a filter."""
ON_TERMINAL = 1000
"""Maximum ended runs that a filter shows on a terminal."""
QUEUED_JSON = 1000
"""As `QUEUED`, where JSON is printed."""


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
    jsonl: Annotated[
        bool, flag("Print a JSON object for each run, one a line, as they are read", "--jsonl")
    ] = False
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
        int | None,
        COUNT.option(
            "Maximum ended runs (default: 50; with a filter all, but 1000 on a terminal)",
            "--limit-rows",
            "-n",
        ),
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
            limits=self.json or self.jsonl or self.wide,
        )

    def most(self, wanted: List) -> int | None:
        """Return how many ended runs are shown at most; `None`: all."""
        if self.limit_rows is not None:
            return self.limit_rows
        if wanted == List(id=0, live=wanted.live, limits=wanted.limits):
            return LAST
        return ON_TERMINAL if table.terminal_width() is not None else None

    def columns(self) -> list["Column"]:
        return [
            column
            for column in COLUMNS
            if column.needs == "" or self.wide or getattr(self, column.needs)
        ]


@app.command("list", cls=OverFleet)
@spread(ListOptions)
def list_(options: ListOptions) -> None:
    """List runs (alias: ps).

    Without a filter: the live runs and the last 50 that ended, newest last; before them those
    that wait for a person. With a filter: all
    runs that match, and on a terminal the last 1000. --status, --name, --label, --type, --channel
    and --model may be repeated, and match any of the values given; labels of several keys must
    all match. Unless you name a status, the first 20 queued runs are shown, and the others
    counted.

    TOKENS and USD are the run's own use; TOTAL is the cost of the run and its descendants. A
    column without any figure is left out, USER where all runs are yours, and on a terminal also
    the columns that do not fit: see --wide. A long list in a pipe is printed as it is read, with
    all columns. A figure with ≥ may still grow, one with ≤ is an upper bound, one with ≈ an
    estimate. Times are local.
    """
    if options.jsonl and (options.json or options.sum_):
        raise UsageError("--jsonl is one object for each run: leave out --json and --sum")
    with connect(options.socket) as client:
        found = _found(client, options)
        nodes = client.fleet.nodes if client.fleet is not None else None
        if options.jsonl:
            for runs in found.pages():
                output.write(b"".join(b"%b\n" % _json(run, nodes) for run in runs))
        elif options.json:
            _print_object(found, nodes, sum_=options.sum_)
        else:
            _print_table(found, options, of_fleet=nodes is not None)
    _tell_of_others(found, options)


def _found(client: Client, options: ListOptions) -> "Found":
    wanted = options.request()
    most = options.most(wanted)
    if not wanted.status:
        wanted.queued = QUEUED_JSON if options.json or options.jsonl else QUEUED
    if most is None:
        wanted.queued = None
        return Found(every(client.call, wanted))
    newest = Newest(client, wanted, most)
    return Found(newest.pages(), truncated=newest.truncated, queued=newest.queued)


def _tell_of_others(found: "Found", options: ListOptions) -> None:
    """Tell a person of runs that match and are not shown."""
    tell_queued(found.queued)
    if found.truncated and options.limit_rows is not None:
        output.note(
            f"sfactl: only the newest {options.limit_rows} of the ended runs are shown; "
            "there are more (--limit-rows)"
        )
    elif found.truncated and options.most(options.request()) == ON_TERMINAL:
        output.note(
            f"sfactl: the newest {ON_TERMINAL} of the ended runs are shown; there are more: "
            "-n N shows N, and a pipe gets all (sfactl list … | less)"
        )


# ---- the runs that match


class Found:
    """The runs that match, page by page, and the sum of their use so far."""

    def __init__(
        self, pages: Iterator[list[RunInfo]], *, truncated: bool = False, queued: int = 0
    ) -> None:
        self._pages = pages
        self.truncated = truncated
        self.queued = queued
        self.runs = 0
        self.cost_usd: float | None = None
        self.tokens: int | None = None
        self.partial = self.at_most = False

    def pages(self) -> Iterator[list[RunInfo]]:
        for runs in self._pages:
            self.runs += len(runs)
            for run in runs:
                self._use(run.usage)
            yield runs

    def _use(self, usage: Usage) -> None:
        if usage.cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + usage.cost_usd
        if usage.tokens is not None:
            self.tokens = (self.tokens or 0) + usage.tokens
        self.partial |= usage.partial or bool(usage.unpriced_tokens)
        self.at_most |= usage.at_most


def _json(run: RunInfo, nodes: Sequence[str] | None) -> bytes:
    if nodes is None:
        return to_json(run)
    return b'{"node":%b,%b' % (to_json(run.fleet and run.fleet.node), to_json(run)[1:])


def _print_object(found: Found, nodes: Sequence[str] | None, *, sum_: bool) -> None:
    output.write(b'{"runs":[')
    for runs in found.pages():
        before = b"," if found.runs > len(runs) else b""
        output.write((before if runs else b"") + b",".join(_json(run, nodes) for run in runs))
    sums = {
        "runs": found.runs,
        "cost_usd": found.cost_usd and round(found.cost_usd, 9),
        "tokens": found.tokens,
    }
    sums |= {"partial": found.partial, "at_most": found.at_most}
    more = to_json(
        ({"sum": sums} if sum_ else {})
        | ({"truncated": True} if found.truncated else {})
        | ({"queued": found.queued} if found.queued else {})
        | ({} if nodes is None else {"nodes": nodes, "unanswered": sorted(unanswered_by)})
    )
    output.write(b"]%b\n" % (more.replace(b"{", b",", 1) if len(more) > 2 else more[1:]))


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


def checks(run: RunInfo) -> str:
    """Return what became of the checks of a run: `make test passed in 41s`."""
    return "; ".join(output.plain(in_words(each)) for each in run.checks) or "-"


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
    Column("CHECKS", checks, "wide", known=True),
    Column(
        "LABELS",
        lambda run: ",".join(f"{key}={value}" for key, value in run.labels.items()) or "-",
        "labels",
    ),
    Column("COMMAND", output.command),
)


def with_node(columns: Sequence[Column]) -> list[Column]:
    """Return the columns for runs of several nodes."""
    first, *others = (column for column in columns if column.name != "PARENT")
    node = Column("NODE", lambda run: output.plain((run.fleet and run.fleet.node) or "-"))
    return [first, node, *others]


LEAST_FIRST = ("DEPTH", "PARENT", "TURNS", "AGE", "TOTAL", "TOKENS", "RAN", "ENDED", "GROUP")
"""Columns to leave out on a narrow terminal, the least important first."""


def _print_table(found: Found, options: ListOptions, *, of_fleet: bool) -> None:
    columns = with_node(options.columns()) if of_fleet else options.columns()
    room = None if options.wide else table.terminal_width()
    pages = filter(None, found.pages())
    first, second = next(pages, []), next(pages, None)
    if second is None:
        first.sort(key=lambda run: run.waiting is None and not run.approvals)
        rows = [[column.cell(run) for column in columns] for run in first]
        if options.sum_:
            rows.append(_sums(found, columns))
        users = {run.user for run in first}
        print(drawn(columns, rows, users, wide=options.wide, room=room))
        return
    stream = table.Stream([column.name for column in columns], LEAST_FIRST, room=room)
    for runs in chain((first, second), pages):
        stream.print([column.cell(run) for column in columns] for run in runs)
    if options.sum_:
        stream.print([_sums(found, columns)])


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


def _sums(found: Found, columns: Sequence[Column]) -> list[str]:
    figures = {"TOKENS": output.tokens(found), "USD": output.cost(found)}
    cells = {"ID": "sum", "NAME": counted(found.runs, "run"), **figures}
    return [cells.get(column.name, "") for column in columns]
