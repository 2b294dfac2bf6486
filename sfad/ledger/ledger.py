"""The ledger as the trio thread sees it: writes are queued and answered by callback. The reads are in `records`."""

import sqlite3
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeVar, assert_never

import msgspec
import trio

from ..core.ids import run_number
from ..host.probe import current_boot
from ..protocol.types import Event, RunId, RunInfo
from .backup import Backup, PutBack, keep_apart, newest_backup
from .database import LedgerError, open_reader
from .opening import check, mark_damaged, open_writer
from .reader import Reader
from .records import Records
from .rows import Op, RunExtra, Statement, charge_op, event_op, insert_op, save_op, set_charge, upserts
from .writer import Checkpointed, Report, Writer, WriteResult

PATIENCE = 15.0
"""Seconds that opening waits for another program's lock if it needs one: to migrate, or because the lock keeps readers out."""

_LAST_RUN, _LAST_EVENT = ("runs", "number"), ("events", "seq")


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Started:
    writer: Writer
    token: trio.lowlevel.TrioToken
    on_committed: Callable[[list[RunId]], object]
    on_failed: Callable[[list[RunId], str], object]
    on_ended: Callable[[list[RunId]], object]
    on_trouble: Callable[[str | None, int], object]
    on_put_back: Callable[[str], object]
    on_checkpointed: Callable[[], object]


