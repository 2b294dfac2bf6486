"""Draws the lines of the screen from what there is to show. A line that has not changed is not drawn again."""

import os
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from textwrap import wrap
from time import monotonic

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from sfad.protocol.types import Status
from sfad.protocol.units import counted, format_duration

from .. import output
from ..waiting import awaited
from .cells import BAD, DIM, GOOD, PLAIN, WARN, Layout, Text, bars
from .keys import Keys
from .ranking import ENDED, NEARING, QUIET, STUCK, rank, reason
from .table import DEFAULT_ORDER, Row

STYLES = {
    GOOD: Style(color="green"), DIM: Style(color="bright_black"), WARN: Style(color="yellow"), BAD: Style(color="red", bold=True),
    PLAIN: Style(), "title": Style(bold=True, reverse=True), "head": Style(bold=True), "key": Style(color="cyan"),
}  # fmt: skip
CHOSEN = Style(reverse=True) if os.environ.get("NO_COLOR") else Style(bgcolor="grey23", bold=True)
REASONS = 2
FOOTER = (
    ("s", "top"), ("p", "ause"), ("r", "esume"), ("l", "imit"), ("o", "utput"), ("w", "hy"), ("n", "ext trouble"), ("/", " filter"),
    ("<>", " sort"), ("A", "lerts"), ("?", " keys"), ("q", "uit"),
)  # fmt: skip


def draw(keys: Keys, width: int, height: int, now: datetime | None = None) -> list[Strip]:
    """Return `height` lines of `width` columns as of `now`, and note in `keys` how many of them are tree and pane."""
    now, passed = now or datetime.now(UTC), monotonic()
    layout = Layout.of(width, users=keys.table.of_others)
    tree, pane = _heights(height, keys)
    keys.tree_height, keys.pane_height = tree, max(pane - 1, 0)
    rows = keys.rows
    keys.cursor.place(rows, tree)
    top = keys.cursor.top
    lines = [_header(keys, width, now, passed), _titles(keys, layout, width)]
    for at in range(top, top + tree):
        if at < len(rows):
            elapsed = keys.table.elapsed_since(rows[at].run, passed)
            lines.append(_row(rows[at], elapsed, layout, width, now, keys.table.limit_share, chosen=at == keys.cursor.at))
        else:
            lines.append(_blank(width))
    if not rows:
        lines[2] = _line([("no run" if not keys.table.filter else f"no run has: {keys.table.filter}", DIM)], width)
    lines += _told(keys, width) if _needs_room(keys, width) else _reasons(keys, width, now)
    if pane:
        lines += _pane(keys, width, pane)
    lines += [_prompt(keys, width), _footer(width)]
    return lines[:height]


def tree_top() -> int:
    """Return the line at which the tree begins."""
    return 2


