"""The screen of a run, from what it has written."""

import os
import re
from collections.abc import Callable

from sfad.features.terminals.recorded import ENTRY, Shown
from sfad.features.terminals.screen import Line, Screen

from ..showing.follower import data_from

PIECE = 1 << 18
LAST = 8 << 20
"""Bytes of the output from which the screen is made: some seconds. What was shown before, and is
not drawn again since, is missing; the modes of the terminal are not."""
_MODE = re.compile(rb"\x1b\[\?([0-9;]{1,40})([hl])")


class Replay:
    """Follows output and record of a terminal. They stay the caller's."""

    def __init__(
        self,
        output: int,
        record: int,
        *,
        whole: bool = False,
        left: Callable[[Line], object] | None = None,
    ) -> None:
        """`whole`: begin with all that is kept, and not with the last bytes. `left` is called with
        each line that leaves the screen at its top."""
        self._output, self._record = output, record
        self._record_at = 0
        self._sizes: list[Shown] = []
        self.offset = data_from(output, 0) or 0
        self._learn_sizes()
        first = self._sizes[0] if self._sizes else Shown(0, 0, 24, 80)
        self.screen = Screen(first.rows, first.columns, left=left or (lambda _line: None))
        if not whole:
            self._skip()

    def _learn_sizes(self) -> None:
        while data := os.pread(self._record, ENTRY.size << 12, self._record_at):
            whole = len(data) // ENTRY.size * ENTRY.size
            self._record_at += whole
            for each in map(Shown._make, ENTRY.iter_unpack(data[:whole])):
                if not self._sizes or each[2:] != self._sizes[-1][2:]:
                    self._sizes.append(each)
            if not whole:
                return

    def _skip(self) -> None:
        """Begin with the last bytes, in the modes that are set before these."""
        begin = os.fstat(self._output).st_size - LAST
        while self.offset < begin:
            data = os.pread(self._output, min(PIECE, begin - self.offset), self.offset)
            for modes, which in _MODE.findall(data):
                self.screen.feed(b"\x1b[?" + modes + which)
            self.offset += len(data)
            if not data:
                return

    def take(self) -> bytes | None:
        """Take the next piece in, and return it; empty if only the size has changed, and `None` if
        there is nothing more now."""
        size = os.fstat(self._output).st_size
        if size < self.offset:  # something has truncated the file
            self.offset = 0
        self._learn_sizes()  # after the output's size: the record of a size comes before what is
        # shown in it
        while len(self._sizes) > 1 and self._sizes[1].offset <= self.offset:
            del self._sizes[0]
        if self._sizes and self._sizes[0].offset <= self.offset:
            _, _, rows, columns = self._sizes[0]
            if (rows, columns) != (self.screen.rows, self.screen.columns):
                self.screen.resize(rows, columns)
                return b""
        until = self._sizes[1].offset if len(self._sizes) > 1 else size
        data = os.pread(self._output, min(PIECE, until - self.offset), self.offset)
        if not data:
            return None
        self.offset += len(data)
        self.screen.feed(data)
        return data

    def take_all(self) -> None:
        while self.take() is not None:
            pass

    @property
    def behind(self) -> int:
        """Bytes that were not taken yet."""
        return os.fstat(self._output).st_size - self.offset
