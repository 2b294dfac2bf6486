"""What runs write, followed: metered where somebody knows how, and bounded to its newest bytes.

    a run writes ─▶ its file ─▶ inotify, on the directory ─▶ Following ─▶ its meter ─▶ seen, lost
                                                                └─▶ a thread that frees the oldest bytes

The run writes its files itself, so nothing here can slow it down or break its pipes, and what is not read in time is
counted rather than waited for. A run that says nothing costs nothing.
"""

from __future__ import annotations

import errno
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import trio

from ..meters.base import Meter, Reading
from ..output.files import SUFFIXES, OutputStore, Suffix
from ..output.growth import Growth
from ..protocol.types import RunId
from .metered import Metered

REST = 0.03
"""Seconds between two looks at who has written: a turn is seen within 50 ms, and a run that writes without pause wakes the
daemon 33 times a second."""
BLIND = 0.2
"""Seconds between two looks at everything, where the user has no inotify instance left."""
SETTLE = 0.2
"""Seconds that bytes above a limit may lie there. The run's writes wait while some of its file are freed, so that is done
seldom: 33 times a second, a burst of 200 MB took a fifth longer."""
SLICE = 0.001
"""Seconds of reading between two looks at the rest of the daemon."""
PATIENCE = 64 << 20
"""Bytes that a file may hold above its limit while its meter is behind. What a meter has not read after that is lost to it."""

_UNABLE = (errno.EOPNOTSUPP, errno.ENOSYS)


@dataclass(slots=True)
class _Followed:
    run: RunId
    limit: int | None
    """Bytes kept of stdout, and of stderr."""
    metered: Metered | None


class Following:
    """All runs whose output is kept. Everything but `serve` is synchronous; nothing raises `OSError`.

    `seen(run, total)`: what the run's stdout has told, over all its attempts, has changed. `finished` and `failed` are the
    current attempt's, `tools` those since the last call; the rest is added up. `total` is the callee's.
    `lost(run, count)`: so many bytes of stdout were gone, or too many, before a meter read them.
    `trouble(message)`: something cannot be done as it should, once for each run and kind of error.
    """

    def __init__(
        self,
        store: OutputStore,
        *,
        seen: Callable[[RunId, Reading], None],
        lost: Callable[[RunId, int], None],
        trouble: Callable[[str], None],
    ) -> None:
        self._store = store
        self._seen = seen
        self._lost = lost
        self._trouble = trouble
        self._said: dict[RunId, set[int | None]] = {}
        self._runs: dict[RunId, _Followed] = {}
        self._behind: dict[RunId, _Followed] = {}
        """Runs to look at, the next one first."""
        self._waiting = trio.CancelScope()
        self._freeing = _Freeing(store, self._not_freed)
        self._unable = False
        self._blind = False

    def __len__(self) -> int:
        return len(self._runs)

    def follow(self, run: RunId, *, limit: int | None, meter: Callable[[], Meter] | None) -> None:
        """Follows a run that writes its own files, from its first attempt on. `limit`: bytes kept of stdout, and of stderr.
        `meter` makes one for each attempt. For a run that has written already, as after a restart, call `look` next."""
        metered = self._metered(run, meter) if meter is not None else None
        self._runs[run] = _Followed(run, limit, metered)

    def begin_attempt(self, run: RunId) -> None:
        """Before each attempt is launched, when nothing of the one before is alive: what that has written is read (as by
        `drain`), then a new meter begins."""
        self._with_meter(run, Metered.begin_attempt)

    def drain(self, run: RunId) -> None:
        """Reads what the run has written until now: its main process has ended. Of more than `MAX_DRAIN` bytes only the newest
        are read, and `lost` is told of the rest. `seen` is called before this returns."""
        self._with_meter(run, Metered.drain)

    def set_limit(self, run: RunId, limit: int | None) -> None:
        """Another number of bytes to keep, from now on."""
        followed = self._runs.get(run)
        if followed is not None:
            followed.limit = limit
            self.look(run)

    def look(self, run: RunId) -> None:
        """Has the run looked at soon, as if it had written something."""
        followed = self._runs.get(run)
        if followed is not None:
            self._behind[run] = followed
            self._waiting.cancel()

    def forget(self, run: RunId) -> None:
        """The run is over, and nothing of it is alive. Its descriptor is closed; its files are bounded one last time."""
        followed = self._runs.pop(run, None)
        if followed is None:
            return
        self._behind.pop(run, None)
        if followed.metered is not None:
            followed.metered.close()
            followed.metered = None
        self._bound(followed)
        self._said.pop(run, None)

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follows, until cancelled. Once started, nothing that a run writes is overlooked."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._freeing.serve)
            while True:
                growth = self._growth()
                self._behind |= self._runs
                task_status.started()
                task_status = trio.TASK_STATUS_IGNORED
                if growth is None:
                    again = trio.current_time() + BLIND
                    await self._work(again)
                    await trio.sleep_until(again)
                else:
                    with growth:
                        await self._told(growth)

    def close(self) -> None:
        """Gives back every descriptor; on the orderly way all runs have been forgotten."""
        for followed in self._runs.values():
            if followed.metered is not None:
                followed.metered.close()
        self._runs.clear()
        self._behind.clear()

    # ---- who has written

    def _growth(self) -> Growth | None:
        try:
            growth = Growth(self._store.directory)
        except OSError as error:
            if not self._blind:
                self._trouble(f"nobody tells when a run writes ({error}); looking every {BLIND} s (see fs.inotify in sysctl)")
            self._blind = True
            return None
        self._blind = False
        return growth

    async def _told(self, growth: Growth) -> None:
        while True:
            if not self._behind:
                with trio.CancelScope() as self._waiting:
                    await trio.lowlevel.wait_readable(growth)
            rested = trio.current_time() + REST
            self._mark(growth.take())
            await self._work(rested)
            await trio.sleep_until(rested)

    def _mark(self, runs: set[RunId] | None) -> None:
        if runs is None:
            self._behind |= self._runs
            return
        for run in runs:
            followed = self._runs.get(run)
            if followed is not None:
                self._behind[run] = followed

    async def _work(self, until: float) -> None:
        """Reads what is to be read, a slice a run in turn, until nothing is left or it is time to ask who else has written."""
        while self._behind and trio.current_time() < until:
            end = time.perf_counter() + SLICE
            self._next(end)
            while self._behind and time.perf_counter() < end:
                self._next(end)
            await trio.lowlevel.checkpoint()
        for followed in list(self._behind.values()):
            self._bound(followed)

    def _next(self, until: float) -> None:
        run = next(iter(self._behind))
        followed = self._behind.pop(run)
        if self._read(followed, until):
            self._bound(followed)
        elif run in self._runs:
            self._behind[run] = followed  # at the end: the others first

    def _read(self, followed: _Followed, until: float) -> bool:
        """Whether that was all there is, or all that can be read."""
        if followed.metered is None:
            return True
        return self._guarded(followed, lambda metered: metered.advance(until)) is not False

    # ---- meters

    def _metered(self, run: RunId, meter: Callable[[], Meter]) -> Metered:
        return Metered(
            lambda: self._store.open_for_meter(run),
            meter,
            lambda total: self._seen(run, total),
            lambda count: self._lost(run, count),
        )

    def _with_meter(self, run: RunId, call: Callable[[Metered], object]) -> None:
        followed = self._runs.get(run)
        if followed is not None and followed.metered is not None:
            self._guarded(followed, call)

    def _guarded(self, followed: _Followed, call: Callable[[Metered], object]) -> object:
        assert followed.metered is not None
        try:
            return call(followed.metered)
        except OSError as error:
            self._say(followed.run, error, "its output cannot be read for metering")
        except Exception:  # noqa: BLE001 - a bug in a meter must not leave every tree without a supervisor
            followed.metered.close()
            followed.metered = None
            self._trouble(f"run {followed.run}: it is not metered any more: internal error:\n{traceback.format_exc()}")
        return None

    # ---- bounds

    def _bound(self, followed: _Followed) -> None:
        if followed.limit is None or self._unable:
            return
        for suffix in SUFFIXES:
            try:
                until = self._store.excess(followed.run, suffix, followed.limit)
            except OSError as error:
                self._say(followed.run, error, "its output cannot be bounded")
                continue
            if until and suffix == ".out" and followed.metered is not None:
                until = _spared(until, followed.metered)
            if until:
                self._freeing.want(followed.run, suffix, followed.limit, until)

    def _not_freed(self, run: RunId, error: OSError) -> None:
        if error.errno not in _UNABLE:
            self._say(run, error, "its output cannot be bounded")
        elif not self._unable:
            self._unable = True
            self._trouble(
                f"output cannot be bounded in size: the file system of {self._store.directory} cannot free a part of a file"
            )

    def _say(self, run: RunId, error: OSError, what: str) -> None:
        said = self._said.setdefault(run, set()) if run in self._runs else set()
        if error.errno not in said:
            said.add(error.errno)
            self._trouble(f"run {run}: {what}: {error}")


