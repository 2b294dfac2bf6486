"""The thread that owns the write connection.

Operations come through an inbox; whatever queued up during one commit goes into the next, so under load there is one
transaction for many runs. Admissions and ends do not wait for company; everything else does, for `LINGER`. A failed
transaction is told apart by what was in it: admissions fail at once and are never written later (their client has been
told no), everything else is held, in order, and tried again with the next admission or after a back-off.

What can wait, as deleting old rows, comes as errands: one at a time, when nothing else does. On a connection of its own it
would compete for the one write lock, and who finds that taken sleeps, a millisecond and more at a time.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from ..faults import effect
from .errors import LedgerError, is_full
from .inbox import Inbox
from .opening import CHECKPOINT_ROWS, damaged, explained, logged_rows, open_reader
from .putback import PutBack, identity, put_back
from .rows import EVENT_COLUMNS, RUN_COLUMNS, SAVE_COLUMNS, Op

MAX_BATCH = 1024
"""Operations in one transaction: bounds how long an admission at the end of a burst waits for its commit."""

MAX_HELD = 50_000
"""Events and refusals held while the disk refuses them, some 50 MB. Ends of runs come on top without a bound of their own:
one a run, and while admissions fail there are only as many as were live when the trouble began."""

_RETRY_FIRST, _RETRY_LAST = 0.1, 5.0
"""Seconds between tries to write what is held."""

_CHECKPOINT_OVERDUE = 16 * CHECKPOINT_ROWS

_QUIET = 0.05
"""Seconds without a write before a checkpoint that is due: its fsync takes 10 ms and more, and an admission that comes
meanwhile has to wait for it."""

_ERRAND_OVERDUE = 1.0
"""Seconds that an errand waits for a moment when nothing is queued; under load that never ends it is done all the same."""

_OPS_OWN_FAULT = (
    sqlite3.IntegrityError,
    sqlite3.ProgrammingError,
    sqlite3.InterfaceError,
    sqlite3.DataError,
    ValueError,
    OverflowError,
)
"""Errors that would come again for the same row on a healthy disk, so that holding it would block all others."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a transaction, as the thread reports it."""

    committed: Sequence[Op] = ()
    failed: Sequence[Op] = ()
    """Admissions that will never be written."""
    lost: Sequence[Op] = ()
    """Other operations that will never be written: over the bound, or refused by SQLite for what they contain."""
    error: str | None = None
    damaged: bool = False
    """The file is: it does not help to try again."""
    held: int = 0
    """Operations that wait for the disk."""


class Checkpointed:
    """Whatever was committed until now is in the database itself: damage to the log cannot lose it."""


Report = Outcome | PutBack | Checkpointed


@dataclass(slots=True)
class Backlog:
    """What could not be written yet. Of several saves of a run only the newest matters; records keep their order."""

    saves: dict[str | None, Op] = field(default_factory=dict)
    records: deque[Op] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self.saves) + len(self.records)

    def keep(self, ops: Sequence[Op]) -> list[Op]:
        """Adds; returns what had to go because there were too many."""
        for op in ops:
            if op.kind == "save":
                self.saves[op.run_id] = op
            else:
                self.records.append(op)
        return [self.records.popleft() for _ in range(len(self.records) - MAX_HELD)]

    def take(self) -> list[Op]:
        """Everything; nothing is held afterwards. Records come first, since a save may name a refusal among them."""
        ops = [*self.records, *self.saves.values()]
        self.saves.clear()
        self.records.clear()
        return ops


@dataclass(frozen=True, slots=True)
class _Flush:
    done: Callable[[bool], None]


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Errand(Generic[_T]):
    """Work on the write connection that nobody waits for but the one who ordered it."""

    work: Callable[[sqlite3.Connection], _T]
    done: Future[_T]
    since: float

    def run(self, connection: sqlite3.Connection) -> None:
        """Does it. What goes wrong is for the one who ordered it, who also gets to hear of a bug."""
        if not self.done.set_running_or_notify_cancel():
            return
        try:
            self.done.set_result(self.work(connection))
        except Exception as error:  # noqa: BLE001
            self.done.set_exception(error)
        finally:
            _undo(connection)


_Item = Op | _Flush | _Errand[Any] | None


