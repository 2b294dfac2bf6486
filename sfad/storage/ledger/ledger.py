"""The ledger as the trio thread sees it: writes are queued, and a listener is told what became of
them."""

import math
import sqlite3
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from sqlite3 import Connection
from typing import Protocol, TypeVar, assert_never

import msgspec
import trio
from msgspec import Struct

from ...core.state.run import run_number
from ...host.probe import current_boot
from ...host.tasks import LoopRounds
from ...protocol.types import CallInfo, Event, RunId, RunInfo
from .backup import Backup, PutBack, keep_apart, newest_backup
from .database import LedgerError, open_reader
from .opening import open_writer
from .queries import Reader
from .records import Records
from .rows import (
    Op,
    RunExtra,
    Statement,
    call_op,
    charge_op,
    event_op,
    insert_op,
    plan_op,
    set_charge,
    state_op,
    upserts,
)
from .writer import LINGER, Checkpointed, Report, Transactions, Writer, WriteResult

# ---- The ledger between its opening and its first write: what was found in it, and how it is
# brought up to date

LOCK_WAIT = 15.0
"""Seconds that opening waits for another program's lock if it needs one: to migrate, or because the
lock keeps readers out."""

_LAST_RUN, _LAST_EVENT = ("runs", "number"), ("events", "seq")


class LedgerFile(Struct):
    directory: Path
    backup: Backup | None

    def backed_up(self, backup: Backup) -> None:
        self.backup = backup


class OpenedLedger:
    """The ledger in one directory, which is made if it is missing. `Ledger` takes it over; it is
    not for use after that."""

    def __init__(
        self,
        directory: Path,
        *,
        floor_number: int = 0,
        busy_timeout: float = 2.0,
        lock_wait: float = LOCK_WAIT,
    ) -> None:
        """Open the ledger. Raises `LedgerError`.

        `floor_number`: no run gets this number or a lower one, whatever the file says. It is the
        highest number of an output file, so that a new ledger does not give an id again.
        `busy_timeout`: seconds that a transaction waits for another program's lock. `lock_wait`:
        seconds that opening waits for it."""
        self.notes: list[str] = []
        """What opening had to do, a line each, for the log and an event."""
        self.boot = current_boot()
        # no client waits for an answer yet, and a daemon that does not get the ledger leaves all
        # live runs alone
        found = open_writer(directory, self.notes, busy_timeout=lock_wait)
        self.connection = found.connection
        # until the live runs are brought up to date here they have no supervisor: what has to wait
        # longer is written later
        self.connection.execute(f"PRAGMA busy_timeout = {int(1000 * busy_timeout)}")
        self.is_new = found.is_new
        """There was no ledger, or it was set aside: live runs are not in it."""
        self.damaged = found.damaged
        """Those of `left` whose rows are damaged. `upsert` writes such a row again as a whole."""
        self.left = found.left
        """Runs that the file showed as live when it was opened, oldest first: an earlier daemon
        left them."""
        try:
            backup, highest = self._backup(directory)
            reader = Reader(open_reader(directory))
            self.next_number = 1 + max(reader.last(*_LAST_RUN), floor_number, highest)
            """The number that the next run may have: above the file's."""
            self.last_event = reader.last(*_LAST_EVENT)
        except sqlite3.Error as error:
            self.connection.close()
            raise LedgerError(
                f"the ledger in {directory} cannot be read: {error}; "
                "move it away to begin a new one"
            ) from error
        self.file = LedgerFile(directory, backup)
        self.records = Records(reader)

    def _backup(self, directory: Path) -> tuple[Backup | None, int]:
        """Return the newest backup. Keep that of a ledger that is gone apart, and return the
        highest run number in it instead."""
        found = newest_backup(directory)
        if not self.is_new or found is None:
            return found, 0
        number = 0
        with suppress(sqlite3.Error), closing(open_reader(found.path.parent)) as connection:
            number = Reader(connection).last(*_LAST_RUN)
        try:
            self.notes.append(keep_apart(found))
        except OSError as error:
            self.notes.append(
                f"the backup {found.path} cannot be kept under another name: {error}; "
                "the next one replaces it"
            )
            return found, number
        return None, number

    def upsert(
        self, rows: Iterable[tuple[RunInfo, RunExtra]], calls: Iterable[CallInfo] = ()
    ) -> None:
        """Insert these runs, or bring their rows up to date, and insert these calls unless they are
        there. Committed on return.

        The pid of a run without `boot_id` in its extra is taken for one of this boot. Raises
        `sqlite3.Error` if the disk refuses; then nothing was changed."""
        ops = [insert_op("admit", info, extra, self.boot) for info, extra in rows]
        damaged = [
            ("DELETE FROM runs WHERE number = ?", op.row[:1])
            for op in ops
            if op.run_id in self.damaged
        ]
        self._execute([*damaged, *upserts(ops, calls)])
        self.next_number = max([self.next_number, *(op.row[0] + 1 for op in ops)])

    def set_charged(self, scope: str, name: str, period_start: datetime, usd: float) -> None:
        """Set what a user's or a team's budget was charged in the period that began then: for a
        ledger that was lost.

        Committed on return. Raises `sqlite3.Error` if the disk refuses."""
        self._execute([set_charge(charge_op(scope, name, period_start, usd))])

    def _execute(self, statements: Iterable[Statement]) -> None:
        # not IMMEDIATE: without a statement this needs no lock, and waits for none
        self.connection.execute("BEGIN")
        try:
            for sql, parameters in statements:
                self.connection.execute(sql, parameters)
            self.connection.execute("COMMIT")
        finally:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")

    def close(self) -> None:
        # the reader first: the last connection to close checkpoints, and a read-only one cannot
        self.records.close()
        self.connection.close()


