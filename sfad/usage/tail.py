"""Follows what runs write: it is metered if a meter is known, and bounded to its newest bytes.

    a run writes ─▶ its file ─▶ inotify, on the directory ─▶ Tail ─▶ its meter ─▶ seen, lost
                                                              └─▶ OutputBounds: frees the oldest

The run writes its files itself, so nothing here can slow it down or break its pipes. Output that is
not read in time is counted as lost rather than waited for. A run that writes nothing costs nothing.
"""

import errno
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from typing import NamedTuple

import trio
from msgspec import Struct, field

from ..agents import Reading
from ..host.tasks import in_thread
from ..protocol.texts.units import format_size
from ..protocol.types import RunId
from ..storage.output import holes
from ..storage.output.files import SUFFIXES, Inotify, LeasedError, OutputFiles, Suffix
from ..storage.output.reopened import Reopenings
from ..storage.output.truncated import Budget
from .stdout import StdoutMeter
from .tailed_run import NewMeter, TailedRun

# ---- Frees the oldest bytes of output files, when the meters have read them or have had their time
#
# Each file keeps what its run's limit allows, but no more than the disk has free beyond a reserve.
# So the disk has room for the ledger, without which no run can start, however much runs print. The
# largest of the files that grow lose bytes first.

FREE_AFTER = 0.2
"""Seconds that bytes above a limit may stay. A run's writes wait while bytes of its file are freed,
so that is done seldom: at 33 times a second, a burst of 200 MB took a fifth longer."""
AHEAD = 32 << 20
"""Bytes that a file system may allocate by itself behind the end of a file that grows. To free them
while the run writes could lose what it writes."""
UNREAD_KEPT = 64 << 20
"""Bytes that a file may have above its limit while its meter is behind, but never more than the
limit itself. What a meter has not read after that is lost to it."""

RESERVE = 16 << 20
"""Bytes of the disk that output leaves to the ledger and the spool: some thousand rows with their
log, and a start."""
KEPT_AT_LEAST = 1 << 16
"""Bytes of a file that are kept on a disk without room: the least limit of output."""
TELL_EVERY = 600.0
"""Seconds between two messages that the disk has little room."""

RESTORED_AT_ONCE = 1 << 20
"""Bytes that are copied while the daemon waits, so that a reader finds them."""
_NOT_RESTORED = "what it wrote before it truncated its output is not before the rest"

_UNABLE = (errno.EOPNOTSUPP, errno.ENOSYS)


class _Grown(NamedTuple):
    """A file that holds more than it may keep."""

    blocks: int
    tailed: TailedRun


class OutputBounds:
    """Frees bytes in a thread, a file at a time, because a file system may wait for its disk first.
    `trouble(message)`: no file can be bounded, or not now."""

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
        self._allocated = trio.Event()
        """A run has allocated room that it has not written to: fallocate(2) takes as much in a
        moment as a run prints in minutes."""
        self._tell_again = 0.0

    def check(self, tailed: TailedRun) -> int:
        """Have those files of a run freed that have grown above what they may keep. Return the size
        of both."""
        size = 0
        for suffix in SUFFIXES:
            status = tailed.status(suffix)
            if status is None or tailed.is_blank(suffix, status):
                continue
            size += status.st_size
            tailed.times.note(suffix, status)
            if suffix not in tailed.held:
                self._hold(tailed, suffix)
            tailed.look_for_truncation(suffix, status)
            grown = tailed.sizes.get(suffix, 0) != status.st_size
            tailed.sizes[suffix] = status.st_size
            if self._unable or status.st_blocks * 512 <= KEPT_AT_LEAST:
                continue
            keep = self._keep(tailed.limit)
            if keep is not None and _too_large(status, keep):
                # xfs allocates ahead of a file that grows, as much as it has or twice as much
                own = max(keep, (4 if grown else 1) * status.st_size) + AHEAD
                if holes.unwritten(status, own):
                    self._allocated.set()
                self._wanted[tailed.run, suffix] = _Grown(status.st_blocks, tailed)
                self._some.set()
        return size

    def _hold(self, tailed: TailedRun, suffix: Suffix) -> None:
        """Hold a file; see `TailedRun.hold`. A lease that was taken while no daemon held it is
        broken, which may take its time."""
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
            # a thread of its own, because one user's lease must not delay what bounds the others'
            # files
            call = partial(self._files.break_lease, tailed.run, suffix)
            tailed.hold(
                suffix, await in_thread(call, abandon=True, limiter=trio.CapacityLimiter(1))
            )
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
            shown = (
                f"{format_size(free)} free, so stdout and stderr of each run that prints keep "
                f"{format_size(keep)} at most"
            )
            self._trouble(
                f"the disk of {self._files.directory} has only {shown}; "
                "free some, or lower limits.max_output"
            )
        return min(limit, keep)

    def restore(self, tailed: TailedRun) -> None:
        """Put what a run that has ended had written before it truncated its files before the
        rest."""
        if self._nursery is not None and tailed.size > RESTORED_AT_ONCE:
            self._nursery.start_soon(self._restore, tailed)
            return
        try:
            tailed.restore()
        except OSError as error:
            tailed.failed(error, _NOT_RESTORED)

    async def _restore(self, tailed: TailedRun) -> None:
        try:
            await in_thread(tailed.restore)
        except OSError as error:
            tailed.failed(error, _NOT_RESTORED)

    async def serve(self) -> None:
        """Free bytes, until cancelled; then free what is left, for a second at most."""
        try:
            async with trio.open_nursery() as self._nursery:
                while True:
                    await self._some.wait()
                    with trio.move_on_after(0 if self._scarce else FREE_AFTER):
                        await self._allocated.wait()
                    self._allocated = trio.Event()
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
        """Free what is above the limit by now; the meter has read on since that was wanted. Raises
        `OSError` if it should be tried again."""
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
            self._trouble(
                "output cannot be bounded in size: "
                f"the file system of {directory} cannot free a part of a file"
            )


