"""A run's stdout and its meters: bytes read in small pieces, and a reading of each attempt."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

import msgspec

from ..meters.base import Meter, Reading
from ..output import holes

PIECE = 16 * 1024
"""Bytes read at once, into one buffer for all runs, while everybody waits: 20 µs of text, 2 ms of the densest lines there are.
Four times as much would be a third faster for text."""
LINE = 256 * 1024
"""Bytes of a line that a drain does not begin in the middle of: the final result is the last line, and holds a whole answer."""

HEAD = 64 * 1024
"""Bytes in which a meter has recognised something, if it is the right one: the first event of every program is within 16 KiB."""

FREED = "were freed before its meter read them"
LATE = "were not read by its meter in time"
TRUNCATED = "were truncated away before its meter read them"

MARK = 32
"""Bytes before a position by which the file is known again: inodes are used again, and a truncated file grows again."""

_NEWLINE = ord("\n")
_buffer = memoryview(bytearray(PIECE))


class MeterPosition(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Where a run's metering stands: what another daemon goes on with. Fields as in `StdoutMeter`."""

    inode: int
    offset: int
    size: int
    within_line: bool
    begun: bool
    mark: bytes
    before: list[Reading]
    meter: bytes
    told: bool
    """Whether `seen` has been called with all that the meter has read."""
    missed: dict[str, tuple[int, int]]
    restarted: bool