def _heights(height: int, keys: Keys) -> tuple[int, int]:
    """Return the lines of the tree, and of the pane with its title."""
    free = max(height - 4 - REASONS, 1)
    if keys.pane is None:
        return free, 0
    pane = min(free - 3, max(free // 2, min(len(keys.pane.lines) + 1, free * 2 // 3) if not keys.pane.follows else 0))
    return (free, 0) if pane < 2 else (free - pane, pane)


# ---- parts


def _header(keys: Keys, width: int, now: datetime, passed: float) -> Strip:
    statuses, near = keys.table.counts
    live = sum(count for status, count in statuses.items() if not status.terminal)
    parts: list[Text] = [(" sfad ", "title"), (f"  {live} live", "head")]
    parts += [(f"  {statuses[status]} {status.value}", WARN) for status in (Status.QUEUED, Status.PAUSED) if statuses[status]]
    troubled = sum(count for level, count in near.items() if level >= STUCK)
    if troubled:
        parts.append((f"  {troubled} in trouble", BAD))
    if near[NEARING]:
        parts.append((f"  {near[NEARING]} near a limit", WARN))
    if keys.alerts:
        parts.append((f"  {counted(len(keys.alerts), 'alert')}", BAD))
    if keys.spent is not None:
        parts.append((f"  {output.usd(keys.spent.usd)} USD in {format_duration(keys.spent.window_s)}", PLAIN))
    if keys.table.filter:
        parts.append((f"  only: {output.plain(keys.table.filter)}", WARN))
    if keys.away:
        parts.append((f"  {output.plain(keys.away)} for {output.seconds(passed - keys.away_since)}: waiting for it", BAD))
    if near[ENDED]:
        told: Text = (f"  {near[ENDED]} ended badly", WARN)
        parts += [told] if sum(cell_len(text) for text, _ in [*parts, told]) < width else []
    clock = f"{now.astimezone():%H:%M:%S} "
    used = sum(cell_len(text) for text, _ in parts)
    if used + len(clock) < width:
        parts += [(" " * (width - used - len(clock)), PLAIN), (clock, DIM)]
    return _line(parts, width)


def _titles(keys: Keys, layout: Layout, width: int) -> Strip:
    name = "RUN" if keys.table.order == DEFAULT_ORDER else f"RUN (by {keys.table.order})"
    parts = [(set_cell_size(name, layout.name), DIM)]
    parts += [(" " + (column.title.ljust if column.left else column.title.rjust)(column.width), DIM) for column in layout.columns]
    if layout.bars:
        parts.append((" " + set_cell_size("LIMITS", layout.bars), DIM))
    if layout.milestone:
        parts.append((" MILESTONE", DIM))
    return _line(parts, width)


@lru_cache(maxsize=4096)
def _sized(text: str, width: int, left: bool) -> str:
    if cell_len(text) > width:
        return set_cell_size(text, max(width - 1, 0)) + "…"
    return text + " " * (width - cell_len(text)) if left else " " * (width - cell_len(text)) + text


def _row(row: Row, elapsed: float, layout: Layout, width: int, now: datetime, limit_share: float, *, chosen: bool) -> Strip:
    run, level = row.run, row.rank
    mark, style = (" ", PLAIN) if level == QUIET else ("!", BAD if level >= STUCK else WARN)
    folded = f" +{row.hidden}" if row.hidden else ""
    name = _sized(f"{row.branch}{run.id} {output.plain(run.name)}", layout.name - 1 - len(folded), True) + folded
    parts: list[Text] = [(mark, style), (name, DIM if run.status.terminal else PLAIN)]
    for column in layout.columns:
        text, kind = column.cell(run, now)
        parts.append((" " + _sized(text, column.width, column.left), kind))
    drawn = [] if run.status.terminal or not layout.bars else bars(run.limits, elapsed, layout.bars, limit_share)
    parts += [(" ", PLAIN), *drawn, (" " * (layout.bars - sum(len(text) for text, _ in drawn)), PLAIN)]
    if layout.milestone:
        told = f"after {awaited(run)}" if run.after else output.plain(run.milestone or "")
        parts.append((" " + _sized(told, layout.milestone, True), DIM))
    return _line(parts, width, chosen=chosen)


def _needs_room(keys: Keys, width: int) -> bool:
    """Return whether the notice does not fit into the last line but one: a prompt is there, or it is too long."""
    return bool(keys.notice) and (keys.prompt is not None or cell_len(keys.notice) > width)


def _told(keys: Keys, width: int) -> list[Strip]:
    """Return the notice in place of the reasons."""
    return _in_lines(keys.notice, BAD if keys.notice_bad else GOOD, width)


def _in_lines(words: str, style: str, width: int) -> list[Strip]:
    lines = wrap(words, width - 1, max_lines=REASONS, placeholder=" …", break_on_hyphens=False)
    return [_line([(line, style)], width) for line in (lines + [""] * REASONS)[:REASONS]]


def _reasons(keys: Keys, width: int, now: datetime) -> list[Strip]:
    run, limit_share = keys.chosen, keys.table.limit_share
    if run is None:
        return [_blank(width)] * REASONS
    level = rank(run, limit_share)
    style = DIM if level == QUIET else WARN if level == NEARING else BAD
    return _in_lines(f"{run.id} {output.plain(run.name)}: {reason(run, limit_share, now)}", style, width)


def _pane(keys: Keys, width: int, height: int) -> list[Strip]:
    pane = keys.pane
    assert pane is not None
    run = keys.table.runs.get(pane.run) if pane.run is not None else None
    about = f" of {run.id} {output.plain(run.name)}" if run is not None else ""
    title = f" {pane.title}{about} "
    cut = _wrapped if pane.raw else _in_words
    drawn = list(cut(pane.lines[-height:] if pane.follows else pane.lines, width))
    keys.pane_total = len(drawn) if not pane.follows else len(pane.lines)
    top = max(len(drawn) - height + 1, 0) if pane.follows else pane.seen_from(height - 1, len(drawn))
    seen = drawn[top : top + height - 1]
    hint = " [ ] scroll " if len(seen) < len(drawn) else ""
    rule = "─" * max(width - 2 - cell_len(title) - len(hint), 0)
    lines = [_line([("──", DIM), (title, "head"), (rule, DIM), (hint, "key")], width)]
    lines += [_line([(text, PLAIN)], width) for text in seen]
    return lines + [_blank(width)] * (height - len(lines))


def _in_words(lines: Iterable[str], width: int) -> Iterable[str]:
    for line in lines:
        if cell_len(line) < width:
            yield line
        else:
            yield from wrap(line, width - 1, subsequent_indent="  ", break_on_hyphens=False)


def _wrapped(lines: Iterable[str], width: int) -> Iterable[str]:
    for line in lines:
        while cell_len(line) > width:
            head = set_cell_size(line, width)
            # a wide character that does not fit whole is replaced by a space
            cut = len(head) if line.startswith(head) else len(head) - 1
            yield line[:cut]
            line = line[max(cut, 1) :]
        yield line


def _prompt(keys: Keys, width: int) -> Strip:
    prompt = keys.prompt
    if prompt is None:
        shown = keys.notice if not _needs_room(keys, width) else ""
        return _line([(shown, BAD if keys.notice_bad else GOOD)], width) if shown else _blank(width)
    parts: list[Text] = [(prompt.question + ("  " if prompt.yes_or_no else ": "), "head")]
    said = [("   …", DIM)] if prompt.asking else []
    if not prompt.yes_or_no:
        before, here, after = prompt.text[: prompt.at], prompt.text[prompt.at : prompt.at + 1] or " ", prompt.text[prompt.at + 1 :]
        parts += [(before, PLAIN), (here, "title"), (after, PLAIN)]
    return _line([*parts, *said], width)


@lru_cache(maxsize=4)
def _footer(width: int) -> Strip:
    parts = [part for key, rest in FOOTER for part in ((key, "key"), (rest + " ", DIM))]
    return _line(parts, width)


@lru_cache(maxsize=4)
def _blank(width: int) -> Strip:
    return Strip.blank(width)


def _line(parts: Iterable[Text], width: int, *, chosen: bool = False) -> Strip:
    segments = [Segment(text, STYLES[style] + CHOSEN if chosen else STYLES[style]) for text, style in parts if text]
    return Strip(segments).adjust_cell_length(width, CHOSEN if chosen else None)
