"""Frees the oldest bytes of output files, when the meters have read them or have had their time."""

import errno
from collections.abc import Callable
from functools import partial

import trio

from ..host.tasks import in_thread
from ..output import holes
from ..output.files import SUFFIXES, OutputFiles, Suffix
from ..protocol.types import RunId
from .stdout_meter import StdoutMeter
from .tailed_run import TailedRun

FREE_AFTER = 0.2
"""Seconds that bytes above a limit may stay. A run's writes wait while bytes of its file are freed, so that is done seldom: at 33
times a second, a burst of 200 MB took a fifth longer."""
UNREAD_KEPT = 64 << 20
"""Bytes that a file may have above its limit while its meter is behind, but never more than the limit itself. What a meter has
not read after that is lost to it."""

_UNABLE = (errno.EOPNOTSUPP, errno.ENOSYS)


class OutputBounds:
    """Frees bytes in a thread, a file at a time, because a file system may wait for its disk first. `trouble(message)`: no file
    can be bounded, or not now."""

    def __init__(self, files: OutputFiles, *, trouble: Callable[[str], None]) -> None:
        self._files = files
        self._trouble = trouble
        self._wanted: dict[tuple[RunId, Suffix], TailedRun] = {}
        self._some = trio.Event()
        self._short = False
        self._unable = False

    def check(self, tailed: TailedRun) -> None:
        """Have those files of a run freed that have grown above its limit."""
        for suffix in SUFFIXES:
            status = tailed.status(suffix)
            if status is not None and tailed.limit is not None and not self._unable and holes.excess(status, tailed.limit):
                self._wanted[tailed.run, suffix] = tailed
                self._some.set()

    async def serve(self) -> None:
        """Free bytes, until cancelled; then free what is left, for a second at most."""
        try:
            while True:
                await self._some.wait()
                await trio.sleep(FREE_AFTER)
                self._some = trio.Event()
                await self._free_all()
        finally:
            with trio.move_on_after(1, shield=True):
                await self._free_all()

    async def _free_all(self) -> None:
        while self._wanted:
            file = next(iter(self._wanted))
            tailed = self._wanted.pop(file)
            try:
                await self._free(tailed, file[1])
            except OSError as error:
                self._wanted.setdefault(file, tailed)  # at the end: the other files first
                self._some.set()
                if not self._short:
                    self._short = True
                    self._trouble(f"output is not bounded for now: {error}")
                return
            self._short = False

    async def _free(self, tailed: TailedRun, suffix: Suffix) -> None:
        """Free what is above the limit by now; the meter has read on since that was wanted. Raises `OSError` if it should be tried
        again."""
        status, limit = tailed.status(suffix), tailed.limit
        if status is None or limit is None:
            return
        until = holes.excess(status, limit)
        if suffix == ".out" and tailed.stdout is not None:
            until = _spared(until, limit, tailed.stdout)
        free = partial(self._files.free, inode=status.st_ino)
        try:
            await in_thread(free, tailed.run, suffix, limit, until, trio.from_thread.check_cancelled)
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


def _spared(until: int, limit: int, stdout: StdoutMeter) -> int:
    """Return `until`, less what the meter is given time to read. The meter is told now of what it is not given, and does not read
    there, whenever the bytes are freed."""
    until = min(until, max(stdout.file.offset, until - min(UNREAD_KEPT, limit)))
    stdout.file.skip_to(until)
    return until