# ---- The ledger as the trio thread sees it: writes are queued, and a listener is told what became
# of them

T = TypeVar("T")

CallKey = tuple[RunId, float, int]
"""Run, time in seconds since the epoch, and number of a call."""


class LedgerListener(Protocol):
    """Is told, in the trio thread, what became of writes."""

    def committed(self, runs: list[RunId], /) -> None:
        """These admissions are in the file."""

    def commit_failed(self, runs: list[RunId], error: str, /) -> None:
        """These admissions will never be in the file."""

    def recorded(self, runs: list[RunId], /) -> None:
        """These runs were recorded with a terminal status, and are in the file now. While writes
        fail, this waits."""

    def calls_recorded(self, calls: list[CallKey], /) -> None:
        """The rows of these calls are in the file, or were given up."""

    def trouble(self, error: str | None, lost: int, /) -> None:
        """Writes begin to fail, or work again (`None`), or `lost` operations other than admissions
        were given up."""

    def was_put_back(self, note: str, /) -> None:
        """Another process had removed or replaced the file, and it was written again."""

    def took(self, seconds: float, /) -> None:
        """A transaction was committed, and has taken so long."""

    def checkpointed(self) -> None:
        """Everything that `recorded` told of is in the database itself, and not in its log
        alone."""


class Ledger:
    """Takes writes. `records` reads, `file` looks after the file."""

    def __init__(
        self,
        opened: OpenedLedger,
        rounds: LoopRounds,
        state_dir_lost: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Take over an opened ledger. `state_dir_lost` is called in another thread; it returns why
        the directory is elsewhere now with the ledger in it, or `None`."""
        self.records = opened.records
        self.file = opened.file
        self.trouble: str | None = None
        """Why writes fail; `None` while they work."""
        self.backlog = 0
        """Operations that wait in memory for the disk."""
        self.next_number = opened.next_number
        """The number that the next run may have: above the file's and above each queued run's."""
        self.last_event = opened.last_event
        self._boot = opened.boot
        self._listener: LedgerListener | None = None
        self._told_of_events: Callable[[int], None] | None = None
        self._untold: list[Report] = []
        self._waking = False
        self._urgent: trio.Event | None = None
        """Set when `serve` is to write at once."""
        self._lingering = trio.CancelScope()
        self._wakes = math.inf
        """Its deadline: when `serve` looks."""
        self._due = math.inf
        """When the rest is to be written, at the latest."""
        self._before: list[Callable[[], object]] = []
        self._gathering = False
        """Whether a turn is under way."""
        self._heard = 0
        """How many reports of the thread were heard."""
        self._rounds = rounds
        self._token = trio.lowlevel.current_trio_token()
        self._transactions = Transactions(opened.connection, opened.file.directory, state_dir_lost)
        self._writer = Writer(self._transactions, self._report)

    def report_to(self, listener: LedgerListener) -> None:
        """Tell the listener what became of writes until now, and of those from now on."""
        self._listener = listener
        untold, self._untold = self._untold, []
        for report in untold:
            self._told(report)

    def tell_of_events(self, told: Callable[[int], None] | None) -> None:
        """From now on, tell the highest number of an event that is on record, or that cannot be
        waited for while writes fail."""
        self._told_of_events = told

    def admit(self, info: RunInfo, extra: RunExtra) -> None:
        """Queue a run's row. The listener is told whether it was committed or failed."""
        self._put(insert_op("admit", info, extra, self._boot))
        self.next_number = max(self.next_number, run_number(info.id) + 1)

    def record(self, info: RunInfo, extra: RunExtra) -> None:
        """Queue a run's present state. It waits in memory until the disk takes it."""
        self._put_seen(state_op(info, extra, self._boot), info, extra)

    def upsert(self, info: RunInfo, extra: RunExtra) -> None:
        """Queue what `OpenedLedger.upsert` could not do for this run. It waits in memory until the
        disk takes it."""
        self._put_seen(insert_op("upsert", info, extra, self._boot), info, extra)

    def refuse(self, info: RunInfo, extra: RunExtra) -> None:
        """Queue a refused run's row. No client waits for it. It waits in memory until the disk
        takes it."""
        self._put_seen(insert_op("refuse", info, extra, self._boot), info, extra)
        self.next_number = max(self.next_number, run_number(info.id) + 1)

    def count_refusal(self, run_id: RunId) -> None:
        self._put(Op("count", run_id, (run_number(run_id),)))

    def record_call(self, call: CallInfo) -> None:
        """Queue a call's row. A second one of the same call changes nothing but its `more`. It
        waits in memory until the disk takes it."""
        self._put(call_op(call))

    def charge(self, scope: str, name: str, period_start: datetime, usd: float) -> None:
        """Queue an addition to what a user's or a team's budget was charged in the period that
        began then."""
        self._put(charge_op(scope, name, period_start, usd))

    def record_plan(self, provider: str, account: str, heard_at: float, known: str) -> None:
        """Queue what is known of windows. It waits in memory until the disk takes it."""
        self._put(plan_op(provider, account, heard_at, known))

    def skip_events(self, number: int) -> None:
        """Give the next event a higher number than this one."""
        self.last_event = max(self.last_event, number)

    def record_event(self, event: Event, time: datetime | None = None) -> Event:
        """Queue an event, with this time if one is given, and return it with its number. Raises
        `ValueError` for one without a time."""
        numbered = msgspec.structs.replace(
            event, time=event.time if time is None else time, seq=self.last_event + 1
        )
        op = event_op(numbered)
        self.last_event += 1
        if self._urgent is not None and (self._waking or self._due < math.inf):
            self._writer.add(op)  # it goes with what is to be written anyway
        else:
            self._put(op)
        return numbered

    def before_next(self, call: Callable[[], object]) -> None:
        """Call `call` before the next transaction, in the next round. It must not raise. While
        nothing serves, it is called at once."""
        if self._urgent is None:
            call()
            return
        self._before.append(call)
        # not by `_hurry`, which may have left it to the thread before this served
        self._waking = True
        if not self._gathering:
            self._urgent.set()

    def _prepare(self) -> None:
        calls, self._before = self._before, []
        for call in calls:
            call()

    def _put(self, op: Op) -> None:
        served = self._urgent
        if op.urgent or served is not None:
            self._writer.add(op)
        else:
            self._writer.put(op)
        if op.urgent:
            if not self._waking:
                self._hurry(served)
        elif served is not None and self._due == math.inf:
            now = trio.current_time()
            self._due = now + LINGER
            # to set it costs ten calls, and to let it come sixty
            if not now + LINGER / 2 <= self._wakes <= self._due:
                self._wakes = self._lingering.deadline = self._due

    def _hurry(self, served: trio.Event | None) -> None:
        # once for everything that the trio thread does in one go: the requests of a burst share a
        # transaction, and the two threads do not take the interpreter lock from each other between
        # them
        self._waking = True
        if served is None:
            self._rounds.at_end(self._wake)
        elif not self._gathering:
            served.set()

    def _put_seen(self, op: Op, info: RunInfo, extra: RunExtra) -> None:
        self._put(op)
        self.records.remember(op, info, extra)

    def _wake(self) -> None:
        self._waking = False
        self._writer.wake()

    async def serve(self) -> None:
        """Until cancelled, write in this thread where that waits for nothing: what is urgent, once
        for everything that the thread does in one go, and the rest after `LINGER`. A thread that is
        woken, and wakes this one, doubles the time of a commit."""
        self._urgent = trio.Event()
        try:
            while True:
                # one for many waits: it costs more than a wait
                self._wakes = self._due
                with trio.CancelScope(deadline=self._due) as self._lingering:
                    while True:
                        await self._urgent.wait()
                        self._write_now()
                if self._due <= trio.current_time():
                    self._write_now()
        finally:
            self._urgent = None
            self._prepare()
            self._wake()

    def __enter__(self) -> None:
        """Begin a turn, in which much may be asked: what is urgent of it is written at its end, as
        `serve` would in the next round. To wake a task for that costs a tenth of a run."""
        self._gathering = self._urgent is not None

    def __exit__(self, *_error: object) -> None:
        if not self._gathering:
            return
        try:
            if self._waking:
                self._write_now()
        finally:
            self._gathering = False
            if self._waking and self._urgent is not None:
                self._urgent.set()  # it was not written, or what came of it is urgent, too

    def _write_now(self) -> None:
        if self._before:
            self._prepare()
        if self._urgent is None or self._urgent.is_set():
            self._urgent = trio.Event()
        self._waking, self._due = False, math.inf
        result = self._writer.write_here(self._heard)
        if result is None:
            self._writer.wake()
        else:
            self._told(result)

    @property
    def idle(self) -> bool:
        """Whether the thread that writes waits for work. It reports what it has written a moment
        before that."""
        return self._writer.idle

    async def flush(self) -> bool:
        """Return once everything queued before has been tried: true if all of it is in the file."""
        self._prepare()
        outcome: list[bool] = []
        done = trio.Event()

        def wake(clean: bool) -> None:
            outcome.append(clean)
            done.set()

        self._writer.flush(lambda clean: self._token.run_sync_soon(wake, clean))
        await done.wait()
        return outcome[0]

    def flush_now(self, timeout: float = 1.0) -> bool:
        """`flush` without letting another task run meanwhile. False after `timeout` seconds as
        well."""
        self._prepare()
        outcome: SimpleQueue[bool] = SimpleQueue()
        self._writer.flush(outcome.put)
        try:
            return outcome.get(timeout=timeout)
        except Empty:
            return False

    def when_idle(self, work: Callable[[Connection], T]) -> Future[T]:
        """Call `work` with the connection that writes, in the writer's thread; see
        `Writer.when_idle`."""
        return self._writer.when_idle(work)

    def look_after(self) -> None:
        """Have the file written again soon if another process has removed or replaced it. A write
        looks for itself."""
        if self._transactions.look():
            self._writer.flush(lambda _clean: None)

    def close(self, timeout: float = 5.0) -> int:
        """Write what is queued and close the file. Return how many operations could not be written
        within `timeout` seconds."""
        # the reader first: the last connection to close checkpoints, and a read-only one cannot
        self.records.close()
        return self._writer.close(timeout)

    def _report(self, report: Report) -> None:
        # when trio is over, no task waits for a report; `close` returns how many operations stayed
        # unwritten
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._hear, report)

    def _hear(self, report: Report) -> None:
        self._heard += 1
        self._told(report)

    def _told(self, report: Report) -> None:
        if self._listener is None:
            self._untold.append(report)
            return
        match report:
            case WriteResult():
                self._written(report, self._listener)
            case PutBack():
                self.records.read_from(Reader(report.reader))
                self._listener.was_put_back(report.note)
            case Checkpointed():
                self._listener.checkpointed()
            case _:
                assert_never(report)

    def _written(self, result: WriteResult, listener: LedgerListener) -> None:
        self.backlog = result.backlog
        if result.seconds is not None:
            listener.took(result.seconds)
        changed = (result.error is None) != (self.trouble is None)
        self.trouble = result.error
        if changed or result.lost:
            listener.trouble(result.error, len(result.lost))
        admitted, ended, calls, rows, newest = _sorted_out(result)
        if rows:
            self.records.forget(rows)
        if self._told_of_events is not None:
            self._told_of_events(self.last_event if result.error is not None else newest)
        if admitted:
            listener.committed(admitted)
        if ended:
            listener.recorded(ended)
        if calls:
            listener.calls_recorded(calls)
        if result.failed:
            failed = [op.run_id for op in result.failed if op.run_id]
            listener.commit_failed(failed, result.error or "the ledger cannot be written")


def _sorted_out(
    result: WriteResult,
) -> tuple[list[RunId], list[RunId], list[CallKey], list[Op], int]:
    """Return whose admissions and whose ends are in the file, or were given up, which calls and
    other rows, and the newest event there."""
    admitted, ended, calls, newest = list[RunId](), list[RunId](), list[CallKey](), 0
    # a state is lost if SQLite rejects its content; the file would show that run as live
    rows = [op for op in result.lost if op.kind != "state"] if result.lost else []
    for op in result.committed:
        if op.kind == "event":
            newest = op.row[0]
        elif op.kind == "admit" and op.run_id:
            admitted.append(op.run_id)
        else:
            rows.append(op)
    for op in (*result.committed, *result.lost):
        if op.run_id and op.urgent and op.kind in ("state", "upsert"):
            ended.append(op.run_id)
        elif op.run_id and op.kind == "call":
            calls.append((op.run_id, *op.row[1:3]))
    return admitted, ended, calls, rows, newest