def _too_large(status: os.stat_result, keep: int) -> bool:
    return holes.excess(status, keep) > 0 or holes.unwritten(status, keep)


def _spared(until: int, limit: int, stdout: StdoutMeter) -> int:
    """Return `until`, less what the meter is given time to read. The meter is told now of what it
    is not given, and does not read there, whenever the bytes are freed."""
    until = min(until, max(stdout.file.offset, until - min(UNREAD_KEPT, limit)))
    stdout.file.skip_to(until)
    return until


# ---- Follows what runs write: it is metered if a meter is known, and bounded to its newest bytes

LOOK_EVERY = 0.03
"""Seconds between two looks at which runs have written: a turn is seen within 50 ms, and a run that
writes without pause wakes the daemon 33 times a second."""
LOOK_AGAIN = 0.001
"""Seconds from the look at a run that begins to write to the next one: a burst has written more
than `BURST` by then. With 5 ms, the kernel's word on its first writes slowed a burst of 200 MB by a
tenth."""
BURST = 1 << 18
"""Bytes that a run writes between two looks in a burst. While there is one, all runs are looked at
by time: for the kernel to tell of a write takes 0.8 us (6.18), a third of what it takes to write 4
KiB."""
LOOKED_AT = 100
"""Runs in whose number `LOOK_EVERY` grows then: a look at as many takes 1.5 ms."""
BLIND_EVERY = 0.2
"""Seconds between two looks at all files if the user has no inotify instance left, and at a file
that was moved: the kernel tells only what is written in this directory."""
TURN = 0.001
"""Seconds of reading between two looks at the rest of the daemon."""
DRAIN_SECONDS = 0.05
"""Seconds of reading when runs have ended, while all else waits: 10 MB of what agents print, or 256
KiB of the densest lines. Ends that follow each other without a pause share them."""
NEWEST = 32 << 10
"""Bytes at the end of a run's stdout that are read however long it takes, with the whole of their
first line, because they contain the final result. 6 ms of the densest lines."""
NEWEST_OF_ALL = 16 * NEWEST
"""The same for all runs of a drain together. Of 64 that write without pause each gets 8 KiB. That
is little, but only one of them has ended; each of the others is drained again when it ends."""
NEWEST_AT_LEAST = 1 << 10
"""The same for each of a thousand."""


