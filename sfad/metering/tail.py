"""What runs write, followed: metered where somebody knows how, and bounded to its newest bytes.

    a run writes ─▶ its file ─▶ inotify, on the directory ─▶ Following ─▶ its meter ─▶ seen, lost
                                                                └─▶ a thread that frees the oldest bytes

The run writes its files itself, so nothing here can slow it down or break its pipes, and what is not read in time is
counted rather than waited for. A run that says nothing costs nothing.
"""

from __future__ import annotations

import errno
import math
import os
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import msgspec
import trio

from ..host.threads import in_thread
from ..meters.base import Meter, Reading
from ..output import holes
from ..output.files import SUFFIXES, OutputStore, Suffix
from ..output.inotify import Inotify
from ..protocol.types import RunId
from .stream import Metered, MeterPosition

REST = 0.03
"""Seconds between two looks at who has written: a turn is seen within 50 ms, and a run that writes without pause wakes the
daemon 33 times a second."""
BLIND = 0.2
"""Seconds between two looks at everything, where the user has no inotify instance left, and at a file that is not where it was:
the kernel tells of what is written in this directory only."""
SETTLE = 0.2
"""Seconds that bytes above a limit may lie there. The run's writes wait while some of its file are freed, so that is done
seldom: 33 times a second, a burst of 200 MB took a fifth longer."""
SLICE = 0.001
"""Seconds of reading between two looks at the rest of the daemon."""
PATIENCE = 64 << 20
"""Bytes that a file may hold above its limit while its meter is behind, but never more than the limit itself. What a meter has
not read after that is lost to it."""

DRAIN_SECONDS = 0.05
"""Seconds of reading when runs have ended, while everybody else waits: 10 MB of what agents print, or 256 KiB of the densest lines.
Ends that follow each other without a pause have them together."""
NEWEST = 32 << 10
"""Bytes at the end of a run's stdout that are read whatever the time, with the whole of their first line: final results are
there. 6 ms of the densest lines."""
NEWEST_OF_ALL = 16 * NEWEST
"""The same for all runs of a drain. Of 64 that write without pause each gets 8 KiB. That is little, but only one of them has
ended; the others are drained again, each as the only one, when they do."""
NEWEST_AT_LEAST = 1 << 10
"""The same for each of a thousand."""

_UNABLE = (errno.EOPNOTSUPP, errno.ENOSYS)

T = TypeVar("T")

SAVED = 1
"""The version of what `saved` says; another one whenever a field of it is added, removed or means something else."""


