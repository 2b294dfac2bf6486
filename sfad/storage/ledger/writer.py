"""The thread that writes, and `write_here`, with which the caller writes itself while nothing makes
it wait.

Operations come through an inbox. All operations that were queued during one commit go into the
next, so under load one transaction has many runs. Admissions and ends are written at once;
everything else waits for `LINGER`. When a transaction fails, its admissions fail at once and are
never written later, because their clients have been refused. Everything else waits in the backlog,
in order, and is tried again with the next admission or after a back-off.

Work that can wait, such as deleting old rows, comes as errands: one at a time, when nothing is
queued. On a connection of its own it would compete for SQLite's one write lock, and a connection
that finds the lock taken sleeps for a millisecond or more.
"""

import contextlib
import math
import os
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Generic, TypeVar

from msgspec import Struct, field

from ...host.faults import crash_point
from ...protocol.paths import LEDGER
from .backup import PutBack, identities, put_back
from .database import LedgerError, explained, is_damage, is_full, log_of, open_reader, size
from .opening import suspect
from .rows import Op, statements

# ---- The connection that writes: transactions, checkpoints, and the file put back after another
# process has removed it

CHECKPOINT_ROWS = 500
"""Rows written between two checkpoints. At one to two pages a row, that is some 3 MiB of log."""

_BYTES_A_ROW = 6 * 1024


class Transactions:
    """Writes to the ledger's file, for one thread."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        directory: Path,
        state_dir_lost: Callable[[], str | None],
    ) -> None:
        """`state_dir_lost` returns why the whole directory is elsewhere now, or `None` while it is
        in its place; it is called in any thread."""
        self.connection = connection
        self._directory = directory
        self._state_dir_lost = state_dir_lost
        self._place = str(directory)
        self._identity = identities(self._place)
        self._unchanged = _Seen(0, 0, 0)
        """The directory as it was when the files in it were looked at; see `displaced`."""
        self._guard = open_reader(directory)
        """Keeps the connection that writes from being its file's last one. When the last connection
        to a file that has lost its name is closed, SQLite deletes the log by name, and by then that
        is another file's log."""
        self._guard.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        # the log has rows of daemons that were killed: without counting them, daemons that each
        # live for less than `CHECKPOINT_ROWS`, as in a crash loop, would let it grow until the disk
        # is full
        self.unmoved = size(log_of(directory / LEDGER)) // _BYTES_A_ROW
        """How many rows are in the log since the last checkpoint, about."""
        (self._patience,) = connection.execute("PRAGMA busy_timeout").fetchone()
        self._waits = self._patience

    def write(self, batch: Sequence[Op], *, wait: bool = True) -> None:
        """Write the batch in one transaction. Raises `sqlite3.Error`, and what a row of the batch
        may raise. `wait`: for another program's lock."""
        connection = self.connection
        try:
            self._wait(self._patience if wait else 0)
            connection.execute("BEGIN IMMEDIATE")
            for sql, parameters in statements(batch):
                connection.execute(sql, parameters)
            crash_point("commit")
            connection.execute("COMMIT")
            crash_point("committed")
        finally:
            if connection.in_transaction:
                undo(connection)
        self.unmoved += len(batch)

    def _wait(self, milliseconds: int) -> None:
        if milliseconds != self._waits:
            self.connection.execute(f"PRAGMA busy_timeout = {milliseconds}").fetchone()
            self._waits = milliseconds

    def checkpoint(self) -> bool:
        """Move the log into the database. Return whether all of it is there."""
        self.unmoved = 0
        # a failure loses nothing, because the rows are in the log; if the disk is full, the next
        # write reports it
        with contextlib.suppress(sqlite3.Error):
            busy, logged, moved = self.connection.execute(
                "PRAGMA wal_checkpoint(PASSIVE)"
            ).fetchone()
            return not busy and bool(logged == moved)
        return False

    @property
    def displaced(self) -> bool:
        """Whether another process has removed or replaced the file. From any thread.

        False if the whole directory is elsewhere: the open file went with it, and its path is not
        ours to write to.

        A directory in which no name has changed since is not looked into: that takes one system
        call in the place of three, three times for each run."""
        now = _seen(self._place)
        if now is not None and now == self._unchanged:
            return False
        return self.look()

    def look(self) -> bool:
        """Return the same, also of a file that a mount hides."""
        now = _seen(self._place)
        if identities(self._place) != self._identity:
            return self._state_dir_lost() is None
        # what changes within a tick of the kernel's clock may have the same time
        if now is not None and time.time_ns() - now.changed > _TICK:
            self._unchanged = now
        return False

    def put_back(self) -> PutBack:
        """Write the file again in its place. Raises `LedgerError`."""
        found = put_back(self._directory, self.connection)
        for connection in (self.connection, self._guard):  # in this order: see `_guard`
            # its file is gone, and all of it is in the copy
            with contextlib.suppress(sqlite3.Error):
                connection.close()
        self.connection, self._guard, self._waits = found.writer, found.guard, self._patience
        self._identity = identities(self._place)
        return found

    def suspect(self, why: str) -> None:
        """Have the next start read the whole file."""
        with contextlib.suppress(OSError):
            suspect(self._directory, why)

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):  # everything that can be written has been
            self._guard.close()
            self.connection.close()


