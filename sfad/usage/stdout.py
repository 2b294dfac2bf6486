"""The file of a run's stdout, read forward in small pieces, whatever happens to it, through one
meter an attempt."""

import os
import time
from collections.abc import Callable

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..agents.counters import Meter, Reading
from ..storage.output import holes

# ---- The file of a run's stdout, read forward in small pieces, whatever the run or the daemon does
# to it meanwhile


READ_AT_ONCE = 16 * 1024
"""Bytes read at once, into one buffer for all runs, while the daemon waits: 20 µs of text, 2 ms of
the densest lines. Four times as much would be a third faster for text."""
LONGEST_LINE = 256 * 1024
"""A drain does not begin in the middle of a line of at most so many bytes: the final result is the
last line, and has a whole answer."""

FREED = "were freed before its meter read them"
LATE = "were not read by its meter in time"
TRUNCATED = "were truncated away before its meter read them"

MARK_SIZE = 32
"""Bytes before a position by which the file is recognised: inodes are used again, and a truncated
file grows again."""

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


class StdoutFile(Struct, eq=False):
    """`open_stdout` returns a descriptor, and raises `FileNotFoundError` if there is nothing to
    read yet. `lost` gets a sentence about what could not be read; `cut` is called when the last
    line that was read will not continue."""

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
        """Open the file, if it is not open. Return whether there is anything to read yet. Raises
        `OSError`."""
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
        """Return the next bytes, which are in a buffer for all runs; none at the end. Raises
        `OSError`."""
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
        """Return where the line begins that continues at `offset`, or `offset` if that is more than
        `LONGEST_LINE` earlier."""
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
        """Return whether the bytes before `offset` are those that were read there, as far as they
        have not been freed. A file that is too short counts as known: reading it tells that it was
        truncated."""
        length = len(self.at.mark)
        start, found = holes.read_into(self._descriptor, _buffer[:length], self.at.offset - length)
        return start + len(found) != self.at.offset or self.at.mark.endswith(found)

    def _piece(self, most: int) -> tuple[int, memoryview]:
        """Return the next bytes and where they are: an earlier daemon may have freed what was
        there, and a run may skip a terabyte. What comes before them is read again, because a file
        that was truncated may have grown as long as it was.

        Holes are looked for only if the bytes begin like one: SEEK_DATA waits for a lock that a run
        which writes without pause seldom releases (it took 0.4 s)."""
        mark = self.at.mark
        marked = len(mark)
        count = (
            os.preadv(self._descriptor, [_buffer[: marked + most]], self.at.offset - marked)
            - marked
        )
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
            self.lost(
                "it truncated its stdout, which is metered from its start again; "
                "what it wrote just before may be missing"
            )
        self.at.restarted = True
        self.at.offset, self.at.size, self.at.mark = 0, 0, b""
        self.cut()

    def _miss(self, count: int, why: str) -> None:
        """Count bytes that were not read. Tell so only when they have doubled: at most 50 times,
        however much a run loses."""
        total, told = self.at.missed.get(why, (0, 0))
        self.at.missed[why] = (total + count, told)
        if total + count >= 2 * told:
            self.tell_missed()


# ---- Reads the stdout of one run in small pieces, through one meter an attempt


RECOGNISED_WITHIN = 64 * 1024
"""Bytes in which the right meter has recognised something: the first event of each program is
within 16 KiB."""

_NEWLINE = ord("\n")


