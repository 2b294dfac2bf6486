"""What is shown of a run: the cells of its line, each with a style, and a bar for each limit."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from sfad.protocol.kinds import KINDS
from sfad.protocol.types import LimitKind, LimitState, RunInfo, Status

from .. import output
from ..trouble import share

GOOD, DIM, WARN, BAD, PLAIN = "good", "dim", "warn", "bad", "plain"
"""Styles, which `frame` gives colours."""

_STATUS = {
    **dict.fromkeys((Status.RUNNING, Status.STARTING), GOOD),
    **dict.fromkeys((Status.PAUSED, Status.RETRYING, Status.STOPPING, Status.QUEUED, Status.ACCEPTED), WARN),
    **dict.fromkeys((Status.COMPLETED, Status.CANCELLED), DIM),
}

LETTERS = {
    LimitKind.TIME: "t", LimitKind.TURNS: "n", LimitKind.MESSAGES: "m", LimitKind.TOKENS: "k", LimitKind.COST: "$",
    LimitKind.PLANNING_COST: "p", LimitKind.EXECUTION_COST: "x", LimitKind.OUTPUT: "o", LimitKind.MEMORY: "M",
    LimitKind.PIDS: "#", LimitKind.CPU: "c",
}  # fmt: skip
"""Names of limits where there is room for one letter."""

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


def status_style(run: RunInfo) -> str:
    return _STATUS.get(run.status, BAD)


def _status(run: RunInfo, _now: datetime) -> Text:
    return "approval" if output.waits_for_approval(run) else run.status.value, status_style(run)


def _count(value: int | None) -> Text:
    return ("-", DIM) if value is None else (output.short(value), PLAIN)


def _size(value: int | None) -> Text:
    return ("-", DIM) if value is None else (output.size(value).replace(" ", "").removesuffix("iB").removesuffix("B"), PLAIN)


def _cores(run: RunInfo) -> Text:
    if run.cpu_cores is None:
        return "-", DIM
    return f"{100 * run.cpu_cores:.0f}%", PLAIN if run.cpu_cores >= 0.01 else DIM


def _cost(run: RunInfo) -> Text:
    usage = run.usage
    if run.descendants and run.total_cost_usd is not None:
        return output.bounded(f"{run.total_cost_usd:.2f}", partial=run.total_partial, at_most=run.total_at_most), PLAIN
    if usage.cost_usd is None:
        return "-", DIM
    return output.bounded(f"{usage.cost_usd:.2f}", partial=usage.partial, at_most=usage.at_most), PLAIN


def _time(run: RunInfo, now: datetime) -> Text:
    """Return the age of a live run, and how long one that has ended ran."""
    return (output.seconds(run.usage.elapsed_s), DIM) if run.status.terminal else (output.age(run.created_at, now), PLAIN)


STATE = CellColumn("STATE", 9, _status, 90, left=True)
COLUMNS = (
    STATE,
    CellColumn("USER", 8, lambda run, _: (output.plain(run.user), DIM if run.status.terminal else PLAIN), 85, left=True),
    CellColumn("TIME", 6, _time, 80),
    CellColumn("DEPTH", 5, lambda run, _: (str(run.depth), DIM), 20),
    CellColumn("PROC", 4, lambda run, _: _count(run.processes), 50),
    CellColumn("CPU", 5, lambda run, _: _cores(run), 60),
    CellColumn("MEM", 6, lambda run, _: _size(run.memory_bytes), 55),
    CellColumn("TURNS", 5, lambda run, _: _count(run.usage.turns), 65),
    CellColumn("TOKENS", 6, lambda run, _: _count(run.total_tokens if run.descendants else run.usage.tokens), 30),
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
    def of(cls, width: int, *, users: bool = False) -> "Layout":
        """`users`: name the users of runs."""
        columns = [column for column in COLUMNS if users or column.title != "USER"]
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
        return cls(LEAST_NAME + name + (0 if milestone else rest), tuple(columns), LEAST_BARS + bars, milestone)


def bars(states: Sequence[LimitState], elapsed: float, room: int, limit_share: float) -> list[Text]:
    """Return a bar for each limit whose use is known, in `room` columns: the fullest first if not all find room. `elapsed`: seconds
    since the run was told, which its time goes on. `limit_share`: the part from which on a bar warns."""
    parts = [(state, part) for state in states if (part := part_now(state, elapsed)) is not None]
    if not parts:
        return []
    wide = next((size for size in (6, 4) if len(parts) * (size + 3) - 1 <= room), 1)
    most = (room + 1) // (wide + 3 if wide > 1 else 3)
    kept = sorted(sorted(parts, key=lambda each: -each[1])[:most], key=lambda each: list(KINDS).index(each[0].kind))
    found: list[Text] = []
    for state, part in kept:
        style = style_of(state, part, limit_share)
        found += [(LETTERS[state.kind], DIM), (_bar(part, wide), style), (" ", PLAIN)]
    return found[:-1]


def part_now(state: LimitState, elapsed: float) -> float | None:
    if state.kind is LimitKind.TIME and state.used is not None and state.threshold:
        return (state.used + elapsed) / state.threshold
    return share(state) if state.used is not None and state.threshold else None


def style_of(state: LimitState, part: float, limit_share: float) -> str:
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