class _Seen(Struct, frozen=True):
    """A directory as stat(2) shows it."""

    device: int
    inode: int
    changed: int
    """When a name in it was made or removed last, or its mode changed, in nanoseconds since the
    epoch. No process can set that."""


_TICK = 50_000_000
"""Nanoseconds; the kernel's clock for times of files ticks every 10 ms at most."""


def _seen(directory: str) -> _Seen | None:
    try:
        status = os.stat(directory)
    except OSError:
        return None
    return _Seen(status.st_dev, status.st_ino, status.st_ctime_ns)


def undo(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        # if this fails as well, the next BEGIN raises and comes here again
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")


# ---- The queue of the writer's thread, which wakes it when a transaction is worth its cost
#
# A transaction costs some 0.2 ms and a wake-up of the thread, whatever is in it. So only urgent
# items wake the thread at once; the others wait a little and share the transaction of what comes
# next.


LINGER = 0.010
"""Seconds that an item which is not urgent may wait for others. Short runs in sequence have an
admission or an end every millisecond or so, which takes all others along; a SIGKILL of the daemon
loses nothing older than this."""

ENOUGH = 64
"""Items that are worth a transaction without an urgent one. They make the next admission's
transaction at most 0.5 ms longer."""

_Item = TypeVar("_Item")


class Inbox(Generic[_Item]):
    def __init__(self) -> None:
        self._items: deque[_Item] = deque()
        self.add = self._items.append
        """Queues an item. The caller calls `wake`, once for many of them."""
        self._calls: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """A wake-up for the taker; true if it should take at once."""
        self.asleep = False
        """Whether the taker waits without a time limit of its own, and must be woken to begin its
        wait of `LINGER`."""

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: _Item) -> None:
        """Queue an item that is not urgent. Never waits."""
        self._items.append(item)
        enough = len(self._items) == ENOUGH
        if enough or self.asleep:
            self.asleep = False
            self._calls.put(enough)

    def wake(self) -> None:
        self._calls.put(True)

    def wait(self, timeout: float | None) -> None:
        """Return once what is queued is worth a transaction, or if nothing came for `timeout`
        seconds."""
        # waiting right after a transaction, and not from the next item on, spares that item a
        # wake-up
        called = self._called(LINGER)
        # a call without an item tells that `timeout` is not true any more
        if not called and not self._items and not self._sleep(timeout) and self._items:
            self._called(LINGER)

    def _sleep(self, timeout: float | None) -> bool:
        self.asleep = True
        try:
            # an item that was put before the flag was set has not woken the taker
            return not self._items and self._called(timeout)
        finally:
            self.asleep = False

    def _called(self, timeout: float | None) -> bool:
        try:
            return self._calls.get(timeout=timeout)
        except queue.Empty:
            return False

    def put_back(self, items: list[_Item]) -> None:
        """Queue these again before all others."""
        self._items.extendleft(reversed(items))

    def drain(self) -> list[_Item]:
        """Return everything queued."""
        # the calls first: a later call may be for an item that is put after this
        while not self._calls.empty():
            self._calls.get_nowait()
        return [self._items.popleft() for _ in range(len(self._items))]


