"""Frees the oldest bytes of output files, when the meters have read them or have had their time.

Each file keeps what its run's limit allows, but no more than the disk has free beyond a reserve. So the disk has room for the
ledger, without which no run can start, however much runs print. The largest of the files that grow lose bytes first.
"""

import errno
import os
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import trio

from ..host.tasks import in_thread
from ..protocol.types import RunId
from ..protocol.units import format_size
from ..storage.output import holes
from ..storage.output.files import SUFFIXES, LeasedError, OutputFiles, Suffix
from .stdout import StdoutMeter
from .tailed_run import TailedRun

FREE_AFTER = 0.2
"""Seconds that bytes above a limit may stay. A run's writes wait while bytes of its file are freed, so that is done seldom: at 33
times a second, a burst of 200 MB took a fifth longer."""
UNREAD_KEPT = 64 << 20
"""Bytes that a file may have above its limit while its meter is behind, but never more than the limit itself. What a meter has
not read after that is lost to it."""

RESERVE = 16 << 20
"""Bytes of the disk that output leaves to the ledger and the spool: some thousand rows with their log, and a start."""
KEPT_AT_LEAST = 1 << 16
"""Bytes of a file that are kept on a disk without room: the least limit of output."""
TELL_EVERY = 600.0
"""Seconds between two messages that the disk has little room."""

_UNABLE = (errno.EOPNOTSUPP, errno.ENOSYS)


class _Grown(NamedTuple):
    """A file that holds more than it may keep."""

    blocks: int
    tailed: TailedRun


class OutputBounds:
    """Frees bytes in a thread, a file at a time, because a file system may wait for its disk first. `trouble(message)`: no file
    can be bounded, or not now."""

    def __init__(self, files: OutputFiles, *, trouble: Callable[[str], None]) -> None:
        self._files = files
        self._trouble = trouble
        self._leased: set[tuple[RunId, Suffix]] = set()
        """Files on which the end of a lease is waited for."""
        self._nursery: trio.Nursery | None = None
        self._wanted: dict[tuple[RunId, Suffix], _Grown] = {}
        self._some = trio.Event()
        self._short = False
        self._unable = False
        self._scarce = False
        self._tell_again = 0.0

    def check(self, tailed: TailedRun) -> int:
        """Have those files of a run freed that have grown above what they may keep. Return the size of both."""
        size = 0
        for suffix in SUFFIXES:
            status = tailed.status(suffix)
            if status is None:
                continue
            size += status.st_size
            tailed.times.note(suffix, status)
            if self._unable:
                continue
            self._hold(tailed, suffix)
            if not _too_large(status, KEPT_AT_LEAST):
                continue
            keep = self._keep(tailed.limit)
            if keep is not None and _too_large(status, keep):
                self._wanted[tailed.run, suffix] = _Grown(status.st_blocks, tailed)
                self._some.set()
        return size

    def _hold(self, tailed: TailedRun, suffix: Suffix) -> None:
        """Hold a file; see `TailedRun.hold`. A lease that was taken while no daemon held it is broken, which may take its time."""
        try:
            tailed.hold(suffix)
        except LeasedError:
            if self._nursery is not None and (tailed.run, suffix) not in self._leased:
                self._leased.add((tailed.run, suffix))
                self._nursery.start_soon(self._break_lease, tailed, suffix)
        except OSError:
            pass  # no descriptor is left, or the file was taken away: tried again at the next look

    async def _break_lease(self, tailed: TailedRun, suffix: Suffix) -> None:
        try:
            # a thread of its own, because one user's lease must not delay what bounds the others' files
            call = partial(self._files.break_lease, tailed.run, suffix)
            tailed.hold(suffix, await in_thread(call, abandon=True, limiter=trio.CapacityLimiter(1)))
        except OSError as error:
            tailed.failed(error, "its output cannot be bounded")
        finally:
            self._leased.discard((tailed.run, suffix))
        self.check(tailed)

    def _keep(self, limit: int | None) -> int | None:
        """Return how many bytes a file with this limit may keep now."""
        if limit is None:
            return None
        try:
            free = self._files.room()
        except OSError:  # the directory was removed, and is made again soon
            return limit
        self._scarce = free < 2 * RESERVE
        keep = max(KEPT_AT_LEAST, free - RESERVE)
        if self._scarce and time.monotonic() >= self._tell_again:
            self._tell_again = time.monotonic() + TELL_EVERY
            shown = f"{format_size(free)} free, so stdout and stderr of each run that prints keep {format_size(keep)} at most"
            self._trouble(f"the disk of {self._files.directory} has only {shown}; free some, or lower limits.max_output")
        return min(limit, keep)

    async def serve(self) -> None:
        """Free bytes, until cancelled; then free what is left, for a second at most."""
        try:
            async with trio.open_nursery() as self._nursery:
                while True:
                    await self._some.wait()
                    await trio.sleep(0 if self._scarce else FREE_AFTER)
                    self._some = trio.Event()
                    await self._free_all()
        finally:
            self._nursery = None
            with trio.move_on_after(1, shield=True):
                await self._free_all()

    async def _free_all(self) -> None:
        while self._wanted:
            file = max(self._wanted, key=lambda each: self._wanted[each].blocks)
            tailed = self._wanted.pop(file).tailed
            try:
                await self._free(tailed, file[1])
            except OSError as error:
                self.check(tailed)
                if not self._short:
                    self._short = True
                    self._trouble(f"output is not bounded for now: {error}")
                return
            self._short = False

    async def _free(self, tailed: TailedRun, suffix: Suffix) -> None:
        """Free what is above the limit by now; the meter has read on since that was wanted. Raises `OSError` if it should be tried
        again."""
        status, keep = tailed.status(suffix), self._keep(tailed.limit)
        if status is None or keep is None:
            return
        until = holes.excess(status, keep)
        if suffix == ".out" and tailed.stdout is not None:
            until = _spared(until, keep, tailed.stdout)
        free = partial(self._files.free, inode=status.st_ino)
        try:
            await in_thread(free, tailed.run, suffix, keep, until, trio.from_thread.check_cancelled)
        except LeasedError:
            self._hold(tailed, suffix)
        except OSError as error:
            if error.errno == errno.EAGAIN:
                raise
            self._not_freed(tailed, error)

    def _not_freed(self, tailed: TailedRun, error: OSError) -> None:
        if error.errno not in _UNABLE:
            tailed.failed(error, "its output cannot be bounded")
        elif not self._unable:
            self._unable = True
            directory = self._files.directory
            self._trouble(f"output cannot be bounded in size: the file system of {directory} cannot free a part of a file")


def _too_large(status: os.stat_result, keep: int) -> bool:
    return holes.excess(status, keep) > 0 or holes.unwritten(status, keep)


def _spared(until: int, limit: int, stdout: StdoutMeter) -> int:
    """Return `until`, less what the meter is given time to read. The meter is told now of what it is not given, and does not read
    there, whenever the bytes are freed."""
    until = min(until, max(stdout.file.offset, until - min(UNREAD_KEPT, limit)))
    stdout.file.skip_to(until)
    return until
