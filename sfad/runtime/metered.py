"""A run's stdout and its meters: bytes read in small pieces, and what they add up to over all attempts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import TypeVar

from ..meters.base import Meter, Reading
from ..output import holes
from ..protocol.types import Tokens

PIECE = 64 * 1024
"""Bytes read at once, into one buffer for all runs: a meter of 100 MB/s takes 0.6 ms for it."""

MAX_DRAIN = 8 << 20
"""Bytes read at once when a run has ended, while everybody else waits: 40 ms with a meter of 200 MB/s."""

_NEWLINE = ord("\n")
_Number = TypeVar("_Number", int, float)
_buffer = memoryview(bytearray(PIECE))


class Metered:
    """One run's stdout, read through one meter an attempt.

    `open_stdout` returns a descriptor for reading; it is asked when there is something to read, so a run that says nothing
    holds none. `seen` gets the total whenever it has changed, `lost` the number of bytes that were not read."""

    def __init__(
        self,
        open_stdout: Callable[[], int],
        meter: Callable[[], Meter],
        seen: Callable[[Reading], None],
        lost: Callable[[int], None],
    ) -> None:
        self.offset = 0
        """Where in the file the next byte is read."""
        self._open_stdout = open_stdout
        self._new_meter = meter
        self._seen = seen
        self._lost = lost
        self._descriptor = -1
        self._inode = 0
        self._within_line = False
        self._meter = meter()
        self._before = Reading()
        self._told = Reading()

    def begin_attempt(self) -> None:
        """Reads what the attempt before has written, and goes on with a new meter. The file may be another one. Raises `OSError`
        where it cannot be read; the new meter has begun all the same."""
        try:
            self.drain()
        finally:
            self._next_meter()

    def advance(self, until: float) -> bool:
        """Reads until `time.perf_counter()` is `until`, and at least one piece. Whether that was all there is.

        Raises `OSError` where the file cannot be opened or read."""
        if not self._opened():
            return True
        more = self._read() > 0
        while more and time.perf_counter() < until:
            more = self._read() > 0
        self._tell()
        return not more

    def drain(self) -> None:
        """Reads what there is now; of more than `MAX_DRAIN` bytes the newest. Raises `OSError`."""
        if not self._opened():
            return
        size = os.fstat(self._descriptor).st_size
        if size - self.offset > MAX_DRAIN:
            self.skip_to(size - MAX_DRAIN)
        # what was left behind may write on: no more than was there
        for _ in range(MAX_DRAIN // PIECE + 1):
            if not self._read():
                break
        self._end_line()
        self._tell()

    def skip_to(self, offset: int) -> None:
        """Bytes before `offset` will be gone: those not read yet are lost."""
        if offset > self.offset:
            missed, self.offset = offset - self.offset, offset
            self._end_line()
            self._lost(missed)

    def close(self) -> None:
        """Gives the descriptor back. What comes next opens the file again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _next_meter(self) -> None:
        self.close()
        self._before = added(self._before, self._meter.reading)
        self._meter = self._new_meter()
        self._tell()

    def _opened(self) -> bool:
        if self._descriptor >= 0:
            return True
        try:
            self._descriptor = self._open_stdout()
        except FileNotFoundError:
            return False
        inode = os.fstat(self._descriptor).st_ino
        if inode != self._inode:
            if self._inode:
                self.offset = 0
            self._inode = inode
            self.skip_to(holes.data_from(self._descriptor, 0) or 0)  # a daemon before us may have freed it
        return True

    def _read(self) -> int:
        count = os.preadv(self._descriptor, [_buffer], self.offset)
        if count == 0 and self._truncated():
            count = os.preadv(self._descriptor, [_buffer], 0)
        self.offset += count
        if count:
            self._within_line = _buffer[count - 1] != _NEWLINE
            self._meter.feed(_buffer[:count])
        return count

    def _truncated(self) -> bool:
        if os.fstat(self._descriptor).st_size >= self.offset:
            return False
        self.offset = 0
        self._end_line()
        return True

    def _end_line(self) -> None:
        """What comes next does not continue the line that was begun, and what was the last may lack its newline."""
        if self._within_line:
            self._within_line = False
            self._meter.feed(b"\n")

    def _tell(self) -> None:
        reading = self._meter.reading
        total = added(self._before, reading)
        total.tools = list(reading.tools)
        reading.tools.clear()
        if total.tools or total != self._told:
            self._told = replace(total, tools=[])
            self._seen(total)


def added(before: Reading, current: Reading) -> Reading:
    """The use of two attempts, and how the second stands. What neither has told stays unknown. Tool names are left out."""
    models: dict[str, Tokens] = {}
    for model, tokens in chain(before.models.items(), current.models.items()):
        models[model] = _sum(models[model], tokens) if model in models else tokens
    return replace(
        current,
        turns=_plus(before.turns, current.turns),
        messages=_plus(before.messages, current.messages),
        models=models,
        cost_usd=_plus(before.cost_usd, current.cost_usd),
        tools=[],
        skipped_lines=before.skipped_lines + current.skipped_lines,
    )


def _plus(one: _Number | None, other: _Number | None) -> _Number | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other


def _sum(one: Tokens, other: Tokens) -> Tokens:
    return Tokens(
        input=one.input + other.input,
        output=one.output + other.output,
        cached=one.cached + other.cached,
        cache_write=one.cache_write + other.cache_write,
    )