class Drains:
    """Shares the time of ends that follow each other."""

    def __init__(self) -> None:
        self._drained = 0.0
        self._used = 0.0
        """Seconds of reading that had not passed again when the last one had been done."""

    def drain(self, runs: Iterable[TailedRun | None], seconds: float) -> None:
        """Read these runs as `Tail.drain` says."""
        began = time.perf_counter()
        self._used = max(0.0, self._used + self._drained - began)
        end = began + max(0.0, seconds - self._used)
        waiting = []
        for place, tailed in enumerate(runs):
            unread = tailed.unread() if tailed is not None else None
            if tailed is not None and unread is not None and (unread or place == 0):
                waiting.append((unread, place == 0, tailed))
        newest = min(NEWEST, max(NEWEST_AT_LEAST, NEWEST_OF_ALL // max(1, len(waiting))))
        # a run with little to read leaves the rest of its share to the others
        waiting.sort(key=lambda each: each[0])
        for left, (_, ended, tailed) in zip(range(len(waiting), 0, -1), waiting, strict=True):
            now = time.perf_counter()
            tailed.drain(now + max(0.0, end - now) / left, NEWEST if ended else newest, ended=ended)
        self._drained = time.perf_counter()
        self._used = min(max(seconds, self._used), self._used + self._drained - began)


class Tail(Struct, dict=True):
    """Follows all runs whose output is kept. Everything but `serve` is synchronous; nothing raises
    `OSError`.

    `seen(run, readings)`: what the run's stdout tells has changed. There is one reading for each
    attempt so far, in order. The last one is the current attempt's, and its `tools` are those since
    the last call. The others are the same objects each time, never change, and have no tools. The
    callee may keep them all.
    `lost(run, message)`: some output could not be metered, or can no longer be bounded; few
    messages a run.
    `trouble(message)`: something does not work as it should, once for each run and kind of
    error."""

    files: OutputFiles
    seen: Callable[[RunId, tuple[Reading, ...]], None]
    lost: Callable[[RunId, str], None]
    trouble: Callable[[str], None]
    runs: dict[RunId, TailedRun] = field(default_factory=dict)
    """Those that are followed."""
    behind: dict[RunId, TailedRun] = field(default_factory=dict)
    """Those that may have written something which is not read yet."""
    _away: dict[RunId, TailedRun] = field(default_factory=dict)
    """Metered runs whose stdout was moved: the kernel does not tell when they write."""
    _waiting: trio.CancelScope = field(default_factory=trio.CancelScope)
    _watched: Inotify | None = None
    _burst: bool = False
    """Whether a run has written that much since the last look."""
    _drains: Drains = field(default_factory=Drains)
    _budget: Budget = field(default_factory=Budget)
    _reopenings: Reopenings = field(default_factory=Reopenings)
    _blind: bool = False

    def __post_init__(self) -> None:
        self._bounds = OutputBounds(self.files, trouble=self.trouble)

    def follow(
        self, run: RunId, *, limit: int | None, meter: NewMeter | None, saved: bytes | None = None
    ) -> tuple[Reading, ...] | None:
        """Follow a run that writes its own files, from its first attempt on. `limit`: bytes kept of
        stdout, and of stderr. For a run that has written already, as after a restart of the daemon,
        call `look` next.

        `saved`: continue where another daemon was, in the files that the run had then. No line
        counts twice, and none is left out except what was freed or truncated meanwhile, which
        `lost` is told. Return the readings as they were then, without tools; `seen` is not called
        before they change. Return `None` if nothing was saved, or it does not fit: then stdout is
        read from its start, through one meter, whichever attempt wrote it."""
        tailed = self.runs[run] = TailedRun(
            run,
            self.files,
            limit,
            partial(self.seen, run),
            partial(self.lost, run),
            self.trouble,
            lambda: self._look_at_moved(run),
            self._budget,
            self._reopenings,
        )
        return tailed.meter(meter, saved) if meter is not None else None

    def tell_milestones(self, run: RunId, name: str, reached: Callable[[str], None]) -> None:
        """Tell `reached` of the milestones of a run that is followed. `name`: its name."""
        if run in self.runs:
            self.runs[run].tell_milestones(name, reached)

    def read_milestones(self, run: RunId) -> None:
        """Tell of those that it has reached by now."""
        tailed = self.runs.get(run)
        if tailed is not None and tailed.read_milestones():
            self._bounds.check(tailed)  # what was told is kept, too

    def last_line(self, run: RunId) -> str | None:
        """Return the last line that the run's attempt has written on stderr; see
        `last_line.last_line`."""
        return self.runs[run].last_line() if run in self.runs else None

    def position(self, run: RunId) -> bytes | None:
        """Return where the run's metering is, for `follow`; `None` if it has no meter. What was
        returned before `begin_attempt` knows nothing of the new attempt."""
        return self.runs[run].position() if run in self.runs else None

    def begin_attempt(self, run: RunId, opened: Sequence[int] = ()) -> None:
        """Read what the attempt before has written (as `drain` does), then begin a new meter. Call
        this before each attempt is launched, when its files exist and no process of the attempt
        before is alive. From now on these files are the run's, even if they are moved. `opened`:
        descriptors of both, the caller's to close; without them the files are opened again by
        name."""
        tailed = self.runs.get(run)
        if tailed is not None:
            self._away.pop(run, None)
            tailed.files_may_be_new()
            if tailed.stdout is not None:
                self.drain((run,))
            tailed.begin_attempt(opened)

    def drain(self, runs: Iterable[RunId], *, seconds: float = DRAIN_SECONDS) -> None:
        """Read what the runs have written until now. The first one, or its main process, has ended:
        its last line may lack a newline. Of what cannot be read in `seconds`, which they share,
        read only the newest bytes and tell `lost` of the rest. `seen` is called before this
        returns."""
        self._drains.drain(map(self.runs.get, runs), seconds)

    def set_limit(self, run: RunId, limit: int | None) -> None:
        if run in self.runs:
            self.runs[run].set_limit(limit)
            self.look(run)

    def look(self, run: RunId) -> None:
        tailed = self.runs.get(run)
        if tailed is not None:
            self._bounds.check(tailed)  # it may truncate its output soon
            self.behind[run] = tailed
            self._waiting.cancel()

    def look_after(self) -> None:
        """Create the directory again soon if another process has removed or replaced it."""
        if self._watched is not None and self._watched.replaced():
            self._waiting.cancel()

    def forget(self, run: RunId) -> None:
        """Close the descriptor of a run of which no process is alive, and bound its files one last
        time."""
        tailed = self.runs.get(run)
        if tailed is None:
            return
        self._bounds.check(tailed)
        tailed.close()
        self._bounds.restore(tailed)
        del self.runs[run]
        self.behind.pop(run, None)
        self._away.pop(run, None)

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with self._reopenings.served():
            for tailed in self.runs.values():
                tailed.watch()
                self._bounds.check(tailed)  # before clients learn that the daemon serves
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._bounds.serve)
                await self._follow(task_status)

    async def _follow(self, task_status: trio.TaskStatus[None]) -> None:
        while True:
            growth = self._growth()
            self.behind |= self.runs
            task_status.started()
            task_status = trio.TASK_STATUS_IGNORED
            if growth is None:
                again = trio.current_time() + BLIND_EVERY
                await self._work(again)
                await trio.sleep_until(again)
            else:
                with closing(growth):
                    self._watched = growth
                    try:
                        await self._told(growth)
                    finally:
                        self._watched = None

    def close(self) -> None:
        for tailed in self.runs.values():
            tailed.close()
        self.runs.clear()
        self.behind.clear()
        self._away.clear()

    def _growth(self) -> Inotify | None:
        try:
            self.files.make_again()
            growth = Inotify(self.files.directory)
        except OSError as error:
            if not self._blind:
                self.trouble(
                    f"cannot be told when a run writes ({error}); "
                    f"looking every {BLIND_EVERY} s (see fs.inotify in sysctl)"
                )
            self._blind = True
            return None
        self._blind = False
        return growth

    async def _told(self, growth: Inotify) -> None:
        while not growth.gone:
            pause = LOOK_EVERY
            if self._burst:
                pause *= 1 + len(self.runs) / LOOKED_AT
            elif not self.behind and growth.tells_writes:
                began = trio.current_time()
                with trio.move_on_after(BLIND_EVERY if self._away else math.inf) as self._waiting:
                    await trio.lowlevel.wait_readable(growth)
                pause = LOOK_AGAIN if trio.current_time() >= began + LOOK_EVERY else LOOK_EVERY
            rested = trio.current_time() + pause
            written = growth.take()
            if growth.tell_writes(not self._burst) or self._burst:
                written = None
            self.behind |= (
                self.runs
                if written is None
                else {run: self.runs[run] for run in written if run in self.runs}
            )
            self.behind |= self._away
            self._burst = False
            await self._work(rested)
            if self._burst:
                # before the pause: a third of a burst may be over after it
                growth.tell_writes(False)
            await trio.sleep_until(rested)

    async def _work(self, until: float) -> None:
        """Read a slice of each run in turn, until nothing is left or it is time to ask which other
        runs have written."""
        while self.behind and trio.current_time() < until:
            end = time.perf_counter() + TURN
            self._next(end)
            while self.behind and time.perf_counter() < end:
                self._next(end)
            await trio.lowlevel.checkpoint()
        for tailed in list(self.behind.values()):
            self._check(tailed)

    def _next(self, until: float) -> None:
        run = next(iter(self.behind))
        tailed = self.behind.pop(run)
        if tailed.read(until):
            self._check(tailed)
        elif run in self.runs:
            self.behind[run] = tailed  # at the end: the others first

    def _check(self, tailed: TailedRun) -> None:
        size = self._bounds.check(tailed)
        self._burst |= size > tailed.size + BURST
        tailed.size = size

    def _look_at_moved(self, run: RunId) -> None:
        if run in self.runs and run not in self._away:
            self._away[run] = self.runs[run]
            self._waiting.cancel()