def _spared(until: int, metered: Metered) -> int:
    """What is to be freed, less what the meter is given time to read. Of what it is not, it is told now: from here on it
    does not read there, whenever the bytes go."""
    until = min(until, max(metered.offset, until - PATIENCE))
    metered.skip_to(until)
    return until


class _Freeing:
    """Frees bytes in a thread, a file at a time: a file system may wait for its disk before it does."""

    def __init__(self, store: OutputStore, failed: Callable[[RunId, OSError], None]) -> None:
        self._store = store
        self._failed = failed
        self._wanted: dict[tuple[RunId, Suffix], tuple[int, int]] = {}
        self._some = trio.Event()

    def want(self, run: RunId, suffix: Suffix, keep: int, until: int) -> None:
        """See `OutputStore.free`. A later wish for the same file replaces the earlier."""
        self._wanted[run, suffix] = (keep, until)
        self._some.set()

    async def serve(self) -> None:
        """Frees, until cancelled; then what is still to be freed, for a second at most."""
        try:
            while True:
                await self._some.wait()
                await trio.sleep(SETTLE)
                self._some = trio.Event()
                await self._free_all()
        finally:
            with trio.move_on_after(1, shield=True):
                await self._free_all()

    async def _free_all(self) -> None:
        while self._wanted:
            file = next(iter(self._wanted))
            await self._free(*file, *self._wanted.pop(file))

    async def _free(self, run: RunId, suffix: Suffix, keep: int, until: int) -> None:
        check = trio.from_thread.check_cancelled
        try:
            await trio.to_thread.run_sync(self._store.free, run, suffix, keep, until, check)
        except OSError as error:
            self._failed(run, error)
