"""Reads the stdout of one run in small pieces, through one meter an attempt."""

import os
import time
from collections.abc import Callable
from dataclasses import replace

import msgspec

from ..meters.reading import Meter, Reading
from ..output import holes

PIECE = 16 * 1024
"""Bytes read at once, into one buffer for all runs, while the daemon waits: 20 µs of text, 2 ms of the densest lines. Four times as
much would be a third faster for text."""
LINE = 256 * 1024
"""A drain does not begin in the middle of a line of at most so many bytes: the final result is the last line, and holds a whole
answer."""

HEAD = 64 * 1024
"""Bytes in which the right meter has recognised something: the first event of each program is within 16 KiB."""

FREED = "were freed before its meter read them"
LATE = "were not read by its meter in time"
TRUNCATED = "were truncated away before its meter read them"

MARK = 32
"""Bytes before a position by which the file is recognised: inodes are used again, and a truncated file grows again."""

_NEWLINE = ord("\n")
_buffer = memoryview(bytearray(PIECE))


class MeterPosition(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Where a run's metering is: what another daemon continues from."""

    inode: int = 0
    offset: int = 0
    size: int = 0
    """Of the file, when it was last left unread to its end."""
    within_line: bool = False
    begun: bool = False
    mark: bytes = b""
    """The last bytes before `offset`, at most `MARK`; none of those that were not read."""
    before: list[Reading] = []
    meter: bytes = b""
    """Its dump. This field and the next one are only set in what `StdoutMeter.position` returns."""
    told: bool = False
    """Whether `seen` has been called with all that the meter has read."""
    missed: dict[str, tuple[int, int]] = {}
    """By reason: bytes that were not read, and how many of them have been told of."""
    restarted: bool = False


class StdoutMeter:
    """The stdout of one run. `open_stdout` returns a descriptor for reading, and raises `FileNotFoundError` if there is nothing
    to read yet. `seen` gets a reading of each attempt (see `Tail`) when the last one has changed, `lost` a sentence about what
    could not be read."""

    def __init__(
        self,
        open_stdout: Callable[[], int],
        meter: Callable[[bytes | None], Meter],
        seen: Callable[[tuple[Reading, ...]], None],
        lost: Callable[[str], None],
        saved: MeterPosition | None = None,
    ) -> None:
        """`meter` makes a meter, or from a dump one that continues. `saved`: where to continue. Raises `ValueError` if that does
        not fit the meter."""
        self._open_stdout = open_stdout
        self._new_meter = meter
        self._seen = seen
        self._lost = lost
        self._at = MeterPosition() if saved is None else saved
        self._descriptor = -1
        self._unsure = saved is not None
        """Whether the file must still be recognised by its mark."""
        self._head_unread = True
        """Whether `seen` must still be called for a meter that has recognised nothing in the first `HEAD` bytes."""
        self._meter = meter(saved.meter if saved is not None else None)
        self._told = _frozen(self._meter.reading) if saved is not None and saved.told else Reading()

    def position(self) -> MeterPosition:
        """Return where it is now. Takes some 10 µs for a meter that remembers 100 messages."""
        at, reading = self._at, self._meter.reading
        told = not reading.tools and _frozen(reading) == self._told
        return msgspec.structs.replace(at, before=list(at.before), missed=dict(at.missed), meter=self._meter.dump(), told=told)

    @property
    def offset(self) -> int:
        return self._at.offset

    @property
    def readings(self) -> tuple[Reading, ...]:
        """A reading of each attempt as it is now, without tools."""
        return (*self._at.before, _frozen(self._meter.reading))

    @property
    def holds(self) -> bool:
        """Whether the file is open, so that it can be read even if it was moved."""
        return self._descriptor >= 0

    def begin_attempt(self) -> None:
        """Continue with a new meter. The file may be another one. It is open from now on, so that nothing is hidden by moving it.
        Raises `OSError` if it cannot be opened; the new meter has begun nevertheless."""
        self.close()
        if self._at.begun:
            self._at.before.append(_frozen(self._meter.reading))
            self._meter = self._new_meter(None)
            self._at.within_line = False
            self._tell()
        self._at.begun = True
        self._opened()

    def advance(self, until: float) -> bool:
        """Read until `time.perf_counter()` is `until`, and at least one piece. Return whether that was all there is. Raises
        `OSError` if the file cannot be opened or read."""
        if not self._opened():
            return True
        more = self._read() > 0
        while more and time.perf_counter() < until:
            more = self._read() > 0
        if more:
            self._at.size = os.fstat(self._descriptor).st_size
        self._tell()
        return not more

    def unread(self) -> int:
        if not self._opened():
            return 0
        size = os.fstat(self._descriptor).st_size
        return size - self._at.offset if size >= self._at.offset else size

    def drain(self, until: float, newest: int, *, ended: bool) -> None:
        """Read what there is now until `time.perf_counter()` is `until`, then of what is left the `newest` bytes and the
        beginning of their first line. `ended`: nothing will continue the last line. Raises `OSError`."""
        if not self._opened():
            return
        self._truncated()
        size = os.fstat(self._descriptor).st_size
        while self._at.offset < size and time.perf_counter() < until and self._read(size - self._at.offset):
            pass
        self.skip_to(self._line_at(size - newest), LATE)
        # a process that is left may write on, or truncate the file: read no more than was there
        for _ in range((newest + LINE) // PIECE + 2):
            if self._at.offset >= size or not self._read(size - self._at.offset):
                break
        if ended:
            self._end_line()
            self._tell_missed()
        self._tell()

    def close(self) -> None:
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
        if inode != self._at.inode:
            self._at.inode, self._at.offset, self._at.size, self._at.mark = inode, 0, 0, b""
        elif self._unsure and not self._known():
            self._restart()
        self._unsure = False
        return True

    def _known(self) -> bool:
        """Return whether the bytes before `offset` are those that were read there, as far as they have not been freed. A file
        that is too short counts as known: reading it tells that it was truncated."""
        length = len(self._at.mark)
        start, found = holes.read_into(self._descriptor, _buffer[:length], self._at.offset - length)
        return start + len(found) != self._at.offset or self._at.mark.endswith(found)

    def _read(self, most: int = PIECE) -> int:
        start, data = self._piece(most)
        if not data and self._truncated():
            start, data = self._piece(most)
        if data:
            self.skip_to(start)
            self._at.begun = True
            self._at.offset += len(data)
            self._at.mark = (self._at.mark + data[-MARK:])[-MARK:]
            self._at.within_line = data[-1] != _NEWLINE
            self._meter.feed(data)
        return len(data)

    def _piece(self, most: int) -> tuple[int, memoryview]:
        """Return the next bytes and where they are: an earlier daemon may have freed what was there, and a run may skip a terabyte.

        Holes are looked for only if the bytes begin like one: SEEK_DATA waits for a lock that a run which writes without pause
        seldom releases (it took 0.4 s)."""
        count = os.preadv(self._descriptor, [_buffer[:most]], self._at.offset)
        if count and _buffer[0] == 0:
            return holes.read_into(self._descriptor, _buffer[:most], self._at.offset)
        return self._at.offset, _buffer[:count]

    def _truncated(self) -> bool:
        if os.fstat(self._descriptor).st_size >= self._at.offset:
            return False
        self._restart()
        return True

    def _restart(self) -> None:
        if self._at.size > self._at.offset:
            self._miss(self._at.size - self._at.offset, TRUNCATED)
        elif not self._at.restarted:
            self._lost("it truncated its stdout, which is metered from its start again; what it wrote just before may be missing")
        self._at.restarted = True
        self._at.offset, self._at.size, self._at.mark = 0, 0, b""
        self._end_line()

    def _line_at(self, offset: int) -> int:
        """Return where the line begins that continues at `offset`, or `offset` if that is more than `LINE` bytes earlier."""
        start = max(self._at.offset, offset - LINE)
        if start >= offset:
            return offset
        newline = os.pread(self._descriptor, offset - start, start).rfind(b"\n")
        if newline < 0 and start > self._at.offset:
            return offset
        return start + newline + 1

    def skip_to(self, offset: int, why: str = FREED) -> None:
        if offset > self._at.offset:
            missed, self._at.offset, self._at.mark = offset - self._at.offset, offset, b""
            self._end_line()
            self._miss(missed, why)

    def _miss(self, count: int, why: str) -> None:
        """Count bytes that were not read. Tell so only when they have doubled: at most 50 times, however much a run loses."""
        total, told = self._at.missed.get(why, (0, 0))
        self._at.missed[why] = (total + count, told)
        if total + count >= 2 * told:
            self._tell_missed()

    def _tell_missed(self) -> None:
        for why, (total, told) in self._at.missed.items():
            if total > told:
                self._at.missed[why] = (total, total)
                self._lost(f"{total} bytes of its stdout {why}")

    def _end_line(self) -> None:
        if self._at.within_line:
            self._at.within_line = False
            self._meter.feed(b"\n")

    def _tell(self) -> None:
        reading = self._meter.reading
        current = _frozen(reading)
        tools = list(reading.tools)
        reading.tools.clear()
        silent = current.blank and self._head_unread and self._at.offset >= HEAD
        if tools or silent or current != self._told:
            self._head_unread = False
            self._told = current
            self._seen((*self._at.before, replace(current, tools=tools)))


def _frozen(reading: Reading) -> Reading:
    """Return a copy without tools, because the meter's own reading grows."""
    return replace(reading, models=dict(reading.models), uncovered=dict(reading.uncovered), tools=[])
