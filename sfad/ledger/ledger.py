"""The ledger as the trio thread sees it: writes are queued and answered by callback, reads are synchronous.

A read also sees what is queued but not in the file yet, so a run that has ended is never shown as running because the
disk is slow or full.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeVar

import msgspec
import trio

from ..core.ids import run_number
from ..protocol.messages import List
from ..protocol.types import Event, RunId, RunInfo
from .backup import Backup, newest_backup, put_by
from .errors import LedgerError
from .opening import mark_damaged, open_reader, open_writer
from .putback import PutBack
from .reader import Page, Reader, Selection
from .rows import Op, RunExtra, charge_op, event_op, insert_op, save_op
from .totals import Used, used_by
from .writer import MEND_CHARGE, MEND_LABEL, MEND_RUN, Outcome, Report, Writer

FOUND = 10
"""Ids that `find` returns at most: enough to show a person that a prefix is ambiguous."""

PATIENCE = 15.0
"""Seconds that opening waits for an outsider's lock, if it needs one: to migrate, or because that lock keeps readers out."""

_LAST_RUN, _LAST_EVENT = ("runs", "number"), ("events", "seq")


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Unwritten:
    op: Op
    info: RunInfo
    extra: RunExtra


def current_boot() -> str | None:
    """The kernel's id of this boot; `None` where /proc does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


class Ledger:
    """Opens the ledger in `directory`, created if missing. Raises `LedgerError`.

    Between opening and `start` it is read and mended (`left`, `mend`, `set_charged`); from `start` on it takes writes.
    `floor_number`: no run gets a number up to this one, whatever the file says: the highest one that output files bear,
    so that a ledger begun anew does not use an id twice. `busy_timeout`: seconds a transaction waits for an outsider's lock.
    `patience`: seconds that opening waits for it. `handed_over`: this process has flushed the file and executed itself anew, so
    that there is nothing to check.
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
        self.directory = directory
        self.notes: list[str] = []
        """What opening had to do, a line each, for the log and an event."""
        self.trouble: str | None = None
        """Why writes fail just now."""
        self.held = 0
        """Operations that wait in memory for the disk."""
        self.lost = 0
        """Operations that will never be written, since opening; each was reported."""
        self._boot = current_boot()
        # nobody waits for an answer yet, and who does not get the ledger leaves everything that lives on its own
        opened = open_writer(directory, self.notes, busy_timeout=patience, handed_over=handed_over)
        self._connection = opened.connection
        # what cannot be mended at once is mended later: until then nobody looks after what lives
        self._connection.execute(f"PRAGMA busy_timeout = {int(1000 * busy_timeout)}")
        self.begun_anew = opened.begun_anew
        """There was no ledger, or it was set aside: runs that live are not in it."""
        self.left = opened.left
        """Runs that the file showed as not terminal when it was opened, oldest first: what a dead daemon left."""
        self.unchecked = opened.unchecked
        """The file is too large, or the disk too slow, to check it while everybody waits: `opening.check` is due."""
        self.backup: Backup | None = None
        """The newest backup, of which `Maintenance` makes one from time to time."""
        try:
            floor_number = max(floor_number, self._find_backup())
            self._reader = Reader(open_reader(directory))
            self._last_number = max(self._reader.last(*_LAST_RUN), floor_number)
            self._seq = self._reader.last(*_LAST_EVENT)
        except sqlite3.Error as error:
            self._connection.close()
            raise LedgerError(f"the ledger in {directory} cannot be read: {error}; move it away to begin a new one") from error
        self._unwritten: dict[RunId, _Unwritten] = {}
        self._writer: Writer | None = None
        self._waking = False

    def _find_backup(self) -> int:
        """Notes the newest backup. Returns the highest run number in it if it is of a ledger that is gone: then it is put by,
        so that the next one does not replace it."""
        self.backup = found = newest_backup(self.directory)
        if not self.begun_anew or found is None:
            return 0
        number = 0
        with suppress(sqlite3.Error), closing(open_reader(found.path.parent)) as connection:
            number = Reader(connection).last(*_LAST_RUN)
        try:
            self.notes.append(put_by(found))
            self.backup = None
        except OSError as error:
            self.notes.append(f"the backup {found.path} cannot be kept under another name: {error}; the next one replaces it")
        return number

    def mend(self, rows: Iterable[tuple[RunInfo, RunExtra]]) -> None:
        """Brings these runs' rows up to date, and inserts those that are missing. Only before `start`; committed on return.

        Without `boot_id` in its extra, a run with a pid is taken for one of this boot. Raises `sqlite3.Error` if the disk
        refuses; then nothing was changed."""
        ops = [insert_op("admit", info, extra, self._boot) for info, extra in rows]
        with self._mending() as connection:
            connection.executemany(MEND_RUN, [op.row for op in ops])
            connection.executemany(MEND_LABEL, [label for op in ops for label in op.labels])
        self._last_number = max([self._last_number, *(op.row[0] for op in ops)])

    def set_charged(self, scope: str, name: str, period_start: datetime, usd: float) -> None:
        """Sets what a user's or a team's budget was charged in the period that began then: for a ledger that was lost. Only
        before `start`; committed on return. Raises `sqlite3.Error` if the disk refuses."""
        with self._mending() as connection:
            connection.execute(MEND_CHARGE, charge_op(scope, name, period_start, usd).row)

    @contextmanager
    def _mending(self) -> Iterator[sqlite3.Connection]:
        if self._writer is not None:
            raise RuntimeError("mending is for what a dead daemon left; once started, save the runs instead")
        self._connection.execute("BEGIN")  # not IMMEDIATE: whoever has nothing to mend needs no lock, and waits for none
        try:
            yield self._connection
            self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def root_spawns(self, since: datetime) -> list[tuple[str, datetime]]:
        """User and time of every root that was admitted after `since`, in the order of admission: what a rate of spawns counts.
        Where the clock was ahead for a while, times may lie in the future."""
        return self._reader.root_spawns(since.timestamp())

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
        token: trio.lowlevel.TrioToken | None = None,
    ) -> None:
        """Begins to take writes. The callbacks run in the trio thread.

        `on_committed(ids)` and `on_failed(ids, error)` are about admissions; an admission gets exactly one of them.
        `on_ended(ids)` is about runs that were saved with a terminal status: they are in the file now. While writes fail
        that takes until they work again. `on_trouble(error, lost)` tells when writes begin to fail, when they work again
        (`None`), and whenever operations other than admissions had to be given up (`lost`, how many since the last call).
        `on_put_back(note)` tells that the file had been removed or replaced, and was written again. `on_checkpointed()` tells that
        whatever `on_ended` was called for is in the database itself, and not in its log alone. `lost()` says why the directory is
        elsewhere now, with the ledger in it; `None` while it is in its place. It is called in another thread.
        """
        self._on_committed, self._on_failed, self._on_trouble = on_committed, on_failed, on_trouble
        self._on_ended, self._on_put_back, self._on_checkpointed = on_ended, on_put_back, on_checkpointed
        self._token = token or trio.lowlevel.current_trio_token()
        self._writer = Writer(self._connection, self._report, self.directory, lost)

    @property
    def next_number(self) -> int:
        """The number the next run may have, as of opening and of every run queued since."""
        return self._last_number + 1

    @property
    def size_bytes(self) -> int:
        """Bytes of the database, its WAL not counted."""
        return self._reader.size()

    def admit(self, info: RunInfo, extra: RunExtra) -> None:
        """Queues a run's row. Answered by `on_committed` or `on_failed`."""
        self._put(insert_op("admit", info, extra, self._boot))
        self._last_number = max(self._last_number, run_number(info.id))

    def save(self, info: RunInfo, extra: RunExtra) -> None:
        """Queues a run's present state. Never lost: held in memory until the disk takes it."""
        self._put_seen(save_op(info, extra, self._boot), info, extra)

    def mend_later(self, info: RunInfo, extra: RunExtra) -> None:
        """Queues what `mend` could not do for this run. Never lost: held in memory until the disk takes it."""
        self._put_seen(insert_op("mend", info, extra, self._boot), info, extra)

    def refuse(self, info: RunInfo, extra: RunExtra) -> None:
        """Queues a refused run's row. Nobody waits for it, and it is held while the disk refuses it."""
        self._put_seen(insert_op("refuse", info, extra, self._boot), info, extra)
        self._last_number = max(self._last_number, run_number(info.id))

    def count_refusal(self, run_id: RunId) -> None:
        """Adds one to the refusals counted in a refused run's row."""
        self._put(Op("count", run_id, (run_number(run_id),)))

    def charge(self, scope: str, name: str, period_start: datetime, usd: float) -> None:
        """Queues an addition to what a user's or a team's budget was charged in the period that began then. Never lost."""
        self._put(charge_op(scope, name, period_start, usd))

    def charged(self, scope: str, name: str, period_start: datetime) -> float:
        """USD charged in that period, as far as it is committed: for a budget that is not known yet, of which nothing is queued."""
        return self._reader.charged(scope, name, period_start.timestamp())

    @property
    def last_event(self) -> int:
        """The highest number that an event bears."""
        return self._seq

    def skip_events(self, number: int) -> None:
        """The next event has a higher number than this one."""
        self._seq = max(self._seq, number)

    def event(self, event: Event) -> Event:
        """Queues an event and returns it with its number. Raises `ValueError` for one without a time."""
        numbered = msgspec.structs.replace(event, seq=self._seq + 1)
        op = event_op(numbered)
        self._seq += 1
        self._put(op)
        return numbered

    async def flush(self) -> bool:
        """Returns once everything queued before has been tried: true if all of it is in the file."""
        outcome: list[bool] = []
        done = trio.Event()

        def wake(clean: bool) -> None:
            outcome.append(clean)
            done.set()

        self._running().flush(lambda clean: self._token.run_sync_soon(wake, clean))
        await done.wait()
        return outcome[0]

    def flush_now(self, timeout: float = 1.0) -> bool:
        """`flush`, for who must not let anything happen meanwhile; false after `timeout` seconds as well."""
        outcome: SimpleQueue[bool] = SimpleQueue()
        self._running().flush(outcome.put)
        try:
            return outcome.get(timeout=timeout)
        except Empty:
            return False

    def when_idle(self, work: Callable[[sqlite3.Connection], T]) -> Future[T]:
        """Calls `work` with the write connection in the writer's thread, when nothing is to be written, or after a second.
        What is written meanwhile waits for it: a few milliseconds are its measure. From any thread, after `start`.

        The future is cancelled if the ledger is closed first."""
        return self._running().when_idle(work)

    def look_after(self) -> None:
        """Has the file written again soon if another process has removed or replaced it; a write looks for itself."""
        if self._running().displaced:
            self._running().flush(lambda _clean: None)

    def close(self, timeout: float = 5.0) -> int:
        """Writes what is queued and closes the file. Returns how many operations could not be written; waits for at most
        `timeout` seconds. The ledger is of no use afterwards."""
        # first the reader: the last connection to close checkpoints, and a read-only one cannot
        self._reader.close()
        if self._writer is not None:
            return self._writer.close(timeout)
        self._connection.close()
        return 0

    def get(self, run_id: RunId) -> RunInfo | None:
        """One run, `None` if there is none. An admission that is not committed yet is not there."""
        found = self._lookup(run_id)
        return None if found is None else found[0]

    def details(self, run_id: RunId) -> RunExtra | None:
        """What a run's row holds beside `RunInfo`."""
        found = self._lookup(run_id)
        return None if found is None else found[1]

    def find(self, prefix: str) -> list[RunId]:
        """Ids that begin with `prefix`, at most `FOUND`, in order of admission."""
        unwritten = (run_id for run_id in self._unwritten if run_id.startswith(prefix))
        return sorted({*self._reader.find(prefix, FOUND), *unwritten})[:FOUND]

    def select(self, query: List, *, uid: int | None = None, within: RunId | None = None) -> Selection:
        """A page of the runs that `query` asks for. `uid` and `within` narrow to one user's runs and to one run with its
        descendants."""
        page = Page(query, uid, within)
        found = self._reader.select(page)
        runs = {info.id: info for info in found.runs if info.id not in self._unwritten}
        runs |= {info.id: info for info, _ in self.unwritten(page)}
        return Selection.of(runs.values(), query.rows, found.reached)

    def unwritten(self, page: Page) -> Iterator[tuple[RunInfo, RunExtra]]:
        """The runs of a page that the file does not know as they are now."""
        for held in self._unwritten.values():
            if page.admits(held.info, held.extra.uid) and (page.within is None or page.within in self.chain(held.info.id)):
                yield held.info, held.extra

    def used_below(self, roots: Collection[RunId]) -> dict[RunId, Used]:
        """What each descendant of these roots has used."""
        used = {run: use for root in roots for run, use in self._reader.used_below(root).items()}
        for held in self._unwritten.values():
            if held.info.root_id in roots and held.info.parent_id is not None:
                used[held.info.id] = used_by(held.info.parent_id, held.info.usage)
        return used

    def chain(self, run_id: RunId) -> list[RunId]:
        """The run's ancestors and itself, root first; only itself where it is unknown."""
        ids = [run_id]
        while (parent := self._parent(ids[-1])) is not None and parent not in ids:
            ids.append(parent)
        return ids[::-1]

    def events(self, since: int = 0, *, limit: int = 1000) -> list[Event]:
        """Committed events numbered above `since`, in order."""
        return self._reader.events(since, limit)

    def _lookup(self, run_id: RunId) -> tuple[RunInfo, RunExtra] | None:
        held = self._unwritten.get(run_id)
        return (held.info, held.extra) if held is not None else self._reader.get(run_id)

    def _parent(self, run_id: RunId) -> RunId | None:
        held = self._unwritten.get(run_id)
        return held.info.parent_id if held is not None else self._reader.parent(run_id)

    def _running(self) -> Writer:
        if self._writer is None:
            raise RuntimeError("the ledger takes writes after start()")
        return self._writer

    def _put(self, op: Op) -> None:
        self._running().put(op)
        if op.urgent and not self._waking:
            self._wake_soon()

    def _wake_soon(self) -> None:
        # once for everything that the trio thread does in one go: the requests of a burst share a transaction, and the two
        # threads do not take the interpreter's lock from each other between them
        self._waking = True
        try:
            self._token.run_sync_soon(self._wake)
        except trio.RunFinishedError:
            self._wake()

    def _wake(self) -> None:
        self._waking = False
        self._running().wake()

    def _put_seen(self, op: Op, info: RunInfo, extra: RunExtra) -> None:
        self._put(op)
        self._unwritten[info.id] = _Unwritten(op, info, extra)

    def _report(self, report: Report) -> None:
        if isinstance(report, Outcome) and report.damaged:
            mark_damaged(self.directory, report.error or "")
        try:
            self._token.run_sync_soon(self._told, report)
        except trio.RunFinishedError:
            # nobody is left to be told; close() has returned, or returns, how many operations stayed unwritten
            return

    def _told(self, report: Report) -> None:
        if isinstance(report, Outcome):
            self._settle(report)
        elif isinstance(report, PutBack):
            self._reader.close()
            self._reader = Reader(report.reader)
            self._on_put_back(report.note)
        else:
            self._on_checkpointed()

    def _settle(self, outcome: Outcome) -> None:
        self._forget([*outcome.committed, *outcome.lost])
        self.held = outcome.held
        self.lost += len(outcome.lost)
        self._tell_trouble(outcome)
        if committed := [op.run_id for op in outcome.committed if op.kind == "admit" and op.run_id]:
            self._on_committed(committed)
        if ended := [op.run_id for op in (*outcome.committed, *outcome.lost) if op.run_id and _is_end(op)]:
            self._on_ended(ended)
        if failed := [op.run_id for op in outcome.failed if op.run_id]:
            self._on_failed(failed, outcome.error or "the ledger cannot be written")

    def _forget(self, ops: list[Op]) -> None:
        for op in ops:
            held = self._unwritten.get(op.run_id) if op.run_id else None
            if held is not None and held.op is op:
                del self._unwritten[held.info.id]

    def _tell_trouble(self, outcome: Outcome) -> None:
        changed = (outcome.error is None) != (self.trouble is None)
        self.trouble = outcome.error
        if changed or outcome.lost:
            self._on_trouble(outcome.error, len(outcome.lost))


def _is_end(op: Op) -> bool:
    return op.urgent and op.kind in ("save", "mend")