class StdoutMeter:
    """The stdout of one run. `open_stdout` returns a descriptor for reading, and raises
    `FileNotFoundError` if there is nothing to read yet. `seen` gets a reading of each attempt (see
    `Tail`) when the last one has changed, `lost` a sentence about what could not be read."""

    def __init__(
        self,
        open_stdout: Callable[[], int],
        meter: Callable[[bytes | None], Meter],
        seen: Callable[[tuple[Reading, ...]], None],
        lost: Callable[[str], None],
        saved: MeterPosition | None = None,
    ) -> None:
        """`meter` makes a meter, or from a dump one that continues. `saved`: where to continue.
        Raises `ValueError` if that does not fit the meter."""
        self._new_meter = meter
        self._seen = seen
        self._at = MeterPosition() if saved is None else saved
        self.file = StdoutFile(open_stdout, self._at, lost, self._end_line, saved is not None)
        self._head_unread = True
        """Whether `seen` must still be called for a meter that has recognised nothing in the first
        `RECOGNISED_WITHIN` bytes."""
        self._meter = meter(saved.meter if saved is not None else None)
        self._told = _frozen(self._meter.reading) if saved is not None and saved.told else Reading()

    def position(self) -> MeterPosition:
        """Return where it is now. Takes some 10 µs for a meter that remembers 100 messages."""
        at, reading = self._at, self._meter.reading
        told = not reading.tools and _frozen(reading) == self._told
        return msgspec.structs.replace(
            at, before=list(at.before), missed=dict(at.missed), meter=self._meter.dump(), told=told
        )

    @property
    def readings(self) -> tuple[Reading, ...]:
        """A reading of each attempt as it is now, without tools."""
        return (*self._at.before, _frozen(self._meter.reading))

    def begin_attempt(self) -> None:
        """Continue with a new meter. The file may be another one. It is open from now on, so that
        nothing is hidden by moving it. Raises `OSError` if it cannot be opened; the new meter has
        begun nevertheless."""
        self.file.close()
        if self._at.begun:
            self._at.before.append(_frozen(self._meter.reading))
            self._meter = self._new_meter(None)
            self._at.within_line = False
            self._tell()
        self._at.begun = True
        self.file.opened()

    def advance(self, until: float) -> bool:
        """Read until `time.perf_counter()` is `until`, and at least one piece. Return whether that
        was all there is. Raises `OSError` if the file cannot be opened or read."""
        if not self.file.opened():
            return True
        more = self._read() > 0
        while more and time.perf_counter() < until:
            more = self._read() > 0
        if more:
            self._at.size = self.file.size
        self._tell()
        return not more

    def unread(self) -> int:
        if not self.file.opened():
            return 0
        size = self.file.size
        return size - self._at.offset if size >= self._at.offset else size

    def drain(self, until: float, newest: int, *, ended: bool) -> None:
        """Read what there is now until `time.perf_counter()` is `until`, then of what is left the
        `newest` bytes and the beginning of their first line. `ended`: nothing will continue the
        last line. Raises `OSError`."""
        if not self.file.opened():
            return
        self.file.truncated()
        size = self.file.size
        while (
            self._at.offset < size
            and time.perf_counter() < until
            and self._read(size - self._at.offset)
        ):
            pass
        self.file.skip_to(self.file.line_at(size - newest), LATE)
        # a process that is left may write on, or truncate the file: read no more than was there
        for _ in range((newest + LONGEST_LINE) // READ_AT_ONCE + 2):
            if self._at.offset >= size or not self._read(size - self._at.offset):
                break
        if ended:
            self._end_line()
            self.file.tell_missed()
        self._tell()

    def _read(self, most: int = READ_AT_ONCE) -> int:
        data = self.file.read(most)
        if data:
            self._at.begun = True
            self._at.within_line = data[-1] != _NEWLINE
            self._meter.feed(data)
        return len(data)

    def _end_line(self) -> None:
        if self._at.within_line:
            self._at.within_line = False
            self._meter.feed(b"\n")

    def _tell(self) -> None:
        reading = self._meter.reading
        current = _frozen(reading)
        tools = list(reading.tools)
        reading.tools.clear()
        silent = current.blank and self._head_unread and self._at.offset >= RECOGNISED_WITHIN
        if tools or silent or current != self._told:
            self._head_unread = False
            self._told = current
            self._seen((*self._at.before, replace(current, tools=tools)))


def _frozen(reading: Reading) -> Reading:
    """Return a copy without tools, because the meter's own reading grows."""
    return replace(
        reading,
        models=dict(reading.models),
        uncovered=dict(reading.uncovered),
        by_size={model: dict(sizes) for model, sizes in reading.by_size.items()},
        tools=[],
    )
