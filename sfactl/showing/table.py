"""Tables, which on a terminal are cut to its width and coloured by status. In a pipe they are
neither cut nor coloured."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from ..output import plain
from ..output import width as columns_of

T = TypeVar("T")
COMMAND = 12
"""Terminal columns that the last cell keeps; to keep them, other columns are left out."""
NAME = 16
"""Terminal columns that a name keeps if the terminal is still too narrow."""
_GREEN, _RED, _YELLOW, _CYAN = "32", "31", "33", "36"

_COLOURS = {
    "completed": _GREEN,
    **dict.fromkeys(("failed", "timeout", "lost"), _RED),
    **dict.fromkeys(("running", "starting"), _CYAN),
    **dict.fromkeys(("accepted", "queued", "paused", "retrying", "stopping"), _YELLOW),
}


def terminal_width() -> int | None:
    """Return the columns of the terminal on stdout; `None` if stdout is no terminal."""
    try:
        return os.get_terminal_size(1).columns or 80
    except OSError:
        return None


def coloured(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether stdout is a terminal that shows colours, and the user has not turned them off
    (https://no-color.org)."""
    return (
        sys.stdout.isatty()
        and not environ.get("NO_COLOR")
        and environ.get("TERM", "dumb") != "dumb"
    )


def by_status(cell: str) -> str:
    status = cell.partition(" ")[0].removesuffix("?")
    colour = _RED if status.startswith("rejected_") else _COLOURS.get(status)
    return f"\033[{colour}m{cell}\033[0m" if colour else cell


def of(columns: Mapping[str, Callable[[T], str]], items: Iterable[T]) -> str:
    """Return a table with a row for each item. `columns`: what the cell of an item is, by the
    title of the column."""
    return drawn([*columns], ([cell(item) for cell in columns.values()] for item in items))


def drawn(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    least_first: Sequence[str] = (),
    *,
    room: int | None = None,
) -> str:
    """Return rows of cells below a header. To fit into `room` terminal columns, leave out columns
    in the order of `least_first` until the last one has `COMMAND`, and cut the cells that are still
    too long."""
    lines = [list(header), *map(_plain, rows)]
    if room is not None:
        lines = _fitted(lines, least_first, room)
    widths = _widths(lines)
    status = _status(lines[0])
    return "\n".join(_line(line, widths, status if n else -1) for n, line in enumerate(lines))


class Stream:
    """Prints a table that comes in pieces. The first one decides which columns there are; columns
    are as wide as their longest cell so far."""

    def __init__(
        self, header: Sequence[str], least_first: Sequence[str] = (), *, room: int | None = None
    ) -> None:
        self._header, self._least_first, self._room = list(header), least_first, room
        self._kept: list[int] = []
        self._widths: list[int] = []

    def print(self, rows: Iterable[Sequence[str]]) -> None:
        lines = [*map(_plain, rows)]
        begins = not self._kept
        if begins:
            whole = [self._header, *lines]
            shown = _fitted(whole, self._least_first, self._room) if self._room else whole
            self._kept = [self._header.index(name) for name in shown[0]]
            lines = whole
        lines = [[line[at] for at in self._kept] for line in lines]
        if self._room is not None:
            rest = max(_rest(lines, self._room), 1)
            lines = [[*line[:-1], cut(line[-1], rest)] for line in lines]
        self._widths = _widths([*lines, [" " * width for width in self._widths] or lines[0]])
        status = _status([self._header[at] for at in self._kept])
        print(
            "\n".join(
                _line(line, self._widths, -1 if begins and not n else status)
                for n, line in enumerate(lines)
            ),
            flush=True,
        )


# A long list has a hundred thousand cells: as many as can be are looked at in C.


def _plain(row: Sequence[str]) -> list[str]:
    return [cell if cell.isprintable() else plain(cell) for cell in row]


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    return [
        max(map(len if "".join(cells).isascii() else columns_of, cells))
        for cells in zip(*lines, strict=True)
    ]


def _status(header: Sequence[str]) -> int:
    """Return the column that is coloured; -1 for none."""
    return header.index("STATUS") if "STATUS" in header and coloured() else -1


def _line(cells: Sequence[str], widths: Sequence[int], status: int) -> str:
    padded = [
        cell.ljust(room) if cell.isascii() else cell + " " * (room - columns_of(cell))
        for cell, room in zip(cells, widths, strict=True)
    ]
    if status >= 0:
        padded[status] = by_status(cells[status]) + padded[status][len(cells[status]) :]
    return "  ".join(padded).rstrip()


def _fitted(lines: list[list[str]], least_first: Sequence[str], room: int) -> list[list[str]]:
    for name in least_first:
        if _rest(lines, room) >= COMMAND:
            break
        if name in lines[0]:
            at = lines[0].index(name)
            lines = [line[:at] + line[at + 1 :] for line in lines]
    if _rest(lines, room) < COMMAND and "NAME" in lines[0]:
        at = lines[0].index("NAME")
        lines = [[*line[:at], cut(line[at], NAME), *line[at + 1 :]] for line in lines]
    rest = max(_rest(lines, room), 1)
    return [[*line[:-1], cut(line[-1], rest)] for line in lines]


def _rest(lines: Sequence[Sequence[str]], room: int) -> int:
    """Return the columns that are left for the last cell."""
    return room - sum(width + 2 for width in _widths(lines)[:-1])


def cut(text: str, room: int) -> str:
    """Return at most `room` columns of `text`, `…` in the last one if it is longer."""
    if columns_of(text) <= room:
        return text
    kept = ""
    for character in text:
        if columns_of(kept + character) > room - 1:
            break
        kept += character
    return kept + "…"