# ---- The thread that writes


MAX_BATCH = 1024
"""Operations in one transaction. It bounds how long an admission at the end of a burst waits for
its commit."""

MAX_BACKLOG = 50_000
"""Events and refusals that wait while the disk refuses them, some 50 MB. Ends of runs have no bound
of their own: while admissions fail, there are only as many as runs were live when the trouble
began."""

RETRY_FIRST, RETRY_LAST = 0.1, 5.0
"""Seconds between two tries to write the backlog."""

_CHECKPOINT_OVERDUE = 16 * CHECKPOINT_ROWS

_QUIET = 0.05
"""Seconds without a write before a checkpoint that is due. Its fsync takes 10 ms and more, and an
admission that comes meanwhile has to wait for it."""

MOST_HERE = 256
"""Operations that `write_here` writes: 5 ms."""

SLOW, SLOW_FOR = 0.05, 10.0
"""Seconds of a transaction from which on the disk counts as slow, and for how long."""

_ERRAND_OVERDUE = 1.0
"""Seconds that an errand waits for an empty queue. Under constant load it runs after that time all
the same."""

_OPS_OWN_FAULT = (
    sqlite3.IntegrityError,
    sqlite3.ProgrammingError,
    sqlite3.InterfaceError,
    sqlite3.DataError,
    ValueError,
    OverflowError,
)
"""Errors that the same row would cause again on a healthy disk, so that keeping it would block all
others."""


class WriteResult(Struct, frozen=True):
    committed: Sequence[Op] = ()
    failed: Sequence[Op] = ()
    lost: Sequence[Op] = ()
    """Other operations that will never be written: over the bound, or refused by SQLite because of
    their content."""
    error: str | None = None
    backlog: int = 0
    """Operations that wait for the disk."""
    seconds: float | None = None
    """What the transaction has taken; `None` where there was none."""


class Checkpointed:
    """All commits so far are in the database itself, where damage to the log cannot lose them."""


Report = WriteResult | PutBack | Checkpointed


class Backlog(Struct):
    states: dict[str | None, Op] = field(default_factory=dict)
    """The newest state of each run; the others do not matter."""
    others: deque[Op] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self.states) + len(self.others)

    def add(self, ops: Sequence[Op]) -> list[Op]:
        """Add operations, and return the oldest ones that are dropped because there are too
        many."""
        for op in ops:
            if op.kind == "state":
                self.states[op.run_id] = op
            else:
                self.others.append(op)
        return [self.others.popleft() for _ in range(len(self.others) - MAX_BACKLOG)]

    def take(self) -> list[Op]:
        """Return everything, and keep nothing. States come last: one of the others may insert the
        run."""
        ops = [*self.others, *self.states.values()]
        self.states.clear()
        self.others.clear()
        return ops


class _Flush(Struct, frozen=True):
    done: Callable[[bool], None]


_T = TypeVar("_T")


class _Errand(Struct, Generic[_T], frozen=True):
    """Work on the connection that writes, for which only its caller waits."""

    work: Callable[[sqlite3.Connection], _T]
    done: Future[_T]
    since: float

    def run(self, connection: sqlite3.Connection) -> None:
        """Do it. The caller gets the result, or the error, a bug included."""
        if not self.done.set_running_or_notify_cancel():
            return
        try:
            self.done.set_result(self.work(connection))
        except Exception as error:  # noqa: BLE001
            self.done.set_exception(error)
        finally:
            undo(connection)


_WriterItem = Op | _Flush | _Errand[Any] | None