class Ledger(Records):
    """The ledger in one directory, which is made if it is missing.

    After opening, it is read and brought up to date (`left`, `upsert`, `set_charged`). From `start` on it takes writes.
    """

    def __init__(
        self,
        directory: Path,
        *,
        floor_number: int = 0,
        busy_timeout: float = 2.0,
        patience: float = PATIENCE,
        handed_over: bool = False,
    ) -> None:
        """Open the ledger. Raises `LedgerError`.

        `floor_number`: no run gets this number or a lower one, whatever the file says. It is the highest number of an output
        file, so that a new ledger does not give an id again. `busy_timeout`: seconds that a transaction waits for another
        program's lock. `patience`: seconds that opening waits for it. `handed_over`: this process flushed the file before it
        re-executed itself, so there is nothing to check.
        """
        self.directory = directory
        self.notes: list[str] = []
        """What opening had to do, a line each, for the log and an event."""
        self.trouble: str | None = None
        self.held = 0
        """Operations that wait in memory for the disk."""
        self._boot = current_boot()
        # no client waits for an answer yet, and a daemon that does not get the ledger leaves all live runs alone
        opened = open_writer(directory, self.notes, busy_timeout=patience, handed_over=handed_over)
        self._connection = opened.connection
        # until the live runs are brought up to date here they have no supervisor: what has to wait longer is written later
        self._connection.execute(f"PRAGMA busy_timeout = {int(1000 * busy_timeout)}")
        self.is_new = opened.is_new
        """There was no ledger, or it was set aside: live runs are not in it."""
        self.left = opened.left
        """Runs that the file showed as live when it was opened, oldest first: an earlier daemon left them."""
        self.check_due = opened.unchecked
        """`check_rest` is due: the file is too large to check while every client waits."""
        self.backup: Backup | None = None
        try:
            floor_number = max(floor_number, self._find_backup())
            reader = Reader(open_reader(directory))
            self._last_number = max(reader.last(*_LAST_RUN), floor_number)
            self._seq = reader.last(*_LAST_EVENT)
        except sqlite3.Error as error:
            self._connection.close()
            raise LedgerError(f"the ledger in {directory} cannot be read: {error}; move it away to begin a new one") from error
        super().__init__(reader)
        self._started: _Started | None = None
        self._waking = False

    def _find_backup(self) -> int:
        """Find the newest backup. If it is of a ledger that is gone, keep it apart and return the highest run number in it."""
        self.backup = found = newest_backup(self.directory)
        if not self.is_new or found is None:
            return 0
        number = 0
        with suppress(sqlite3.Error), closing(open_reader(found.path.parent)) as connection:
            number = Reader(connection).last(*_LAST_RUN)
        try:
            self.notes.append(keep_apart(found))
            self.backup = None
        except OSError as error:
            self.notes.append(f"the backup {found.path} cannot be kept under another name: {error}; the next one replaces it")
        return number

    # ---- before the start

    def upsert(self, rows: Iterable[tuple[RunInfo, RunExtra]]) -> None:
        """Insert these runs, or bring their rows up to date. Committed on return. Only before `start`.

        The pid of a run without `boot_id` in its extra is taken for one of this boot. Raises `sqlite3.Error` if the disk
        refuses; then nothing was changed."""
        ops = [insert_op("admit", info, extra, self._boot) for info, extra in rows]
        self._execute(upserts(ops))
        self._last_number = max([self._last_number, *(op.row[0] for op in ops)])

    def set_charged(self, scope: str, name: str, period_start: datetime, usd: float) -> None:
        """Set what a user's or a team's budget was charged in the period that began then: for a ledger that was lost.

        Committed on return. Only before `start`. Raises `sqlite3.Error` if the disk refuses."""
        self._execute([set_charge(charge_op(scope, name, period_start, usd))])

    def _execute(self, statements: Iterable[Statement]) -> None:
        if self._started is not None:
            raise RuntimeError("upsert() and set_charged() are for the time before start(); save the runs instead")
        connection = self._connection
        connection.execute("BEGIN")  # not IMMEDIATE: without a statement this needs no lock, and waits for none
        try:
            for sql, parameters in statements:
                connection.execute(sql, parameters)
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def start(
        self,
        *,
        on_committed: Callable[[list[RunId]], object],
        on_failed: Callable[[list[RunId], str], object],
        on_ended: Callable[[list[RunId]], object] = lambda _ids: None,
        on_trouble: Callable[[str | None, int], object] = lambda _error, _lost: None,
        on_put_back: Callable[[str], object] = lambda _note: None,
        on_checkpointed: Callable[[], object] = lambda: None,
        lost: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Begin to take writes. The callbacks run in the trio thread.

        on_committed(ids), on_failed(ids, error)
            about admissions; each admission gets one of the two
        on_ended(ids)
            these runs were saved with a terminal status, and are in the file now. While writes fail, this waits
        on_trouble(error, lost)
            writes begin to fail, work again (`None`), or operations other than admissions were given up (`lost`, how many)
        on_put_back(note)
            another process had removed or replaced the file, and it was written again
        on_checkpointed()
            everything that `on_ended` reported is in the database itself, and not in its log alone
        lost()
            called in another thread; returns why the directory is elsewhere now with the ledger in it, or `None`
        """
        token = trio.lowlevel.current_trio_token()
        writer = Writer(self._connection, partial(self._report, token), self.directory, lost)
        self._started = _Started(writer, token, on_committed, on_failed, on_ended, on_trouble, on_put_back, on_checkpointed)

    # ---- writes

    @property
    def next_number(self) -> int:
        """The number that the next run may have: above the file's and above each queued run's."""
        return self._last_number + 1

    def admit(self, info: RunInfo, extra: RunExtra) -> None:
        """Queue a run's row. `on_committed` or `on_failed` answers."""
        self._put(insert_op("admit", info, extra, self._boot))
        self._last_number = max(self._last_number, run_number(info.id))

    def save(self, info: RunInfo, extra: RunExtra) -> None:
        """Queue a run's present state. Held in memory until the disk takes it."""
        self._put_seen(save_op(info, extra, self._boot), info, extra)

    def upsert_later(self, info: RunInfo, extra: RunExtra) -> None:
        """Queue what `upsert` could not do for this run. Held in memory until the disk takes it."""
        self._put_seen(insert_op("upsert", info, extra, self._boot), info, extra)

    def refuse(self, info: RunInfo, extra: RunExtra) -> None:
        """Queue a refused run's row. No client waits for it. Held in memory until the disk takes it."""
        self._put_seen(insert_op("refuse", info, extra, self._boot), info, extra)
        self._last_number = max(self._last_number, run_number(info.id))

    def count_refusal(self, run_id: RunId) -> None:
        self._put(Op("count", run_id, (run_number(run_id),)))

    def charge(self, scope: str, name: str, period_start: datetime, usd: float) -> None:
        """Queue an addition to what a user's or a team's budget was charged in the period that began then. Held until written."""
        self._put(charge_op(scope, name, period_start, usd))

    @property
    def last_event(self) -> int:
        return self._seq

    def skip_events(self, number: int) -> None:
        """Give the next event a higher number than this one."""
        self._seq = max(self._seq, number)

    def event(self, event: Event) -> Event:
        """Queue an event and return it with its number. Raises `ValueError` for one without a time."""
        numbered = msgspec.structs.replace(event, seq=self._seq + 1)
        op = event_op(numbered)
        self._seq += 1
        self._put(op)
        return numbered

    async def flush(self) -> bool:
        """Return once everything queued before has been tried: true if all of it is in the file."""
        outcome: list[bool] = []
        done = trio.Event()

        def wake(clean: bool) -> None:
            outcome.append(clean)
            done.set()

        started = self._running()
        started.writer.flush(lambda clean: started.token.run_sync_soon(wake, clean))
        await done.wait()
        return outcome[0]

    def flush_now(self, timeout: float = 1.0) -> bool:
        """`flush` without letting another task run meanwhile. False after `timeout` seconds as well."""
        outcome: SimpleQueue[bool] = SimpleQueue()
        self._running().writer.flush(outcome.put)
        try:
            return outcome.get(timeout=timeout)
        except Empty:
            return False

    def when_idle(self, work: Callable[[sqlite3.Connection], T]) -> Future[T]:
        """Call `work` with the connection that writes, in the writer's thread; see `Writer.when_idle`. Only after `start`."""
        return self._running().writer.when_idle(work)

    # ---- the file

    def look_after(self) -> None:
        """Have the file written again soon if another process has removed or replaced it. A write looks for itself."""
        writer = self._running().writer
        if writer.displaced:
            writer.flush(lambda _clean: None)

    def check_rest(self) -> str | None:
        """Run `opening.check`, and return what it found. In a thread."""
        found = check(self.directory)
        self.check_due = False
        return found

    def backed_up(self, backup: Backup) -> None:
        self.backup = backup

    def close(self, timeout: float = 5.0) -> int:
        """Write what is queued and close the file. Return how many operations could not be written within `timeout` seconds."""
        # the reader first: the last connection to close checkpoints, and a read-only one cannot
        self._reader.close()
        if self._started is not None:
            return self._started.writer.close(timeout)
        self._connection.close()
        return 0

    # ---- the writer

    def _running(self) -> _Started:
        if self._started is None:
            raise RuntimeError("the ledger takes writes after start()")
        return self._started

    def _put(self, op: Op) -> None:
        started = self._running()
        started.writer.put(op)
        if op.urgent and not self._waking:
            self._wake_soon(started)

    def _put_seen(self, op: Op, info: RunInfo, extra: RunExtra) -> None:
        self._put(op)
        self._remember(op, info, extra)

    def _wake_soon(self, started: _Started) -> None:
        # once for everything that the trio thread does in one go: the requests of a burst share a transaction, and the two
        # threads do not take the interpreter lock from each other between them
        self._waking = True
        try:
            started.token.run_sync_soon(self._wake)
        except trio.RunFinishedError:
            self._wake()

    def _wake(self) -> None:
        self._waking = False
        self._running().writer.wake()

    def _report(self, token: trio.lowlevel.TrioToken, report: Report) -> None:
        if isinstance(report, WriteResult) and report.damaged:
            mark_damaged(self.directory, report.error or "")
        # when trio is over, no task waits for a report; `close` returns how many operations stayed unwritten
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(self._told, report)

    def _told(self, report: Report) -> None:
        match report:
            case WriteResult():
                self._settle(report, self._running())
            case PutBack():
                self._read_from(Reader(report.reader))
                self._running().on_put_back(report.note)
            case Checkpointed():
                self._running().on_checkpointed()
            case _:
                assert_never(report)

    def _settle(self, outcome: WriteResult, tell: _Started) -> None:
        self._forget([*outcome.committed, *outcome.lost])
        self.held = outcome.held
        changed = (outcome.error is None) != (self.trouble is None)
        self.trouble = outcome.error
        if changed or outcome.lost:
            tell.on_trouble(outcome.error, len(outcome.lost))
        if committed := [op.run_id for op in outcome.committed if op.kind == "admit" and op.run_id]:
            tell.on_committed(committed)
        ends = (op for op in (*outcome.committed, *outcome.lost) if op.urgent and op.kind in ("save", "upsert"))
        if ended := [op.run_id for op in ends if op.run_id]:
            tell.on_ended(ended)
        if failed := [op.run_id for op in outcome.failed if op.run_id]:
            tell.on_failed(failed, outcome.error or "the ledger cannot be written")