class Writer:
    """Starts the thread. `report` is called in it, after every transaction."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        report: Callable[[Report], None],
        directory: Path,
        lost: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._connection = connection
        self._lost = lost
        self._directory = directory
        self._identity = identity(directory)
        self._guard = open_reader(directory)
        """Keeps the write connection from being the last one of its file when that has lost its name: SQLite would then delete the
        log by name, which is that of another file by now."""
        self._guard.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        self._report = report
        self._inbox: Inbox[_Item] = Inbox()
        self._held = Backlog()
        self._delay = 0.0
        self._next_try = 0.0
        # a daemon that lives for less than `CHECKPOINT_ROWS` has to bound the log as well, or it grows from one that is killed
        # to the next until the disk is full of it
        self._since_checkpoint = logged_rows(directory)
        self._errands: deque[_Errand[Any]] = deque()
        self._ended = threading.Lock()
        """Backlog when nothing more is taken: no errand is put after the last look at them."""
        self._over = False
        # daemon: a file system that hangs for ever must not keep the process from exiting
        self._thread = threading.Thread(target=self._run, name="sfad-ledger", daemon=True)
        self._thread.start()

    def put(self, op: Op) -> None:
        """Queues a write. Never waits."""
        self._inbox.put(op, urgent=op.urgent)

    def wake(self) -> None:
        """What is urgent among what was put waits for no more company."""
        self._inbox.wake()

    def flush(self, done: Callable[[bool], None]) -> None:
        """Calls `done` in the thread once everything queued before has been tried; with whether nothing is held."""
        self._inbox.put(_Flush(done), urgent=True)
        self._inbox.wake()

    def when_idle(self, work: Callable[[sqlite3.Connection], _T]) -> Future[_T]:
        """Calls `work` in the thread, when nothing else is queued, or after a second. What is written meanwhile waits
        for it: a few milliseconds are its measure. A transaction that it leaves open is undone. From any thread.

        The future is cancelled by closing."""
        errand = _Errand(work, Future(), time.monotonic())
        with self._ended:
            if self._over:
                errand.done.cancel()
            else:
                self._inbox.put(errand, urgent=False)
        return errand.done

    @property
    def displaced(self) -> bool:
        """Whether another process has removed or replaced the file. From any thread.

        Not so if the whole directory is elsewhere: the open file went along, and nothing at its path is ours to write to."""
        return identity(self._directory) != self._identity and self._lost() is None

    def close(self, timeout: float) -> int:
        """Writes what is queued and ends the thread. Returns how many operations stay unwritten; after `timeout` seconds
        the thread is left to itself."""
        self._inbox.put(None, urgent=True)
        self._inbox.wake()
        self._thread.join(timeout)
        return len(self._held) + len(self._inbox)

    def _run(self) -> None:
        if self._since_checkpoint >= CHECKPOINT_ROWS:
            self._checkpoint()  # before the first write, which then begins the log anew: this life may be as short as the last
        more = True
        while more:
            items = self._inbox.take(self._patience())
            more = None not in items
            self._handle(items)
        self._drop_errands()
        with contextlib.suppress(sqlite3.Error):  # everything that can be written has been
            self._guard.close()
            self._connection.close()

    def _drop_errands(self) -> None:
        with self._ended:
            self._over = True
            self._errands.extend(item for item in self._inbox.drain() if isinstance(item, _Errand))
        for errand in self._errands:
            errand.done.cancel()
        self._errands.clear()

    def _patience(self) -> float | None:
        waits = [max(0.0, self._next_try - time.monotonic())] if self._held else []
        if self._since_checkpoint >= CHECKPOINT_ROWS:
            waits.append(_QUIET)
        if self._errands:
            waits.append(0.0)  # `take` has lingered by then
        return min(waits, default=None)

    def _handle(self, items: list[_Item]) -> None:
        ops = [item for item in items if isinstance(item, Op)]
        # while the disk refuses, only an answer that somebody waits for, or the back-off, is worth another try
        asked = any(item is None or isinstance(item, _Flush) or (isinstance(item, Op) and item.kind == "admit") for item in items)
        if self._held and not asked and time.monotonic() < self._next_try:
            self._tell_lost(self._held.keep(ops), "too many events wait for the disk")
        else:
            self._write([*self._held.take(), *ops])
        for item in items:
            if isinstance(item, _Flush):
                item.done(not self._held)
        self._errands.extend(item for item in items if isinstance(item, _Errand))
        # right after a transaction is as good a moment as any: whoever was answered has something to do before the next
        if self._errands and (not len(self._inbox) or time.monotonic() > self._errands[0].since + _ERRAND_OVERDUE):
            self._errands.popleft().run(self._connection)
        if self._since_checkpoint >= (_CHECKPOINT_OVERDUE if items else CHECKPOINT_ROWS):
            self._checkpoint()

    def _write(self, ops: list[Op]) -> None:
        try:
            if self.displaced:
                self._put_back()
                if not ops:  # else writing them tells that writes work again
                    self._report(Outcome())
        except LedgerError as displaced:
            return self._hold(ops, displaced)
        while ops:
            done, error = self._settle(ops[:MAX_BATCH])
            ops = ops[done:]
            if error is not None:
                return self._hold(ops, error)
        self._delay = 0.0
        return None

    def _put_back(self) -> None:
        found = put_back(self._directory, self._connection)
        for connection in (self._connection, self._guard):
            with contextlib.suppress(sqlite3.Error):  # its file is gone, and all that was in it is in the copy
                connection.close()
        self._connection, self._guard = found.writer, found.guard
        self._identity = identity(self._directory)
        self._report(found)
        self._report(Checkpointed())

    def _settle(self, batch: list[Op]) -> tuple[int, Exception | None]:
        """Writes a batch. Returns how many of its operations are settled for good, and what stopped the rest."""
        try:
            self._transact(batch)
        except _OPS_OWN_FAULT as error:
            return self._settle_singly(batch) if len(batch) > 1 else self._reject(batch[0], error)
        except Exception as error:  # noqa: BLE001 — a full disk, or a bug here: an admission must get its answer all the same
            return 0, error
        self._since_checkpoint += len(batch)
        self._report(Outcome(committed=batch))
        return len(batch), None

    def _settle_singly(self, batch: list[Op]) -> tuple[int, Exception | None]:
        for done, op in enumerate(batch):
            _, error = self._settle([op])
            if error is not None:
                return done, error
        return len(batch), None

    def _reject(self, op: Op, error: Exception) -> tuple[int, Exception | None]:
        text = f"{op.kind} of {op.run_id or 'the daemon'}: {error}"
        if op.kind == "admit":
            self._report(Outcome(failed=[op], error=text, held=len(self._held)))
        else:
            self._tell_lost([op], text)
        return 1, None

    def _hold(self, ops: list[Op], error: Exception) -> None:
        self._delay = min(_RETRY_LAST, 2 * self._delay or _RETRY_FIRST)
        self._next_try = time.monotonic() + self._delay
        if is_full(error):
            self._checkpoint()  # the log is written from its beginning again when all of it is in the database
        failed = [op for op in ops if op.kind == "admit"]
        lost = self._held.keep([op for op in ops if op.kind != "admit"])
        self._report(
            Outcome(
                failed=failed,
                lost=lost,
                error=explained(error),
                held=len(self._held),
                damaged=isinstance(error, sqlite3.Error) and damaged(error),
            )
        )

    def _tell_lost(self, lost: list[Op], error: str) -> None:
        if lost:
            self._report(Outcome(lost=lost, error=error, held=len(self._held)))

    def _transact(self, batch: list[Op]) -> None:
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            for sql, parameters in statements(batch):
                connection.execute(sql, parameters)
            effect("commit")
            connection.execute("COMMIT")
            effect("committed")
        finally:
            _undo(connection)

    def _checkpoint(self) -> None:
        self._since_checkpoint = 0
        # a failure loses nothing, the rows are in the WAL; if the disk is full, the next write reports it
        with contextlib.suppress(sqlite3.Error):
            busy, logged, moved = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if not busy and logged == moved:
                self._report(Checkpointed())


def _undo(connection: sqlite3.Connection) -> None:
    """Ends a transaction that has not been committed."""
    if connection.in_transaction:
        # should this fail as well, the next BEGIN says so, and comes here again
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")


def statements(batch: Sequence[Op]) -> Iterator[tuple[str, Sequence[Any]]]:
    """The SQL for a batch: many rows a statement, because each statement hands the interpreter lock over and back, which
    costs up to a switch interval (5 ms) while the trio thread is busy."""
    inserts = [op for op in batch if op.kind in ("admit", "refuse")]
    yield from _many(_insert_runs, [op.row for op in inserts])
    yield from _many(_insert_labels, [label for op in inserts for label in op.labels])
    for op in (op for op in batch if op.kind == "mend"):
        yield MEND_RUN, op.row
        yield from ((MEND_LABEL, label) for label in op.labels)
    yield from _updates(list({op.run_id: op.row for op in batch if op.kind == "save"}.values()))
    yield from _many(_insert_events, [op.row for op in batch if op.kind == "event"])
    for op in batch:
        if op.kind == "count":
            yield "UPDATE runs SET refusals_counted = refusals_counted + 1 WHERE number = ?", op.row
        elif op.kind == "charge":
            yield _CHARGE, op.row


_CHARGE = (
    "INSERT INTO budgets (scope, name, period_start, charged_usd) VALUES (?, ?, ?, ?) "
    "ON CONFLICT DO UPDATE SET charged_usd = charged_usd + excluded.charged_usd"
)

_SIZES = (64, 32, 16, 8, 4, 3, 2, 1)
"""Rows in one statement: few different texts, so that SQLite's prepared statements are reused, and at most 2 752
parameters, of 32 766 allowed. A short run has three events: they go in one statement."""


def _many(sql: Callable[[int], str], rows: Sequence[tuple[Any, ...]]) -> Iterator[tuple[str, Sequence[Any]]]:
    start = 0
    for size in _SIZES:
        while len(rows) - start >= size:
            yield sql(size), [value for row in rows[start : start + size] for value in row]
            start += size


def _values(rows: int, columns: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return f"VALUES {', '.join([row] * rows)}"


@cache
def _insert_runs(rows: int) -> str:
    return f"INSERT INTO runs ({', '.join(RUN_COLUMNS)}) {_values(rows, len(RUN_COLUMNS))}"


@cache
def _insert_labels(rows: int) -> str:
    return f"INSERT INTO labels (key, value, number) {_values(rows, 3)}"


@cache
def _insert_events(rows: int) -> str:
    return f"INSERT INTO events ({', '.join(EVENT_COLUMNS)}) {_values(rows, len(EVENT_COLUMNS))}"


def _assignments(value: str) -> str:
    # the daemon that takes a run over knows its model only once it is named again
    once = ("model", "provider")
    names = ((name, value.format(name)) for name in SAVE_COLUMNS[1:])
    return ", ".join(f"{name} = ifnull({new}, runs.{name})" if name in once else f"{name} = {new}" for name, new in names)


_UPDATE_ONE = f"UPDATE runs SET {_assignments('?')} WHERE number = ?"  # noqa: S608


def _updates(rows: Sequence[tuple[Any, ...]]) -> Iterator[tuple[str, Sequence[Any]]]:
    if len(rows) == 1:  # by far the most frequent, and without the table of new values it is a tenth of a transaction cheaper
        ((number, *values),) = rows
        yield _UPDATE_ONE, (*values, number)
    else:
        yield from _many(_update_runs, rows)


@cache
def _update_runs(rows: int) -> str:
    names = ", ".join(SAVE_COLUMNS)
    return (
        f"WITH new ({names}) AS ({_values(rows, len(SAVE_COLUMNS))}) "  # noqa: S608
        f"UPDATE runs SET {_assignments('new.{}')} FROM new WHERE runs.number = new.number"
    )


_NAMES = ", ".join(RUN_COLUMNS)

MEND_RUN = f"INSERT INTO runs ({_NAMES}) {_values(1, len(RUN_COLUMNS))} ON CONFLICT DO UPDATE SET {_assignments('excluded.{}')}"
"""A run's row brought up to date, or inserted."""

MEND_LABEL = "INSERT OR IGNORE INTO labels (key, value, number) VALUES (?, ?, ?)"

MEND_CHARGE = (
    "INSERT INTO budgets (scope, name, period_start, charged_usd) VALUES (?, ?, ?, ?) "
    "ON CONFLICT DO UPDATE SET charged_usd = excluded.charged_usd"
)