class Writer:
    """Starts the thread, and puts work into its inbox.

    `report` is called in the thread, after each transaction of its own."""

    def __init__(self, transactions: Transactions, report: Callable[[Report], None]) -> None:
        self._transactions = transactions
        self._tell = report
        self._reports = 0
        """How many were told."""
        self._inbox: Inbox[_WriterItem] = Inbox()
        self.put, self.add, self.wake = self._inbox.put, self._inbox.add, self._inbox.wake
        self._backlog = Backlog()
        self._delay = 0.0
        self._next_try = 0.0
        self._errands: deque[_Errand[Any]] = deque()
        self._ended = threading.Lock()
        """Held while the thread looks for errands for the last time: none is put after that."""
        self._over = False
        self._suspected = False
        """Whether damage was noted for the next start."""
        self._writing = threading.Lock()
        """Held from when items are taken from the inbox until they are written, by the thread that
        does it."""
        self._wrote_at = self._slow_until = -math.inf
        # a daemon thread: a file system that hangs must not keep the process from exiting
        self._thread = threading.Thread(target=self._run, name="sfad-ledger", daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Whether the thread has written everything that was queued, and waits for work."""
        return self._inbox.asleep

    def write_here(self, heard: int) -> WriteResult | None:
        """Write what is queued in the caller's thread: so the two threads need not wake each other.
        `heard`: how many reports of the thread were heard. Return `None` if the thread must do it,
        which the caller wakes then: it is at work, it has something to tell, something waits
        besides operations, or a write may wait: the disk was slow a moment ago, or another program
        has the file's lock."""
        if (
            len(self._inbox) > MOST_HERE
            or time.monotonic() < self._slow_until
            or not self._writing.acquire(blocking=False)
        ):
            return None
        try:
            idle = heard == self._reports and not self._backlog and not self._transactions.displaced
            return self._write_queued() if idle else None
        finally:
            self._writing.release()

    def _write_queued(self) -> WriteResult | None:
        items, unmoved, began = self._inbox.drain(), self._transactions.unmoved, time.monotonic()
        ops = list[Op]()
        for item in items:  # a comprehension is a call more, twice for each run
            if isinstance(item, Op):
                ops.append(item)
        if ops and len(ops) == len(items):
            try:
                self._transactions.write(ops, wait=False)
            except Exception:  # noqa: BLE001, S110 - the thread meets it again, and reports it
                pass
            else:
                if unmoved < CHECKPOINT_ROWS <= self._transactions.unmoved:
                    self._inbox.wake()  # from now on the thread waits for a quiet moment
                return self._wrote(ops, began)
        self._inbox.put_back(items)
        return None

    def _wrote(self, batch: Sequence[Op], began: float) -> WriteResult:
        self._wrote_at = time.monotonic()
        seconds = self._wrote_at - began
        if seconds > SLOW:
            self._slow_until = self._wrote_at + SLOW_FOR
        return WriteResult(committed=batch, seconds=seconds)

    def flush(self, done: Callable[[bool], None]) -> None:
        """Call `done` in the thread once everything queued before has been tried, and say whether
        all of it is written."""
        self._inbox.add(_Flush(done))
        self._inbox.wake()

    def when_idle(self, work: Callable[[sqlite3.Connection], _T]) -> Future[_T]:
        """Call `work` in the thread when nothing is queued, or after a second. From any thread.

        Writes wait for it meanwhile, so it should take a few milliseconds. A transaction that it
        leaves open is rolled back. Closing cancels the future."""
        errand = _Errand(work, Future(), time.monotonic())
        with self._ended:
            if self._over:
                errand.done.cancel()
            else:
                self._inbox.put(errand)
        return errand.done

    def close(self, timeout: float) -> int:
        """Write what is queued and end the thread. Return how many operations stay unwritten.

        After `timeout` seconds the thread is left alone."""
        self._inbox.add(None)
        self._inbox.wake()
        self._thread.join(timeout)
        return len(self._backlog) + len(self._inbox)

    def _report(self, report: Report) -> None:
        self._reports += 1
        self._tell(report)

    def _run(self) -> None:
        if self._transactions.unmoved >= CHECKPOINT_ROWS:
            # before the first write, which then begins the log again: this daemon may be killed
            # soon, too
            self._checkpoint()
        more = True
        while more:
            self._inbox.wait(self._time_to_wait())
            with self._writing:
                items = self._inbox.drain()
                more = None not in items
                self._handle(items)
        self._drop_errands()
        self._transactions.close()

    def _drop_errands(self) -> None:
        with self._ended:
            self._over = True
            self._errands.extend(item for item in self._inbox.drain() if isinstance(item, _Errand))
        for errand in self._errands:
            errand.done.cancel()
        self._errands.clear()

    def _time_to_wait(self) -> float | None:
        waits = [max(0.0, self._next_try - time.monotonic())] if self._backlog else []
        if self._transactions.unmoved >= CHECKPOINT_ROWS:
            waits.append(_QUIET)
        if self._errands:
            waits.append(0.0)  # `Inbox.wait` has waited for `LINGER` by then
        return min(waits, default=None)

    def _handle(self, items: list[_WriterItem]) -> None:
        ops = [item for item in items if isinstance(item, Op)]
        # while the disk refuses, try again only for a caller that waits for an answer, or after the
        # back-off
        asked = any(
            item is None
            or isinstance(item, _Flush)
            or (isinstance(item, Op) and item.kind == "admit")
            for item in items
        )
        if self._backlog and not asked and time.monotonic() < self._next_try:
            self._report_lost(self._backlog.add(ops), "too many events wait for the disk")
        else:
            self._write([*self._backlog.take(), *ops])
        for item in items:
            if isinstance(item, _Flush):
                item.done(not self._backlog)
        self._errands.extend(item for item in items if isinstance(item, _Errand))
        # right after a transaction is a good moment: the clients that were answered have work of
        # their own before the next
        if self._errands and (
            not len(self._inbox) or time.monotonic() > self._errands[0].since + _ERRAND_OVERDUE
        ):
            self._errands.popleft().run(self._transactions.connection)
        quiet = not items and time.monotonic() > self._wrote_at + _QUIET
        if self._transactions.unmoved >= (CHECKPOINT_ROWS if quiet else _CHECKPOINT_OVERDUE):
            self._checkpoint()

    def _write(self, ops: list[Op]) -> None:
        try:
            if self._transactions.displaced:
                self._report(self._transactions.put_back())
                self._report(Checkpointed())
                if not ops:  # else the transaction reports that writes work again
                    self._report(WriteResult())
        except LedgerError as displaced:
            return self._try_later(ops, displaced)
        while ops:
            done, error = self._write_batch(ops[:MAX_BATCH])
            ops = ops[done:]
            if error is not None:
                return self._try_later(ops, error)
        self._delay = 0.0
        return None

    def _write_batch(self, batch: list[Op]) -> tuple[int, Exception | None]:
        """Write a batch. Return how many of its operations are written or rejected, and what
        stopped the rest."""
        began = time.monotonic()
        try:
            self._transactions.write(batch)
        except _OPS_OWN_FAULT as error:
            return self._write_singly(batch) if len(batch) > 1 else self._reject(batch[0], error)
        except Exception as error:  # noqa: BLE001 — a full disk, or a bug here: an admission must get its answer all the same
            return 0, error
        self._report(self._wrote(batch, began))
        return len(batch), None

    def _write_singly(self, batch: list[Op]) -> tuple[int, Exception | None]:
        for done, op in enumerate(batch):
            _, error = self._write_batch([op])
            if error is not None:
                return done, error
        return len(batch), None

    def _reject(self, op: Op, error: Exception) -> tuple[int, Exception | None]:
        text = f"{op.kind} of {op.run_id or 'the daemon'}: {error}"
        if op.kind == "admit":
            self._report(WriteResult(failed=[op], error=text, backlog=len(self._backlog)))
        else:
            self._report_lost([op], text)
        return 1, None

    def _try_later(self, ops: list[Op], error: Exception) -> None:
        self._delay = min(RETRY_LAST, 2 * self._delay or RETRY_FIRST)
        self._next_try = time.monotonic() + self._delay
        if is_full(error):
            # once all of the log is in the database, it is written from its beginning again
            self._checkpoint()
        if is_damage(error) and not self._suspected:
            self._suspected = True
            self._transactions.suspect(str(error))
        failed = [op for op in ops if op.kind == "admit"]
        lost = self._backlog.add([op for op in ops if op.kind != "admit"])
        backlog = len(self._backlog)
        self._report(WriteResult(failed=failed, lost=lost, error=explained(error), backlog=backlog))

    def _report_lost(self, lost: list[Op], error: str) -> None:
        if lost:
            self._report(WriteResult(lost=lost, error=error, backlog=len(self._backlog)))

    def _checkpoint(self) -> None:
        if self._transactions.checkpoint():
            self._report(Checkpointed())
