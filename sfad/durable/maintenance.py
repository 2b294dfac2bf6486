"""Keeps the state directory within bounds: deletes old output and rows, gives pages back, makes backups.

One job runs after the other, in a thread. Output comes first, because it frees the room that the other jobs need.
"""

import sqlite3
import time
from collections.abc import Callable, Collection
from concurrent.futures import CancelledError, wait
from contextlib import closing
from datetime import datetime, timedelta
from typing import TypeVar

import trio
from msgspec.structs import replace

from ..config import RetentionConfig
from ..core.ids import run_id
from ..host.clock import wall_clock
from ..host.private_files import make_directory
from ..host.reserve import DiskReserve
from ..host.tasks import in_thread
from ..ledger import Ledger, LedgerError, back_up
from ..ledger.backup import BACKUP, Backup, DamagedCopy
from ..ledger.database import open_reader
from ..ledger.opening import mark_damaged
from ..ledger.reader import Reader
from ..ledger.retention import Pruner
from ..output import OutputStore
from ..output.retention import remove, remove_old
from ..protocol.messages import Prune, Pruned
from ..protocol.types import RunId

T = TypeVar("T")

FIRST = 60.0
"""Seconds after the start until the first sweep."""

_PAUSE = 0.02
"""Seconds between two small steps of the ledger's writer: 50 000 runs with their events take about a minute."""

_COPY_PAUSE = 0.004
"""Seconds between two steps of a backup, which then copies 40 MB a second."""


class Maintenance:
    """Carries out the `[retention]` settings.

    `live` returns the runs whose output must stay. `report` is told of each failure once, until it changes or is over. `say` is
    told what was done, a line each."""

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
    ) -> None:
        self._ledger = ledger
        self._output = output
        self._ballast = DiskReserve(ledger.file.directory)
        self._settings = settings
        self._live = live
        self._report = report
        self._say = say
        self._now = now
        self._told: dict[str, str] = {}
        self._changed = trio.Event()
        self._one = trio.Lock()
        """Held while a sweep or a prune deletes: two at once would count the same rows."""

    def reconfigure(self, settings: RetentionConfig) -> None:
        """Follow other settings. The next sweep comes when they say, counted from now."""
        self._settings = settings
        self._changed.set()

    async def serve(self) -> None:
        """Sweep a minute after the start and then every `sweep_every`, until cancelled. That waits for a step that has begun: some
        milliseconds, or as long as it takes to check a large file."""
        await trio.sleep(FIRST)
        while True:
            await self.look()
            await self._rest()

    async def look(self) -> None:
        """Do everything that is due. Raises nothing."""
        await self._try("ballast", self._ballast.fill)
        await self._try("check", self._check)
        async with self._one:
            await self._try("output", self._sweep_output)
            await self._try("ledger", self._sweep_ledger)
            await self._try("compaction", self._compact)
        if self._backup_is_due():
            await self._try("backup", self._back_up)

    async def prune(self, wanted: Prune, uid: int | None, forget: Callable[[Collection[RunId]], object]) -> Pruned:
        """Remove trees that have ended, of one user or of all, with their output and events. `forget` is told in the
        trio thread which runs are gone. Raises `OSError`, `sqlite3.Error`, `LedgerError`, and `CancelledError` if the ledger is
        closed in the meantime. What was removed until then stays removed."""
        async with self._one:
            return await in_thread(self._prune, wanted, uid, forget)

    def _prune(self, wanted: Prune, uid: int | None, forget: Callable[[Collection[RunId]], object]) -> Pruned:
        pruner, dry = Pruner(self._ledger.file.directory, self._errand, _copy_pause), wanted.dry_run
        cutoff = self._now() - timedelta(seconds=wanted.older_than or 0)
        live = trio.from_thread.run_sync(lambda: frozenset(self._live()))
        trees = [
            tree for tree in pruner.choose(cutoff, keep=wanted.keep, uid=uid) if live.isdisjoint(run_id(run.number) for run in tree)
        ]
        runs = [run_id(run.number) for tree in trees for run in tree]
        # output first: a row without output can be pruned again, output without its row would stay
        files, freed = remove(self._output.directory, runs, dry=dry, between=_copy_pause)
        deleted = pruner.remove(trees, dry=dry)
        pruned = Pruned(
            id=wanted.id,
            trees=len(trees),
            runs=deleted.runs,
            events=deleted.events,
            files=files,
            output_bytes=freed,
            ledger_bytes=0,
        )
        if dry:
            return pruned
        pruner.checkpoint()  # a power failure may lose what is in the log only, and then only the spool has the runs' ends
        trio.from_thread.run_sync(forget, runs)
        before = self._ledger.records.size_bytes
        pruner.compact()
        shrunk = max(0, before - self._ledger.records.size_bytes)
        self._said(f"pruned {deleted.runs} runs and {deleted.events} events, and {files} output files of {freed} bytes")
        return replace(pruned, ledger_bytes=shrunk)

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

    def _check(self) -> None:
        if self._ledger.file.check_due and (found := self._ledger.file.check_rest()) is not None:
            raise LedgerError(f"the ledger is damaged ({found}); the next start sets it aside, and begins a new one")

    def _sweep_output(self) -> None:
        age = self._settings.output
        if age is None:
            return
        live = trio.from_thread.run_sync(lambda: frozenset(self._live()))
        cutoff = self._now().timestamp() - age
        with closing(Reader(open_reader(self._ledger.file.directory))) as reader:
            count = remove_old(self._output.directory, cutoff, ends=reader.ends, live=live, between=_pause)
        if count:
            self._said(f"deleted {count} output files of runs that ended long ago")

    def _sweep_ledger(self) -> None:
        age = self._settings.ledger
        if age is None:
            return
        deleted = self._pruner().delete(self._now() - timedelta(seconds=age))
        if deleted.runs or deleted.events:
            self._said(f"deleted {deleted.runs} runs and {deleted.events} events from the ledger, which are old")

    def _compact(self) -> None:
        pages = self._pruner().compact()
        if pages:
            self._said(f"gave {pages} pages of the ledger back")

    def _backup_is_due(self) -> bool:
        every, last = self._settings.backup_every, self._ledger.file.backup
        if every is None:
            return False
        # from the future, where the clock was ahead: not an age to wait for
        return last is None or not 0 <= (self._now() - last.at).total_seconds() < every

    def _back_up(self) -> None:
        target = self._ledger.file.directory / BACKUP
        make_directory(target.parent)
        try:
            backup = back_up(self._ledger.file.directory, target, replace=True, between=_copy_pause)
        except DamagedCopy as error:
            mark_damaged(self._ledger.file.directory, str(error))
            raise
        trio.from_thread.run_sync(self._backed_up, backup)

    def _backed_up(self, backup: Backup) -> None:
        self._ledger.file.backed_up(backup)
        self._say(f"backed up the ledger, {backup.size_bytes} bytes")

    def _pruner(self) -> Pruner:
        return Pruner(self._ledger.file.directory, self._errand, _pause)

    def _errand(self, work: Callable[[sqlite3.Connection], T]) -> T:
        future = self._ledger.when_idle(work)
        try:
            while not wait([future], 0.1).done:
                trio.from_thread.check_cancelled()
        except BaseException:
            future.cancel()
            raise
        return future.result()


def _pause() -> None:
    trio.from_thread.check_cancelled()
    time.sleep(_PAUSE)


def _copy_pause() -> None:
    trio.from_thread.check_cancelled()
    time.sleep(_COPY_PAUSE)
