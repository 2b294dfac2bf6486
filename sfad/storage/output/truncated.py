"""What a run had written before it truncated its own output, as `> /dev/stderr` and `tee
/dev/stderr` do: both open the run's file again, and empty it.

The kernel has no means against it: a file that may only be appended to would fail the shell's
command. So the newest bytes of each file are kept in memory, as of each look at the run. When a
look finds the file truncated, they are saved beside it in `ID.out.kept` or `ID.err.kept`. When the
run has ended, they come before the rest again. What a run writes and truncates between two looks is
lost, unless the daemon is root's (`reopened`).
"""

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from msgspec import Struct

from . import holes

KEPT = ".kept"
"""The suffix after that of the output file."""
NEWEST = 64 << 10
"""Bytes of a file that are in memory."""
NEWEST_OF_ALL = 16 << 20
"""The same of all files together. Above that, one more has `NEWEST_AT_LEAST`."""
NEWEST_AT_LEAST = 4 << 10
MOST = 1 << 20
"""Bytes that are saved of a file that is truncated again and again."""
_COMPARED = 4 << 10
"""The last bytes that were there at the last look: a file that was truncated and written again has
others, even if it is as long."""
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
"""A run of the daemon's own user may put anything in the file's place."""


Read = Callable[[int, int], tuple[int, bytes]]
"""As `holes.read` of an open file: given offset and length, the offset of what is there, and the
bytes."""


class Truncation(NamedTuple):
    kept: bytes
    """The newest bytes that were there."""
    lost: int
    """How many older bytes were there."""


class Budget(Struct):
    """The memory that all files share."""

    used: int = 0

    def most(self) -> int:
        return NEWEST if self.used < NEWEST_OF_ALL else NEWEST_AT_LEAST


class NewestBytes(Struct):
    """The newest bytes of one output file, as of the last look."""

    budget: Budget
    _inode: int = 0
    _size: int = 0
    _written: int = 0
    """When it was written to last, in nanoseconds."""
    _newest: bytes = b""
    _reopened: bool = False
    """A process has opened it since, and may truncate it yet."""

    def look(
        self, descriptor: int, status: os.stat_result, *, reopened: bool = False
    ) -> Truncation | None:
        """Read what is new. Return what was there if the file was truncated since the last look.
        `reopened`: a process has opened it since, so one that has the same bytes and another time
        was written again. Raises `OSError`."""
        return self._look(partial(holes.read, descriptor), status, reopened=reopened)

    def look_back(self, status: os.stat_result, newest: bytes) -> Truncation | None:
        """As `look`, at the file as it was when a process opened it, with at least these bytes at
        its end."""
        first = status.st_size - len(newest)

        def read(offset: int, length: int) -> tuple[int, bytes]:
            start = max(offset, first)
            return start, newest[start - first : offset + length - first]

        return self._look(read, status, reopened=True)

    def _look(self, read: Read, status: os.stat_result, *, reopened: bool) -> Truncation | None:
        self._reopened = reopened = reopened or self._reopened
        if status.st_ino != self._inode:
            self.forget()
            self._inode = status.st_ino
        elif (status.st_size, status.st_mtime_ns) == (self._size, self._written) and not (
            reopened and self._changed(read)  # within one tick of the file system's clock
        ):
            return None
        truncated = None
        if self._size and (
            status.st_size < self._size
            or self._changed(read)
            or (reopened and status.st_size == self._size == len(self._newest))
        ):
            truncated = Truncation(self._newest, self._size - len(self._newest))
            self.forget()
        self._read(read, status.st_size)
        self._written, self._reopened = status.st_mtime_ns, False
        return truncated

    def forget(self) -> None:
        self.budget.used -= len(self._newest)
        self._size, self._newest = 0, b""

    def _changed(self, read: Read) -> bool:
        expected = self._newest[-_COMPARED:]
        offset = self._size - len(expected)
        start, found = read(offset, len(expected))
        return start == offset and found != expected  # else it was freed

    def _read(self, read: Read, size: int) -> None:
        most = self.budget.most()
        offset = max(self._size, size - most)
        start, found = read(offset, size - offset) if size > offset else (0, b"")
        before = self._newest if offset == self._size and start in (0, offset) else b""
        self.budget.used -= len(self._newest)
        self._newest = (before + found)[-most:]
        self.budget.used += len(self._newest)
        self._size = size


def save(path: str, kept: bytes) -> int:
    """Save bytes of the output file at `path`. Return how many could not be. Raises `OSError`."""
    descriptor = os.open(f"{path}{KEPT}", os.O_WRONLY | os.O_APPEND | os.O_CREAT | _OPEN, 0o600)
    try:
        room = MOST - os.fstat(descriptor).st_size
        os.write(descriptor, kept[-room:] if room > 0 else b"")
        return max(0, len(kept) - max(0, room))
    finally:
        os.close(descriptor)


def restore(path: str) -> bool:
    """Put what was saved of the output file at `path` before what it has. No process may write to
    it any more. Return whether there was anything. Raises `OSError`; then both are as before."""
    try:
        target = os.open(f"{path}{KEPT}", os.O_RDWR | os.O_APPEND | _OPEN)
    except FileNotFoundError:
        return False
    try:
        source = os.open(path, os.O_RDONLY | _OPEN)
        try:
            found, saved = os.fstat(source), os.fstat(target)
            if not (stat.S_ISREG(found.st_mode) and stat.S_ISREG(saved.st_mode)):
                return False
            try:
                _append(source, target)
                os.fchown(target, found.st_uid, found.st_gid)
                os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
                os.rename(f"{path}{KEPT}", path)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(target, saved.st_size)
                raise
        finally:
            os.close(source)
    finally:
        os.close(target)
    return True


def _append(source: int, target: int) -> None:
    offset = 0
    while True:
        start, data = holes.read(source, offset, 1 << 20)
        if not data:
            return
        os.write(target, data)
        offset = start + len(data)
