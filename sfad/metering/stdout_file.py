"""The file of a run's stdout, read forward in small pieces, whatever the run or the daemon does to it meanwhile."""

import os
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from ..meters.reading import Reading
from ..output import holes

READ_AT_ONCE = 16 * 1024
"""Bytes read at once, into one buffer for all runs, while the daemon waits: 20 µs of text, 2 ms of the densest lines. Four times as
much would be a third faster for text."""
LONGEST_LINE = 256 * 1024
"""A drain does not begin in the middle of a line of at most so many bytes: the final result is the last line, and has a whole
answer."""

FREED = "were freed before its meter read them"
LATE = "were not read by its meter in time"
TRUNCATED = "were truncated away before its meter read them"

MARK_SIZE = 32
"""Bytes before a position by which the file is recognised: inodes are used again, and a truncated file grows again."""

_buffer = memoryview(bytearray(MARK_SIZE + READ_AT_ONCE))


class MeterPosition(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Where a run's metering is: what another daemon continues from."""

    inode: int = 0
    offset: int = 0
    size: int = 0
    """Of the file, when it was last left unread to its end."""
    within_line: bool = False
    begun: bool = False
    mark: bytes = b""
    """The last bytes before `offset`, at most `MARK_SIZE`; none of those that were not read."""
    before: list[Reading] = []
    meter: bytes = b""
    """Its dump. This field and the next one are only set in what `StdoutMeter.position` returns."""
    told: bool = False
    """Whether `seen` has been called with all that the meter has read."""
    missed: dict[str, tuple[int, int]] = {}
    """By reason: bytes that were not read, and how many of them have been told of."""
    restarted: bool = False


@dataclass(slots=True, eq=False)
class StdoutFile:
    """`open_stdout` returns a descriptor, and raises `FileNotFoundError` if there is nothing to read yet. `lost` gets a sentence
    about what could not be read; `cut` is called when the last line that was read will not continue."""

    open_stdout: Callable[[], int]
    at: MeterPosition
    lost: Callable[[str], None]
    cut: Callable[[], None]
    _unsure: bool
    """Whether the file must still be recognised by its mark."""
    _descriptor: int = -1

    @property
    def is_open(self) -> bool:
        """Whether it can be read even if it was moved."""
        return self._descriptor >= 0

    @property
    def offset(self) -> int:
        return self.at.offset

    @property
    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def opened(self) -> bool:
        """Open the file, if it is not open. Return whether there is anything to read yet. Raises `OSError`."""
        if self._descriptor >= 0:
            return True
        try:
            self._descriptor = self.open_stdout()
        except FileNotFoundError:
            return False
        inode = os.fstat(self._descriptor).st_ino
        if inode != self.at.inode:
            self.at.inode, self.at.offset, self.at.size, self.at.mark = inode, 0, 0, b""
        elif self._unsure and not self._known():
            self._restart()
        self._unsure = False
        return True

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def read(self, most: int = READ_AT_ONCE) -> memoryview:
        """Return the next bytes, which are in a buffer for all runs; none at the end. Raises `OSError`."""
        start, data = self._piece(most)
        if not data and self.truncated():
            start, data = self._piece(most)
        if data:
            self.skip_to(start)
            self.at.offset += len(data)
            self.at.mark = (self.at.mark + data[-MARK_SIZE:])[-MARK_SIZE:]
        return data

    def truncated(self) -> bool:
        """Return whether it was truncated. If so, it is read from its start again."""
        if os.fstat(self._descriptor).st_size >= self.at.offset:
            return False
        self._restart()
        return True

    def skip_to(self, offset: int, why: str = FREED) -> None:
        """Do not read the bytes before `offset`, and tell why."""
        if offset > self.at.offset:
            missed, self.at.offset, self.at.mark = offset - self.at.offset, offset, b""
            self.cut()
            self._miss(missed, why)

    def line_at(self, offset: int) -> int:
        """Return where the line begins that continues at `offset`, or `offset` if that is more than `LONGEST_LINE` earlier."""
        start = max(self.at.offset, offset - LONGEST_LINE)
        if start >= offset:
            return offset
        newline = os.pread(self._descriptor, offset - start, start).rfind(b"\n")
        if newline < 0 and start > self.at.offset:
            return offset
        return start + newline + 1

    def tell_missed(self) -> None:
        for why, (total, told) in self.at.missed.items():
            if total > told:
                self.at.missed[why] = (total, total)
                self.lost(f"{total} bytes of its stdout {why}")

    def _known(self) -> bool:
        """Return whether the bytes before `offset` are those that were read there, as far as they have not been freed. A file
        that is too short counts as known: reading it tells that it was truncated."""
        length = len(self.at.mark)
        start, found = holes.read_into(self._descriptor, _buffer[:length], self.at.offset - length)
        return start + len(found) != self.at.offset or self.at.mark.endswith(found)

    def _piece(self, most: int) -> tuple[int, memoryview]:
        """Return the next bytes and where they are: an earlier daemon may have freed what was there, and a run may skip a terabyte.
        What comes before them is read again, because a file that was truncated may have grown as long as it was.

        Holes are looked for only if the bytes begin like one: SEEK_DATA waits for a lock that a run which writes without pause
        seldom releases (it took 0.4 s)."""
        mark = self.at.mark
        marked = len(mark)
        count = os.preadv(self._descriptor, [_buffer[: marked + most]], self.at.offset - marked) - marked
        if count <= 0:
            return self.at.offset, _buffer[:0]
        if _buffer[:marked] != mark:
            if self._known():
                self.at.mark = b""  # it was freed
            else:
                self._restart()
            return self._piece(most)
        if _buffer[marked] == 0:
            return holes.read_into(self._descriptor, _buffer[:most], self.at.offset)
        return self.at.offset, _buffer[marked : marked + count]

    def _restart(self) -> None:
        if self.at.size > self.at.offset:
            self._miss(self.at.size - self.at.offset, TRUNCATED)
        elif not self.at.restarted:
            self.lost("it truncated its stdout, which is metered from its start again; what it wrote just before may be missing")
        self.at.restarted = True
        self.at.offset, self.at.size, self.at.mark = 0, 0, b""
        self.cut()

    def _miss(self, count: int, why: str) -> None:
        """Count bytes that were not read. Tell so only when they have doubled: at most 50 times, however much a run loses."""
        total, told = self.at.missed.get(why, (0, 0))
        self.at.missed[why] = (total + count, told)
        if total + count >= 2 * told:
            self.tell_missed()
