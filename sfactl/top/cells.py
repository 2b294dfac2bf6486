"""The lines of the screen: the cells of a run, each with a style, a bar for each limit, and how
they share the width.

A line is a `Strip`, Textual's own form, and no markup: what agents and users have written is text.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from textwrap import wrap
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from sfad.protocol.kinds import KINDS
from sfad.protocol.requests.daemon import DaemonStatus
from sfad.protocol.texts.units import counted, format_duration
from sfad.protocol.types import LimitKind, LimitState, RunInfo, Status

from .. import output
from ..options.limits import fullest
from ..showing.waiting import NEAR, awaited, share
from .table import DEFAULT_ORDER, ENDED, NEARING, QUIET, STUCK, Row, RunTable

GOOD, DIM, WARN, BAD, PLAIN, HEAD, KEY, TITLE = (
    "good",
    "dim",
    "warn",
    "bad",
    "plain",
    "head",
    "key",
    "title",
)
_STYLES = {
    GOOD: Style(color="green"), DIM: Style(color="bright_black"), WARN: Style(color="yellow"),
    BAD: Style(color="red", bold=True), PLAIN: Style(), HEAD: Style(bold=True),
    KEY: Style(color="cyan"), TITLE: Style(bold=True, reverse=True),
}  # fmt: skip
_CHOSEN = Style(reverse=True) if os.environ.get("NO_COLOR") else Style(bgcolor="grey23", bold=True)

_STATUS = {
    **dict.fromkeys((Status.RUNNING, Status.STARTING), GOOD),
    **dict.fromkeys(
        (Status.PAUSED, Status.RETRYING, Status.STOPPING, Status.QUEUED, Status.ACCEPTED), WARN
    ),
    **dict.fromkeys((Status.COMPLETED, Status.CANCELLED), DIM),
}

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_PARTS = " ▏▎▍▌▋▊▉█"

Text = tuple[str, str]
"""A text and its style."""


class CellColumn(NamedTuple):
    title: str
    width: int
    cell: Callable[[RunInfo, datetime], Text]
    rank: int
    """The least are left out first where the terminal is narrow."""
    left: bool = False


def _status(run: RunInfo, _now: datetime) -> Text:
    if run.stopped:
        return "stopped", WARN
    words = "approval" if output.waits_for_approval(run) else run.activity or run.status.value
    return words, _STATUS.get(run.status, BAD)


def _count(value: int | None) -> Text:
    return ("-", DIM) if value is None else (output.short(value), PLAIN)


def _size(value: int | None) -> Text:
    return (
        ("-", DIM)
        if value is None
        else (output.size(value).replace(" ", "").removesuffix("iB").removesuffix("B"), PLAIN)
    )


def _cores(run: RunInfo) -> Text:
    if run.cpu_cores is None:
        return "-", DIM
    return f"{100 * run.cpu_cores:.0f}%", PLAIN if run.cpu_cores >= 0.01 else DIM


def _cost(run: RunInfo) -> Text:
    whole = run.in_all
    if whole.cost_usd is None:
        return "-", DIM
    return output.bounded(f"{whole.cost_usd:.2f}", whole), PLAIN


def _time(run: RunInfo, now: datetime) -> Text:
    """Return the age of a live run, and how long one that has ended ran."""
    return (
        (output.seconds(run.usage.elapsed_s), DIM)
        if run.status.terminal
        else (output.age(run.created_at, now), PLAIN)
    )


STATE = CellColumn("STATE", 9, _status, 90, left=True)
COLUMNS = (
    STATE,
    CellColumn(
        "USER",
        8,
        lambda run, _: (output.plain(run.user), DIM if run.status.terminal else PLAIN),
        85,
        left=True,
    ),
    CellColumn(
        "NODE",
        8,
        lambda run, _: (output.plain((run.fleet and run.fleet.node) or "-"), DIM),
        88,
        left=True,
    ),
    CellColumn("TIME", 6, _time, 80),
    CellColumn("HEARD", 5, lambda run, now: (output.age(run.last_heard_at, now), DIM), 10),
    CellColumn("DEPTH", 5, lambda run, _: (str(run.depth), DIM), 20),
    CellColumn("PROC", 4, lambda run, _: _count(run.processes), 50),
    CellColumn("CPU", 5, lambda run, _: _cores(run), 60),
    CellColumn("MEM", 6, lambda run, _: _size(run.memory_bytes), 55),
    CellColumn("TURNS", 5, lambda run, _: _count(run.usage.turns), 65),
    CellColumn(
        "TOKENS",
        6,
        lambda run, _: _count(run.in_all.tokens),
        30,
    ),
    CellColumn("COST", 6, lambda run, _: _cost(run), 70),
)
LEAST_NAME, NAME = 18, 30
"""Columns that the tree has at least, and where there is room."""
LEAST_BARS, WIDE_BARS = 8, 36
"""Columns of the limits. They go before the state does."""
MILESTONE = 24
"""Columns from which on the last milestone is shown."""


class Layout(NamedTuple):
    """How the width of the terminal is divided."""

    name: int
    columns: tuple[CellColumn, ...]
    bars: int
    milestone: int

    @classmethod
    def of(cls, width: int, *, users: bool = False, nodes: bool = False) -> "Layout":
        """`users`: name the users of runs; `nodes`: name the nodes where they execute."""
        hidden = {title for title, shown in (("USER", users), ("NODE", nodes)) if not shown}
        columns = [column for column in COLUMNS if column.title not in hidden]
        rest = width - LEAST_NAME - LEAST_BARS - 1
        if rest < STATE.width + 1:
            return cls(max(width - STATE.width - 2, 0), (STATE,), 0, 0)
        while columns and sum(column.width + 1 for column in columns) > rest:
            columns.remove(min(columns, key=lambda column: column.rank))
        rest -= sum(column.width + 1 for column in columns)
        name = min(NAME - LEAST_NAME, rest)
        rest -= name
        bars = min(WIDE_BARS - LEAST_BARS, rest)
        rest -= bars
        milestone = rest - 1 if rest > MILESTONE else 0
        return cls(
            LEAST_NAME + name + (0 if milestone else rest),
            tuple(columns),
            LEAST_BARS + bars,
            milestone,
        )


def line(parts: Iterable[Text], width: int, *, chosen: bool = False) -> Strip:
    """Return a line of exactly `width` columns."""
    segments = [
        Segment(text, _STYLES[style] + _CHOSEN if chosen else _STYLES[style])
        for text, style in parts
        if text
    ]
    return Strip(segments).adjust_cell_length(width, _CHOSEN if chosen else None)


def in_lines(words: str, style: str, width: int, lines: int) -> list[Strip]:
    """Return words in at most so many lines; ` …` if they are cut off."""
    found = wrap(
        words, max(width - 1, 4), max_lines=lines, placeholder=" …", break_on_hyphens=False
    )
    return [line([(text, style)], width) for text in found]


def heading(
    table: RunTable, daemon: DaemonStatus | None, away: str, width: int, now: datetime
) -> Strip:
    """Return the first line: what runs, and what is wrong. `away`: since when the daemon cannot be
    asked."""
    statuses, near = table.counts
    live = sum(count for status, count in statuses.items() if not status.terminal)
    queued = statuses[Status.QUEUED] + table.left_out
    parts: list[Text] = [(" sfad ", TITLE), (f"  {live + table.left_out} live", HEAD)]
    if queued:
        shown = f" ({statuses[Status.QUEUED]} of them shown)" if table.left_out else ""
        parts.append((f"  {queued} queued{shown}", WARN))
    if paused := statuses[Status.PAUSED]:
        parts.append((f"  {paused} paused", WARN))
    if troubled := sum(count for level, count in near.items() if level >= STUCK):
        parts.append((f"  {troubled} in trouble", BAD))
    if near[NEARING]:
        parts.append((f"  {near[NEARING]} near a limit", WARN))
    if daemon is not None and daemon.alerts:
        parts.append((f"  {counted(len(daemon.alerts), 'alert')}", BAD))
    if daemon is not None and daemon.cost_usd is not None:
        parts.append(
            (f"  {output.usd(daemon.cost_usd)} USD in {format_duration(daemon.window_s)}", PLAIN)
        )
    if daemon is not None and (found := fullest(daemon.plans)) is not None:
        ratio = found[1].used_ratio or 0.0
        words = (
            f"  {output.percent(ratio)} of "
            f"{found[0].provider}'s {output.plain(found[1].window)} window"
        )
        parts.append((words, BAD if ratio >= 1 else WARN if ratio >= NEAR else PLAIN))
    if table.filter:
        parts.append((f"  only: {output.plain(table.filter)}", WARN))
    if away:
        parts.append((f"  {output.plain(away)}", BAD))
    for part in (
        (f"  {near[ENDED]} ended badly", WARN) if near[ENDED] else ("", PLAIN),
        (f" {now.astimezone():%H:%M:%S} ", DIM),
    ):
        used = sum(cell_len(text) for text, _ in parts)
        if used + cell_len(part[0]) <= width:
            parts.append((part[0].rjust(width - used) if part[1] == DIM else part[0], part[1]))
    return line(parts, width)


def titles(layout: Layout, order: str, width: int) -> Strip:
    name = "RUN" if order == DEFAULT_ORDER else f"RUN (by {order})"
    parts = [(set_cell_size(name, layout.name), DIM)]
    parts += [
        (" " + (column.title.ljust if column.left else column.title.rjust)(column.width), DIM)
        for column in layout.columns
    ]
    if layout.bars:
        parts.append((" " + set_cell_size("LIMITS", layout.bars), DIM))
    if layout.milestone:
        parts.append((" MILESTONE", DIM))
    return line(parts, width)


@lru_cache(maxsize=4096)
def _sized(text: str, width: int, left: bool) -> str:
    if cell_len(text) > width:
        return set_cell_size(text, max(width - 1, 0)) + "…"
    return text + " " * (width - cell_len(text)) if left else " " * (width - cell_len(text)) + text


def row_line(
    row: Row,
    elapsed: float,
    layout: Layout,
    width: int,
    now: datetime,
    limit_share: float,
    *,
    chosen: bool,
) -> Strip:
    """Return the line of a run. `elapsed`: seconds since the daemon told of it, which its time goes
    on."""
    run, level = row.run, row.rank
    mark, style = (" ", PLAIN) if level == QUIET else ("!", BAD if level >= STUCK else WARN)
    folded = f" +{row.hidden}" if row.hidden else ""
    name = (
        _sized(
            f"{row.branch}{run.id} {output.plain(run.name)}", layout.name - 1 - len(folded), True
        )
        + folded
    )
    parts: list[Text] = [(mark, style), (name, DIM if run.status.terminal else PLAIN)]
    for column in layout.columns:
        text, kind = column.cell(run, now)
        parts.append((" " + _sized(text, column.width, column.left), kind))
    drawn = (
        []
        if run.status.terminal or not layout.bars
        else bars(run.limits, elapsed, layout.bars, limit_share)
    )
    parts += [
        (" ", PLAIN),
        *drawn,
        (" " * (layout.bars - sum(len(text) for text, _ in drawn)), PLAIN),
    ]
    if layout.milestone:
        told = f"after {awaited(run)}" if run.after else output.plain(run.milestone or "")
        parts.append((" " + _sized(told, layout.milestone, True), DIM))
    return line(parts, width, chosen=chosen)


def bars(states: Sequence[LimitState], elapsed: float, room: int, limit_share: float) -> list[Text]:
    """Return a bar for each limit whose use is known, in `room` columns: the fullest first if not
    all find room. `elapsed`: seconds that its time has gone on since. `limit_share`: the part from
    which on a bar warns."""
    parts = [(state, part) for state in states if (part := _part_now(state, elapsed)) is not None]
    if not parts:
        return []
    wide = next((size for size in (6, 4) if len(parts) * (size + 3) - 1 <= room), 1)
    most = (room + 1) // (wide + 3 if wide > 1 else 3)
    kept = sorted(
        sorted(parts, key=lambda each: -each[1])[:most],
        key=lambda each: list(KINDS).index(each[0].kind),
    )
    found: list[Text] = []
    for state, part in kept:
        style = _style_of(state, part, limit_share)
        found += [(KINDS[state.kind].letter, DIM), (_bar(part, wide), style), (" ", PLAIN)]
    return found[:-1]


def _part_now(state: LimitState, elapsed: float) -> float | None:
    if state.kind is LimitKind.TIME and state.used is not None and state.threshold:
        return (state.used + elapsed) / state.threshold
    return share(state) if state.used is not None and state.threshold else None


def _style_of(state: LimitState, part: float, limit_share: float) -> str:
    if not KINDS[state.kind].acts or part < limit_share:
        return GOOD
    return WARN if part < 1 else BAD


def _bar(part: float, width: int) -> str:
    eighths = round(min(max(part, 0.0), 1.0) * 8 * width)
    if part > 0 and not eighths:
        eighths = 1
    if width == 1:
        return _EIGHTHS[eighths]
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_PARTS[rest] if rest else "")).ljust(width, "·")
