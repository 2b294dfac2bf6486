"""The jobs that keep the state directory within bounds, for a thread: old output and rows deleted, pages given back, backups."""

import sqlite3
import time
from collections.abc import Callable, Collection
from concurrent.futures import wait
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

import trio
from msgspec.structs import replace

from ..core.ids import run_id
from ..host.clock import wall_clock
from ..host.headroom import DiskReserve
from ..host.private_files import make_directory
from ..ledger import Ledger, back_up
from ..ledger.backup import BACKUP, Backup
from ..ledger.database import FILE, LedgerDamaged, open_reader
from ..ledger.opening import check_whole, suspect
from ..ledger.reader import Reader
from ..ledger.retention import Pruner
from ..output import OutputFiles
from ..output.deletion import remove, remove_old
from ..protocol.messages import Prune, Pruned
from ..protocol.types import RunId

T = TypeVar("T")

_PAUSE = 0.02
"""Seconds between two small steps of the ledger's writer: 50 000 runs with their events take about a minute."""

_COPY_PAUSE = 0.004
"""Seconds between two steps of a backup, which then copies 40 MB a second."""


@dataclass(frozen=True, slots=True)
class MaintenanceJobs:
    """`live` returns the runs whose output must stay. `say` is told what was done, a line each, and `damaged` what is wrong with
    the ledger. Jobs raise `OSError`, `sqlite3.Error`, `LedgerError`, and `CancelledError` if the ledger is closed meanwhile."""

    ledger: Ledger
    output: OutputFiles
    live: Callable[[], Collection[RunId]]
    say: Callable[[str], object]
    damaged: Callable[[str], object]
    now: Callable[[], datetime] = wall_clock

    def keep_room(self) -> None:
        """Keep some room of the disk for a start when it is full."""
        DiskReserve(self.ledger.file.directory).fill()

    def check(self) -> None:
        """Read the ledger to its last page, which a start does not wait for."""
        wrong = check_whole(self.ledger.file.directory, trio.from_thread.check_cancelled)
        if wrong is not None:
            self._suspect(wrong)

    def _suspect(self, wrong: str) -> None:
        directory = self.ledger.file.directory
        suspect(directory, wrong)
        text = f"the ledger {directory / FILE} is damaged: {wrong}; the next start sets it aside and begins another"
        trio.from_thread.run_sync(self.damaged, text)

    def delete_output(self, age: float | None) -> None:
        if age is None:
            return
        live = trio.from_thread.run_sync(lambda: frozenset(self.live()))
        cutoff = self.now().timestamp() - age
        with closing(Reader(open_reader(self.ledger.file.directory))) as reader:
            count = remove_old(self.output.directory, cutoff, ends=reader.ends, live=live, between=_pause)
        if count:
            self._tell(f"deleted {count} output files of runs that ended long ago")

    def delete_rows(self, age: float | None) -> None:
        if age is None:
            return
        deleted = self._pruner().delete(self.now() - timedelta(seconds=age))
        if deleted.runs or deleted.events:
            self._tell(f"deleted {deleted.runs} runs and {deleted.events} events from the ledger, which are old")

    def compact(self) -> None:
        pages = self._pruner().compact()
        if pages:
            self._tell(f"gave {pages} pages of the ledger back")

    def backup_is_due(self, every: float | None) -> bool:
        last = self.ledger.file.backup
        if every is None:
            return False
        # from the future, where the clock was ahead: not an age to wait for
        return last is None or not 0 <= (self.now() - last.at).total_seconds() < every

    def back_up(self) -> None:
        target = self.ledger.file.directory / BACKUP
        make_directory(target.parent)
        try:
            backup = back_up(self.ledger.file.directory, target, replace=True, between=_copy_pause)
        except LedgerDamaged as error:
            self._suspect(str(error))
            raise
        trio.from_thread.run_sync(self._backed_up, backup)

    def _backed_up(self, backup: Backup) -> None:
        self.ledger.file.backed_up(backup)
        self.say(f"backed up the ledger, {backup.size_bytes} bytes")

    def prune(self, wanted: Prune, uid: int | None, forget: Callable[[Collection[RunId]], object]) -> Pruned:
        pruner, dry = Pruner(self.ledger.file.directory, self._errand, _copy_pause), wanted.dry_run
        cutoff = self.now() - timedelta(seconds=wanted.older_than or 0)
        live = trio.from_thread.run_sync(lambda: frozenset(self.live()))
        trees = [
            tree for tree in pruner.choose(cutoff, keep=wanted.keep, uid=uid) if live.isdisjoint(run_id(run.number) for run in tree)
        ]
        runs = [run_id(run.number) for tree in trees for run in tree]
        # output first: a row without output can be pruned again, output without its row would stay
        files, freed = remove(self.output.directory, runs, dry=dry, between=_copy_pause)
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
        before = self.ledger.records.size_bytes
        pruner.compact()
        shrunk = max(0, before - self.ledger.records.size_bytes)
        self._tell(f"pruned {deleted.runs} runs and {deleted.events} events, and {files} output files of {freed} bytes")
        return replace(pruned, ledger_bytes=shrunk)

    def _tell(self, line: str) -> None:
        trio.from_thread.run_sync(self.say, line)

    def _pruner(self) -> Pruner:
        return Pruner(self.ledger.file.directory, self._errand, _pause)

    def _errand(self, work: Callable[[sqlite3.Connection], T]) -> T:
        future = self.ledger.when_idle(work)
        try:
            while not wait([future], 0.1).done:
                trio.from_thread.check_cancelled()
        except BaseException:
            future.cancel()
            raise
        return future.result()


def _pause(seconds: float = _PAUSE) -> None:
    trio.from_thread.check_cancelled()
    time.sleep(seconds)


_copy_pause = partial(_pause, _COPY_PAUSE)
