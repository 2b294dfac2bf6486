"""The ledger between its opening and its first write: what was found in it, and how it is brought up to date."""

import sqlite3
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ...host.probe import current_boot
from ...protocol.types import CallInfo, RunInfo
from .backup import Backup, keep_apart, newest_backup
from .database import LedgerError, open_reader
from .opening import open_writer
from .reader import Reader
from .reads import Records
from .rows import RunExtra, Statement, charge_op, insert_op, set_charge, upserts

LOCK_WAIT = 15.0
"""Seconds that opening waits for another program's lock if it needs one: to migrate, or because the lock keeps readers out."""

_LAST_RUN, _LAST_EVENT = ("runs", "number"), ("events", "seq")


@dataclass(slots=True)
class LedgerFile:
    directory: Path
    backup: Backup | None

    def backed_up(self, backup: Backup) -> None:
        self.backup = backup


class OpenedLedger:
    """The ledger in one directory, which is made if it is missing. `Ledger` takes it over; it is not for use after that."""

    def __init__(
        self,
        directory: Path,
        *,
        floor_number: int = 0,
        busy_timeout: float = 2.0,
        lock_wait: float = LOCK_WAIT,
    ) -> None:
        """Open the ledger. Raises `LedgerError`.

        `floor_number`: no run gets this number or a lower one, whatever the file says. It is the highest number of an output
        file, so that a new ledger does not give an id again. `busy_timeout`: seconds that a transaction waits for another
        program's lock. `lock_wait`: seconds that opening waits for it."""
        self.notes: list[str] = []
        """What opening had to do, a line each, for the log and an event."""
        self.boot = current_boot()
        # no client waits for an answer yet, and a daemon that does not get the ledger leaves all live runs alone
        found = open_writer(directory, self.notes, busy_timeout=lock_wait)
        self.connection = found.connection
        # until the live runs are brought up to date here they have no supervisor: what has to wait longer is written later
        self.connection.execute(f"PRAGMA busy_timeout = {int(1000 * busy_timeout)}")
        self.is_new = found.is_new
        """There was no ledger, or it was set aside: live runs are not in it."""
        self.damaged = found.damaged
        """Those of `left` whose rows are damaged. `upsert` writes such a row again as a whole."""
        self.left = found.left
        """Runs that the file showed as live when it was opened, oldest first: an earlier daemon left them."""
        try:
            backup, highest = self._backup(directory)
            reader = Reader(open_reader(directory))
            self.next_number = 1 + max(reader.last(*_LAST_RUN), floor_number, highest)
            """The number that the next run may have: above the file's."""
            self.last_event = reader.last(*_LAST_EVENT)
        except sqlite3.Error as error:
            self.connection.close()
            raise LedgerError(f"the ledger in {directory} cannot be read: {error}; move it away to begin a new one") from error
        self.file = LedgerFile(directory, backup)
        self.records = Records(reader)

    def _backup(self, directory: Path) -> tuple[Backup | None, int]:
        """Return the newest backup. Keep that of a ledger that is gone apart, and return the highest run number in it instead."""
        found = newest_backup(directory)
        if not self.is_new or found is None:
            return found, 0
        number = 0
        with suppress(sqlite3.Error), closing(open_reader(found.path.parent)) as connection:
            number = Reader(connection).last(*_LAST_RUN)
        try:
            self.notes.append(keep_apart(found))
        except OSError as error:
            self.notes.append(f"the backup {found.path} cannot be kept under another name: {error}; the next one replaces it")
            return found, number
        return None, number

    def upsert(self, rows: Iterable[tuple[RunInfo, RunExtra]], calls: Iterable[CallInfo] = ()) -> None:
        """Insert these runs, or bring their rows up to date, and insert these calls unless they are there. Committed on return.

        The pid of a run without `boot_id` in its extra is taken for one of this boot. Raises `sqlite3.Error` if the disk
        refuses; then nothing was changed."""
        ops = [insert_op("admit", info, extra, self.boot) for info, extra in rows]
        damaged = [("DELETE FROM runs WHERE number = ?", op.row[:1]) for op in ops if op.run_id in self.damaged]
        self._execute([*damaged, *upserts(ops, calls)])
        self.next_number = max([self.next_number, *(op.row[0] + 1 for op in ops)])

    def set_charged(self, scope: str, name: str, period_start: datetime, usd: float) -> None:
        """Set what a user's or a team's budget was charged in the period that began then: for a ledger that was lost.

        Committed on return. Raises `sqlite3.Error` if the disk refuses."""
        self._execute([set_charge(charge_op(scope, name, period_start, usd))])

    def _execute(self, statements: Iterable[Statement]) -> None:
        self.connection.execute("BEGIN")  # not IMMEDIATE: without a statement this needs no lock, and waits for none
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