class _Saved(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    version: int
    inodes: dict[Suffix, int]
    position: MeterPosition


_TO_BYTES = msgspec.msgpack.Encoder()
_FROM_BYTES = msgspec.msgpack.Decoder(_Saved)


@dataclass(slots=True)
class _Followed:
    run: RunId
    limit: int | None
    """Bytes kept of stdout, and of stderr."""
    metered: Metered | None = None
    inodes: dict[Suffix, int] = field(default_factory=dict)
    """Of the files that the run was given."""
    taken: set[Suffix] = field(default_factory=set)
    """Files of which it has been told that they are not where they were."""


class Following:
    """All runs whose output is kept. Everything but `serve` is synchronous; nothing raises `OSError`.

    `seen(run, readings)`: what the run's stdout has told has changed. There is one reading for each attempt so far, in order. The
    last is the current attempt's, and its `tools` are those since the last call. The others are the same objects each time,
    never change, and have no tools. All are the callee's to keep.
    `lost(run, message)`: a sentence about output that could not be metered, or cannot be bounded any more; few a run.
    `trouble(message)`: something cannot be done as it should, once for each run and kind of error.
    """

    def __init__(
        self,
        store: OutputStore,
        *,
        seen: Callable[[RunId, tuple[Reading, ...]], None],
        lost: Callable[[RunId, str], None],
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
        self._away: dict[RunId, _Followed] = {}
        """Metered runs whose stdout is not where it was: nobody tells when they write."""
        self._freeing = _Freeing(self._free, trouble)
        self._drained = 0.0
        self._spare = DRAIN_SECONDS
        """Seconds of reading that the last drain has left over."""
        self._unable = False
        self._blind = False

    def __len__(self) -> int:
        return len(self._runs)

    def follow(
        self,
        run: RunId,
        *,
        limit: int | None,
        meter: Callable[[bytes | None], Meter] | None,
        saved: bytes | None = None,
    ) -> tuple[Reading, ...] | None:
        """Follows a run that writes its own files, from its first attempt on. `limit`: bytes kept of stdout, and of stderr.
        `meter` makes one for each attempt, or from a dump one that goes on, and raises `ValueError` for a dump that does not fit.
        For a run that has written already, as after a restart, call `look` next.

        `saved`: goes on where another daemon was, in the files that the run had there: no line counts twice, and none is left
        out but what has been freed or truncated away meanwhile, of which `lost` is told. Returns the readings as they stood
        there, without tools; `seen` is not called before they change. `None`: nothing was saved, or it does not fit. Then
        stdout is read from its start, through one meter, whichever attempt wrote it."""
        followed = self._runs[run] = _Followed(run, limit)
        if meter is None:
            return None
        if saved is not None:
            with suppress(ValueError):
                return self._resume(followed, meter, saved)
        followed.metered = self._metered(followed, meter)
        return None

    def _resume(self, followed: _Followed, meter: Callable[[bytes | None], Meter], saved: bytes) -> tuple[Reading, ...]:
        found = _FROM_BYTES.decode(saved)
        if found.version != SAVED:
            raise ValueError(f"version {found.version}")
        metered = followed.metered = self._metered(followed, meter, found.position)
        followed.inodes = found.inodes
        return metered.readings

    def saved(self, run: RunId) -> bytes | None:
        """Where the run's metering stands, for `follow`; `None` if it has none. To be asked for after `begin_attempt`, too: what is
        older knows nothing of the new attempt."""
        followed = self._runs.get(run)
        position = self._guarded(followed, Metered.position) if followed is not None else None
        if followed is None or position is None:
            return None
        return _TO_BYTES.encode(_Saved(SAVED, followed.inodes, position))

    def begin_attempt(self, run: RunId) -> None:
        """Before each attempt is launched, when its files are there and nothing of the one before is alive: what that has written
        is read (as by `drain`), then a new meter begins. Whatever becomes of the files' names, these are the run's."""
        followed = self._runs.get(run)
        if followed is None:
            return
        followed.inodes.clear()
        self._away.pop(run, None)
        if followed.metered is not None:
            self.drain((run,))
        for suffix in SUFFIXES:
            self._status(followed, suffix)
        if followed.metered is not None:
            self._guarded(followed, Metered.begin_attempt)

    def drain(self, runs: Iterable[RunId], *, seconds: float = DRAIN_SECONDS) -> None:
        """Reads what the runs have written until now. The first is the one that has ended, or whose main process has: its last line
        may lack a newline. Of what cannot be read in `seconds`, which they share, only the newest bytes are, and `lost` is
        told of the rest. `seen` is called before this returns."""
        now = time.perf_counter()
        spare = min(seconds, self._spare + now - self._drained)
        waiting = self._waiting_in(runs)
        newest = min(NEWEST, max(NEWEST_AT_LEAST, NEWEST_OF_ALL // max(1, len(waiting))))
        end = now + spare
        # who has little leaves the rest of its share to those with more
        waiting.sort(key=lambda each: each[0])
        for left, (_, ended, followed) in zip(range(len(waiting), 0, -1), waiting, strict=True):
            now = time.perf_counter()
            self._drain(followed, now + max(0.0, end - now) / left, NEWEST if ended else newest, ended=ended)
        self._drained = time.perf_counter()
        self._spare = max(0.0, end - self._drained)

    def _waiting_in(self, runs: Iterable[RunId]) -> list[tuple[int, bool, _Followed]]:
        """Of these runs, who is to be drained: bytes, whether it is the first, and who."""
        found = []
        for place, run in enumerate(runs):
            followed = self._runs.get(run)
            unread = self._guarded(followed, Metered.unread) if followed is not None else None
            if followed is not None and unread is not None and (unread or place == 0):
                found.append((unread, place == 0, followed))
        return found

    def _drain(self, followed: _Followed, until: float, newest: int, *, ended: bool) -> None:
        self._guarded(followed, lambda metered: metered.drain(until, newest, ended=ended))

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

    def look_after(self) -> None:
        """Has the directory made again soon if another process has removed or replaced it; who writes in it is told of that."""
        self._waiting.cancel()

    def forget(self, run: RunId) -> None:
        """The run is over, and nothing of it is alive. Its descriptor is closed; its files are bounded one last time."""
        followed = self._runs.get(run)
        if followed is None:
            return
        self._bound(followed)
        self._unmetered(followed)
        del self._runs[run]
        for others in (self._behind, self._away, self._said):
            others.pop(run, None)

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
            self._unmetered(followed)
        self._runs.clear()
        self._behind.clear()
        self._away.clear()

    # ---- who has written

    def _growth(self) -> Inotify | None:
        try:
            self._store.make_again()
            growth = Inotify(self._store.directory)
        except OSError as error:
            if not self._blind:
                self._trouble(f"nobody tells when a run writes ({error}); looking every {BLIND} s (see fs.inotify in sysctl)")
            self._blind = True
            return None
        self._blind = False
        return growth

    async def _told(self, growth: Inotify) -> None:
        """Until the directory is gone."""
        while not growth.gone:
            if not self._behind:
                with trio.move_on_after(BLIND if self._away else math.inf) as self._waiting:
                    await trio.lowlevel.wait_readable(growth)
            rested = trio.current_time() + REST
            self._mark(growth.take())
            self._behind |= self._away
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
        return self._guarded(followed, lambda metered: metered.advance(until)) is not False

    # ---- meters

    def _metered(
        self, followed: _Followed, meter: Callable[[bytes | None], Meter], position: MeterPosition | None = None
    ) -> Metered:
        run = followed.run
        return Metered(
            lambda: self._open(followed),
            meter,
            lambda readings: self._seen(run, readings),
            lambda message: self._lost(run, message),
            position,
        )

    def _open(self, followed: _Followed) -> int:
        """Raises `FileNotFoundError` also where something else is in its place, which may be anybody's."""
        if self._status(followed, ".out") is None:
            raise FileNotFoundError
        descriptor = self._store.open_for_meter(followed.run)
        if os.fstat(descriptor).st_ino != followed.inodes[".out"]:
            os.close(descriptor)
            raise FileNotFoundError
        return descriptor

    def _unmetered(self, followed: _Followed) -> None:
        if followed.metered is not None:
            followed.metered.close()
            followed.metered = None

    def _guarded(self, followed: _Followed, call: Callable[[Metered], T]) -> T | None:
        if followed.metered is None:
            return None
        try:
            return call(followed.metered)
        except OSError as error:
            self._say(followed.run, error, "its output cannot be read for metering")
        except Exception:  # noqa: BLE001 - a bug in a meter must not leave every tree without a supervisor
            self._unmetered(followed)
            self._trouble(f"run {followed.run}: it is not metered any more: internal error:\n{traceback.format_exc()}")
        return None

    # ---- bounds

    def _status(self, followed: _Followed, suffix: Suffix) -> os.stat_result | None:
        """Of a file of the run, the one it was given; nothing, and said once, if that is not where it was."""
        try:
            status = self._store.status(followed.run, suffix)
        except OSError as error:
            self._say(followed.run, error, "its output cannot be bounded")
            return None
        found = status.st_ino if status is not None else None
        if found is not None and followed.inodes.setdefault(suffix, found) == found:
            return status
        if suffix in followed.inodes:
            self._taken(followed, suffix)
        return None

    def _taken(self, followed: _Followed, suffix: Suffix) -> None:
        """Its meter goes on with what it has open."""
        metered = followed.metered if suffix == ".out" else None
        if followed.run not in self._runs or (metered is None and followed.limit is None):
            return
        if metered is not None and followed.run not in self._away:
            self._away[followed.run] = followed
            self._waiting.cancel()
        unknown = metered is not None and not metered.holds
        if suffix not in followed.taken and (unknown or followed.limit is not None):
            followed.taken.add(suffix)
            name = "stdout" if suffix == ".out" else "stderr"
            what = "not metered and not bounded" if unknown else "not bounded"
            self._lost(followed.run, f"the file of its {name} was taken away: it is {what} any more")

    def _bound(self, followed: _Followed) -> None:
        for suffix in SUFFIXES:
            status = self._status(followed, suffix)
            if status is not None and followed.limit is not None and not self._unable and holes.excess(status, followed.limit):
                self._freeing.want(followed, suffix)

    async def _free(self, followed: _Followed, suffix: Suffix) -> None:
        """Frees what is above the limit by now; the meter has gone on since that was wanted. Raises `OSError` where that is to be
        tried again."""
        status, limit = self._status(followed, suffix), followed.limit
        if status is None or limit is None:
            return
        until = holes.excess(status, limit)
        if suffix == ".out" and followed.metered is not None:
            until = _spared(until, limit, followed.metered)
        free = partial(self._store.free, inode=status.st_ino)
        try:
            await in_thread(free, followed.run, suffix, limit, until, trio.from_thread.check_cancelled)
        except OSError as error:
            if error.errno == errno.EAGAIN:
                raise
            self._not_freed(followed.run, error)

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


def _spared(until: int, limit: int, metered: Metered) -> int:
    """What is to be freed, less what the meter is given time to read. Of what it is not, it is told now: from here on it
    does not read there, whenever the bytes go."""
    until = min(until, max(metered.offset, until - min(PATIENCE, limit)))
    metered.skip_to(until)
    return until


class _Freeing:
    """Frees bytes in a thread, a file at a time: a file system may wait for its disk before it does."""

    def __init__(self, free: Callable[[_Followed, Suffix], Awaitable[None]], trouble: Callable[[str], None]) -> None:
        """`free` raises `OSError` if that is to be tried again."""
        self._free = free
        self._trouble = trouble
        self._wanted: dict[tuple[RunId, Suffix], _Followed] = {}
        self._some = trio.Event()
        self._short = False

    def want(self, followed: _Followed, suffix: Suffix) -> None:
        """Has a file freed that holds too much."""
        self._wanted[followed.run, suffix] = followed
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
            followed = self._wanted.pop(file)
            try:
                await self._free(followed, file[1])
            except OSError as error:
                self._wanted.setdefault(file, followed)  # at the end: the others first
                self._later(error)
                return
            self._short = False

    def _later(self, error: OSError) -> None:
        self._some.set()
        if not self._short:
            self._short = True
            self._trouble(f"output is not bounded for now: {error}")
