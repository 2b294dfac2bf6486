"""The terminal of a run, for pages that look and type. What a page is given acts within its screen
alone (`Harmless`)."""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from sfad.features.terminals.messages import Keys
from sfad.features.terminals.screen import Line
from sfad.protocol.requests.base import Done

from ..terminals.replay import Replay
from .source import Source

SCROLLBACK = 1000
"""Lines that have left the screen, with which a page begins."""
FAR_BEHIND = 1 << 20
"""Bytes of output: if more wait, a page gets only the screen after them."""

Piece = dict[str, Any]
"""`text` to write; with `rows` and `columns`: into an empty terminal of this size."""


class Pieces:
    def __init__(self, output: int, record: int) -> None:
        """Both stay the caller's."""
        self._left: deque[Line] = deque(maxlen=SCROLLBACK)
        self._replay = Replay(output, record, left=self._left.append)
        self._begun = False

    def take(self) -> Piece | None:
        """Return what a page is to write next; `None` if there is nothing now."""
        if not self._begun or self._replay.behind > FAR_BEHIND:
            self._replay.take_all()
            return self._whole()
        data = self._replay.take()
        if data is None:
            return None
        # of another size: programs draw again, but what a page makes of the lines that were wrapped
        # differs from this screen
        return {"text": self._harmless(data).decode()} if data else self._whole()

    def _whole(self) -> Piece:
        screen, self._begun = self._replay.screen, True
        self._harmless = screen.follower()
        above = "".join(f"{line.drawn(screen.columns)}\x1b[m\r\n" for line in self._left)
        # the lines above leave the screen
        empty = "\r\n" * (screen.rows - 1) if above else ""
        text = f"\x1b[?7l{above}{empty}{screen.drawn().decode()}"
        return {"rows": screen.rows, "columns": screen.columns, "text": text}


async def follow(
    output: int,
    record: int,
    rest: Callable[[], Awaitable[None]],
    show: Callable[[Piece], Awaitable[None]],
) -> None:
    """Show a terminal until this is cancelled. `rest` waits for more."""
    pieces = Pieces(output, record)
    while True:
        # makes of each piece what the screen has then, which may take long
        piece = await trio.to_thread.run_sync(pieces.take)
        if piece is None:
            await rest()
        else:
            await show(piece)


async def keys(source: Source, run: str, typed: str, rows: int, columns: int) -> None:
    """Type into a terminal, and give it the size of the page. Raise `Quit`."""
    data = typed.encode(errors="replace")
    await source.ask(Keys(id=0, run=run, data=data, rows=rows, columns=columns), Done)