class StdoutMeter:
    """One run's stdout, read through one meter an attempt.

    `open_stdout` returns a descriptor for reading; `FileNotFoundError`: there is nothing to read yet. `seen` gets a reading of
    each attempt (see `Tail`) whenever the last has changed, `lost` a sentence about what could not be read."""

    def __init__(
        self,
        open_stdout: Callable[[], int],
        meter: Callable[[bytes | None], Meter],
        seen: Callable[[tuple[Reading, ...]], None],
        lost: Callable[[str], None],
        saved: MeterPosition | None = None,
    ) -> None:
        """`meter` makes one, or from a dump one that goes on. `saved`: where to go on. Raises `ValueError` where that does not fit
        the meter."""
        self.offset = 0
        """Where in the file the next byte is read."""
        self._open_stdout = open_stdout
        self._new_meter = meter
        self._seen = seen
        self._lost = lost
        self._descriptor = -1
        self._inode = 0
        self._size = 0
        """Of the file, when it was last left unread to its end."""
        self._within_line = False
        self._mark = b""
        """The last bytes before `offset`, at most `MARK`; none of those that were not read."""
        self._unsure = False
        """Whether the file is still to be known again, by its mark."""
        self._begun = False
        self._head_unread = True
        """Whether `seen` is still to be called for a meter that has recognised nothing in the first `HEAD` bytes."""
        self._meter = meter(saved.meter if saved is not None else None)
        self._before: list[Reading] = []  # a run has at most 100 attempts
        self._told = Reading()
        self._missed: dict[str, tuple[int, int]] = {}
        """Bytes that were not read, by why, and how many of them have been told of."""
        self._restarted = False
        if saved is not None:
            self._resume(saved)

    def _resume(self, saved: MeterPosition) -> None:
        self.offset, self._inode, self._size = saved.offset, saved.inode, saved.size
        self._within_line, self._mark, self._begun = saved.within_line, saved.mark, saved.begun
        self._before, self._missed, self._restarted = saved.before, saved.missed, saved.restarted
        self._unsure = True
        if saved.told:
            self._told = _frozen(self._meter.reading)

    def position(self) -> MeterPosition:
        """Where it stands; a structure of its own. Cheap: some 10 µs, for a meter that remembers 100 messages."""
        reading = self._meter.reading
        return MeterPosition(
            inode=self._inode,
            offset=self.offset,
            size=self._size,
            within_line=self._within_line,
            begun=self._begun,
            mark=self._mark,
            before=list(self._before),
            meter=self._meter.dump(),
            told=not reading.tools and _frozen(reading) == self._told,
            missed=dict(self._missed),
            restarted=self._restarted,
        )

    @property
    def readings(self) -> tuple[Reading, ...]:
        """Of each attempt, as it stands now, without tools."""
        return (*self._before, _frozen(self._meter.reading))

    @property
    def holds(self) -> bool:
        """Whether the file is open, so that it is read wherever it is."""
        return self._descriptor >= 0

    def begin_attempt(self) -> None:
        """Goes on with a new meter. The file may be another one; it is open from now on, so that nothing is hidden by taking its
        name away. Raises `OSError` where it cannot be opened; the new meter has begun all the same."""
        self.close()
        if self._begun:
            self._before.append(_frozen(self._meter.reading))
            self._meter = self._new_meter(None)
            self._within_line = False
            self._tell()
        self._begun = True
        self._opened()

    def advance(self, until: float) -> bool:
        """Reads until `time.perf_counter()` is `until`, and at least one piece. Whether that was all there is.

        Raises `OSError` where the file cannot be opened or read."""
        if not self._opened():
            return True
        more = self._read() > 0
        while more and time.perf_counter() < until:
            more = self._read() > 0
        if more:
            self._size = os.fstat(self._descriptor).st_size
        self._tell()
        return not more

    def unread(self) -> int:
        """How many bytes there are now that were not read. Raises `OSError`."""
        if not self._opened():
            return 0
        size = os.fstat(self._descriptor).st_size
        return size - self.offset if size >= self.offset else size

    def drain(self, until: float, newest: int, *, ended: bool) -> None:
        """Reads what there is now: until `time.perf_counter()` is `until`, and then of what is left the `newest` bytes, and the
        beginning of their first line. `ended`: nothing will go on with the last one. Raises `OSError`."""
        if not self._opened():
            return
        self._truncated()
        size = os.fstat(self._descriptor).st_size
        while self.offset < size and time.perf_counter() < until and self._read(size - self.offset):
            pass
        self._skip_to(self._line_at(size - newest), LATE)
        # what was left behind may write on, or truncate: no more than was there
        for _ in range((newest + LINE) // PIECE + 2):
            if self.offset >= size or not self._read(size - self.offset):
                break
        if ended:
            self._end_line()
            self._tell_missed()
        self._tell()

    def skip_to(self, offset: int) -> None:
        """Bytes before `offset` will be freed: those not read yet are lost."""
        self._skip_to(offset, FREED)

    def close(self) -> None:
        """Gives the descriptor back. What comes next opens the file again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _opened(self) -> bool:
        if self._descriptor >= 0:
            return True
        try:
            self._descriptor = self._open_stdout()
        except FileNotFoundError:
            return False
        inode = os.fstat(self._descriptor).st_ino
        if inode != self._inode:
            self._inode, self.offset, self._size, self._mark = inode, 0, 0, b""
        elif self._unsure and not self._known():
            self._restart()
        self._unsure = False
        return True

    def _known(self) -> bool:
        """Whether the bytes before `offset` are those that were read there, as far as they have not been freed. A file that is
        too short is not unknown: that is told of when it is read."""
        length = len(self._mark)
        start, found = holes.read_into(self._descriptor, _buffer[:length], self.offset - length)
        return start + len(found) != self.offset or self._mark.endswith(found)

    def _read(self, most: int = PIECE) -> int:
        start, data = self._piece(most)
        if not data and self._truncated():
            start, data = self._piece(most)
        if data:
            self.skip_to(start)
            self._begun = True
            self.offset += len(data)
            self._mark = (self._mark + data[-MARK:])[-MARK:]
            self._within_line = data[-1] != _NEWLINE
            self._meter.feed(data)
        return len(data)

    def _piece(self, most: int) -> tuple[int, memoryview]:
        """The next bytes, and where they are: a daemon before us may have freed what was there, and a run may leave out a terabyte.

        Only what begins like a hole is asked about: SEEK_DATA waits for a lock that a run which writes without pause seldom leaves
        to others (0.4 s were seen)."""
        count = os.preadv(self._descriptor, [_buffer[:most]], self.offset)
        if count and _buffer[0] == 0:
            return holes.read_into(self._descriptor, _buffer[:most], self.offset)
        return self.offset, _buffer[:count]

    def _truncated(self) -> bool:
        if os.fstat(self._descriptor).st_size >= self.offset:
            return False
        self._restart()
        return True

    def _restart(self) -> None:
        if self._size > self.offset:
            self._miss(self._size - self.offset, TRUNCATED)
        elif not self._restarted:
            self._lost("it truncated its stdout, which is metered from its start again; what it wrote just before may be missing")
        self._restarted = True
        self.offset, self._size, self._mark = 0, 0, b""
        self._end_line()

    def _line_at(self, offset: int) -> int:
        """Where the line begins that goes on at `offset`; a line of more than `LINE` bytes does so there."""
        start = max(self.offset, offset - LINE)
        if start >= offset:
            return offset
        newline = os.pread(self._descriptor, offset - start, start).rfind(b"\n")
        if newline < 0 and start > self.offset:
            return offset
        return start + newline + 1

    def _skip_to(self, offset: int, why: str) -> None:
        if offset > self.offset:
            missed, self.offset, self._mark = offset - self.offset, offset, b""
            self._end_line()
            self._miss(missed, why)

    def _miss(self, count: int, why: str) -> None:
        """Tells of it when it has doubled: a run that loses without end is told of 50 times, not at each look."""
        total, told = self._missed.get(why, (0, 0))
        self._missed[why] = (total + count, told)
        if total + count >= 2 * told:
            self._tell_missed()

    def _tell_missed(self) -> None:
        for why, (total, told) in self._missed.items():
            if total > told:
                self._missed[why] = (total, total)
                self._lost(f"{total} bytes of its stdout {why}")

    def _end_line(self) -> None:
        """What comes next does not continue the line that was begun, and what was the last may lack its newline."""
        if self._within_line:
            self._within_line = False
            self._meter.feed(b"\n")

    def _tell(self) -> None:
        reading = self._meter.reading
        current = _frozen(reading)
        tools = list(reading.tools)
        reading.tools.clear()
        silent = current.blank and self._head_unread and self.offset >= HEAD
        if tools or silent or current != self._told:
            self._head_unread = False
            self._told = current
            self._seen((*self._before, replace(current, tools=tools)))


def _frozen(reading: Reading) -> Reading:
    """How it stands, without its tools; the meter's own grows."""
    return replace(reading, models=dict(reading.models), uncovered=dict(reading.uncovered), tools=[])
