"""Reads the stdout of one run in small pieces, through one meter an attempt."""

import time
from collections.abc import Callable
from dataclasses import replace

import msgspec

from ..meters.reading import Meter, Reading
from .stdout_file import LATE, LONGEST_LINE, READ_AT_ONCE, MeterPosition, StdoutFile

RECOGNISED_WITHIN = 64 * 1024
"""Bytes in which the right meter has recognised something: the first event of each program is within 16 KiB."""

_NEWLINE = ord("\n")


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
        self._new_meter = meter
        self._seen = seen
        self._at = MeterPosition() if saved is None else saved
        self.file = StdoutFile(open_stdout, self._at, lost, self._end_line, saved is not None)
        self._head_unread = True
        """Whether `seen` must still be called for a meter that has recognised nothing in the first `RECOGNISED_WITHIN` bytes."""
        self._meter = meter(saved.meter if saved is not None else None)
        self._told = _frozen(self._meter.reading) if saved is not None and saved.told else Reading()

    def position(self) -> MeterPosition:
        """Return where it is now. Takes some 10 µs for a meter that remembers 100 messages."""
        at, reading = self._at, self._meter.reading
        told = not reading.tools and _frozen(reading) == self._told
        return msgspec.structs.replace(at, before=list(at.before), missed=dict(at.missed), meter=self._meter.dump(), told=told)

    @property
    def readings(self) -> tuple[Reading, ...]:
        """A reading of each attempt as it is now, without tools."""
        return (*self._at.before, _frozen(self._meter.reading))

    def begin_attempt(self) -> None:
        """Continue with a new meter. The file may be another one. It is open from now on, so that nothing is hidden by moving it.
        Raises `OSError` if it cannot be opened; the new meter has begun nevertheless."""
        self.file.close()
        if self._at.begun:
            self._at.before.append(_frozen(self._meter.reading))
            self._meter = self._new_meter(None)
            self._at.within_line = False
            self._tell()
        self._at.begun = True
        self.file.opened()

    def advance(self, until: float) -> bool:
        """Read until `time.perf_counter()` is `until`, and at least one piece. Return whether that was all there is. Raises
        `OSError` if the file cannot be opened or read."""
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
        """Read what there is now until `time.perf_counter()` is `until`, then of what is left the `newest` bytes and the
        beginning of their first line. `ended`: nothing will continue the last line. Raises `OSError`."""
        if not self.file.opened():
            return
        self.file.truncated()
        size = self.file.size
        while self._at.offset < size and time.perf_counter() < until and self._read(size - self._at.offset):
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
    return replace(reading, models=dict(reading.models), uncovered=dict(reading.uncovered), tools=[])
