"""What keeps the state directory in bounds: old output and rows deleted, pages given back, a backup now and then.

One job after the other, in a thread. Output comes first: it frees the room that the others need.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import CancelledError, wait
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

import trio

from ..config import RetentionConfig
from ..core.ids import run_id
from ..host.disk_reserve import DiskReserve
from ..host.private_files import make_directory
from ..host.threads import in_thread
from ..ledger import Ledger, LedgerError, back_up
from ..ledger.backup import BACKUP, Backup, DamagedCopy
from ..ledger.checking import mark_damaged
from ..ledger.connections import open_reader
from ..ledger.reader import Reader
from ..ledger.retention import Sweeper
from ..output import OutputStore
from ..output.retention import remove, remove_old
from ..protocol.types import RunId
from ..runs.live import wall_clock

T = TypeVar("T")

FIRST = 60.0
"""Seconds after the start, which has other things to do."""

_PAUSE = 0.02
"""Seconds between two small steps that the writer takes: 50 000 runs with their events take a minute or so."""

_COPY_PAUSE = 0.004
"""Seconds between two steps of a backup, which copies 40 MB a second then."""

_WATCHED = 86400.0
_GAP = 30 * 86400.0
_JUMP = 3600.0


class Clock:
    """Whether the wall clock can be believed when it says that things are old.

    It can if the ledger holds an event that is a day old by it, and not older than a month and a day; or if this process has
    watched it for a day, and it did not jump. So a clock that is years ahead, after a start or in the middle of it, deletes
    nothing for a day, in which it is complained about; a machine that has been off for months deletes a day late. One that is
    behind deletes less.
    """

    def __init__(self, now: Callable[[], datetime], boottime: Callable[[], float]) -> None:
        self.now = now
        self._boottime = boottime
        self._since = boottime()
        self._offset = now().timestamp() - self._since

    def doubt(self, newest_before: Callable[[float], float | None]) -> str | None:
        """Why nothing should be deleted; `None` if it may. `newest_before(time)` is the time of the newest event that is not
        after `time`, both in seconds since the epoch."""
        now, boottime = self.now().timestamp(), self._boottime()
        if abs(now - boottime - self._offset) > _JUMP:
            self._since, self._offset = boottime, now - boottime
        if boottime - self._since >= _WATCHED:
            return None
        newest = newest_before(now - _WATCHED)
        if newest is None or now - _WATCHED - newest <= _GAP:
            return None
        before = datetime.fromtimestamp(newest, self.now().tzinfo)
        return (
            f"the clock says {self.now():%Y-%m-%d}, and before its last day nothing has happened since {before:%Y-%m-%d}: "
            "nothing is deleted until it has gone on like that for a day"
        )


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a person wants to have removed: trees that have ended."""

    older_than: float | None
    """Seconds since their end at least."""
    keep: int
    """The newest trees that stay."""
    uid: int | None
    """Only trees of this user."""
    dry_run: bool


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was removed: `protocol.messages.Pruned`."""

    trees: int
    runs: int
    events: int
    files: int
    output_bytes: int
    ledger_bytes: int


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Maintenance:
    """Serves the `[retention]` settings of one daemon, in its trio thread.

    `live`: the runs whose output must stay, asked before each sweep. `report`: told what does not work, once until it changes
    or works. `say`: told what was done, a line each. `now` and `boottime` (seconds that never jump) are the clocks."""

    def __init__(
        self,
        ledger: Ledger,
        output: OutputStore,
        settings: RetentionConfig,
        *,
        live: Callable[[], Collection[RunId]],
        report: Callable[[str], object],
        say: Callable[[str], object] = lambda _line: None,
        now: Callable[[], datetime] = wall_clock,
        boottime: Callable[[], float] = _boottime,
    ) -> None:
        self._ledger = ledger
        self._output = output
        self._ballast = DiskReserve(ledger.directory)
        self._settings = settings
        self._live = live
        self._report = report
        self._say = say
        self._clock = Clock(now, boottime)
        self._told: dict[str, str] = {}
        self._changed = trio.Event()
        self._one = trio.Lock()
        """Held by the sweep or the prune that deletes: two would count the same rows."""

    def reconfigure(self, settings: RetentionConfig) -> None:
        """What follows is done by these settings; the next look comes when they say, counted from now."""
        self._settings = settings
        self._changed.set()

    async def serve(self) -> None:
        """Looks a minute after the start and then every `sweep_every`, for ever. Cancelling it waits for a step that has begun:
        some milliseconds, or, while a large file is checked, what that takes."""
        await trio.sleep(FIRST)
        while True:
            await self.look()
            await self._rest()

    async def look(self) -> None:
        """Does everything that is due. Raises nothing."""
        await self._try("ballast", self._ballast.fill)
        await self._try("check", self._check)
        async with self._one:
            if await self._clock_is_sane():
                await self._try("output", self._sweep_output)
                await self._try("ledger", self._sweep_ledger)
            await self._try("compaction", self._compact)
        if self._backup_is_due():
            await self._try("backup", self._back_up)

    async def prune(self, wanted: Wanted, forget: Callable[[Collection[RunId]], object]) -> Pruned:
        """Remove trees that have ended, with their output and events. `forget` is told which runs are gone, in the trio thread.
        Raises `OSError`, `sqlite3.Error`, `LedgerError`, and `CancelledError` when the ledger is closed meanwhile; what was removed
        until then stays removed."""
        async with self._one:
            return await in_thread(self._prune, wanted, forget)

    def _prune(self, wanted: Wanted, forget: Callable[[Collection[RunId]], object]) -> Pruned:
        sweeper, dry = Sweeper(self._ledger.directory, self._errand, _copy_pause), wanted.dry_run
        cutoff = self._clock.now() - timedelta(seconds=wanted.older_than or 0)
        live = trio.from_thread.run_sync(lambda: frozenset(self._live()))
        trees = [
            tree
            for tree in sweeper.choose(cutoff, keep=wanted.keep, uid=wanted.uid)
            if live.isdisjoint(run_id(run.number) for run in tree)
        ]
        runs = [run_id(run.number) for tree in trees for run in tree]
        # output first: a row without output can be removed again, output without its row would stay
        files, freed = remove(self._output.directory, runs, dry=dry, between=_copy_pause)
        deleted = sweeper.remove(trees, dry=dry)
        if dry:
            return Pruned(len(trees), deleted.runs, deleted.events, files, freed, 0)
        sweeper.checkpoint()  # a power failure may lose what is in the log only, and then the spool alone knows how a run ended
        trio.from_thread.run_sync(forget, runs)
        before = self._ledger.size_bytes
        sweeper.compact()
        shrunk = max(0, before - self._ledger.size_bytes)
        self._said(f"pruned {deleted.runs} runs and {deleted.events} events, and {files} output files of {freed} bytes")
        return Pruned(len(trees), deleted.runs, deleted.events, files, freed, shrunk)

    async def _rest(self) -> None:
        while True:
            self._changed = trio.Event()
            with trio.move_on_after(self._settings.sweep_every):
                await self._changed.wait()
                continue
            return

    async def _try(self, job: str, call: Callable[[], object]) -> None:
        try:
            await in_thread(call)
        except (OSError, sqlite3.Error, LedgerError) as error:
            self._tell(job, f"{job}: {error}")
        except CancelledError:
            pass  # the ledger has been closed
        else:
            self._told.pop(job, None)

    def _tell(self, job: str, text: str) -> None:
        if self._told.get(job) != text:
            self._told[job] = text
            self._report(text)

    def _said(self, line: str) -> None:
        trio.from_thread.run_sync(self._say, line)

    async def _clock_is_sane(self) -> bool:
        if self._settings.output is None and self._settings.ledger is None:
            return False
        doubt = None
        try:
            doubt = await in_thread(self._clock.doubt, self._newest_before)
        except (OSError, sqlite3.Error) as error:
            doubt = f"the ledger cannot be read: {error}"
        if doubt is None:
            self._told.pop("retention", None)
        else:
            self._tell("retention", f"retention: {doubt}")
        return doubt is None

    def _newest_before(self, moment: float) -> float | None:
        with _reader(self._ledger) as reader:
            return reader.newest_event_before(moment)

    def _check(self) -> None:
        if self._ledger.check_due and (found := self._ledger.check_rest()) is not None:
            raise LedgerError(f"the ledger is damaged ({found}); the next start sets it aside, and begins a new one")

    def _sweep_output(self) -> None:
        age = self._settings.output
        if age is None:
            return
        live = trio.from_thread.run_sync(lambda: frozenset(self._live()))
        cutoff = self._clock.now().timestamp() - age
        with _reader(self._ledger) as reader:
            count = remove_old(self._output.directory, cutoff, ends=reader.ends, live=live, between=_pause)
        if count:
            self._said(f"deleted {count} output files of runs that ended long ago")

    def _sweep_ledger(self) -> None:
        age = self._settings.ledger
        if age is None:
            return
        deleted = self._sweeper().delete(self._clock.now() - timedelta(seconds=age))
        if deleted.runs or deleted.events:
            self._said(f"deleted {deleted.runs} runs and {deleted.events} events from the ledger, which are old")

    def _compact(self) -> None:
        pages = self._sweeper().compact()
        if pages:
            self._said(f"gave {pages} pages of the ledger back")

    def _backup_is_due(self) -> bool:
        every, last = self._settings.backup_every, self._ledger.backup
        if every is None:
            return False
        # from the future, where the clock was ahead: not an age to wait for
        return last is None or not 0 <= (self._clock.now() - last.at).total_seconds() < every

    def _back_up(self) -> None:
        target = self._ledger.directory / BACKUP
        make_directory(target.parent)
        try:
            backup = back_up(self._ledger.directory, target, replace=True, between=_copy_pause)
        except DamagedCopy as error:
            mark_damaged(self._ledger.directory, str(error))
            raise
        trio.from_thread.run_sync(self._backed_up, backup)

    def _backed_up(self, backup: Backup) -> None:
        self._ledger.backed_up(backup)
        self._say(f"backed up the ledger, {backup.size_bytes} bytes")

    def _sweeper(self) -> Sweeper:
        return Sweeper(self._ledger.directory, self._errand, _pause)

    def _errand(self, work: Callable[[sqlite3.Connection], T]) -> T:
        future = self._ledger.when_idle(work)
        try:
            while not wait([future], 0.1).done:
                trio.from_thread.check_cancelled()
        except BaseException:
            future.cancel()
            raise
        return future.result()


@contextmanager
def _reader(ledger: Ledger) -> Iterator[Reader]:
    """A reader of this thread's own."""
    reader = Reader(open_reader(ledger.directory))
    try:
        yield reader
    finally:
        reader.close()


def _pause() -> None:
    trio.from_thread.check_cancelled()
    time.sleep(_PAUSE)


def _copy_pause() -> None:
    trio.from_thread.check_cancelled()
    time.sleep(_COPY_PAUSE)
