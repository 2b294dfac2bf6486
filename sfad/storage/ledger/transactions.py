"""The connection that writes: transactions, checkpoints, and the file put back after another process has removed it."""

import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

from ...host.faults import crash_point
from ...protocol.paths import LEDGER
from .backup import PutBack, identities, put_back
from .database import log_of, open_reader, size
from .opening import suspect
from .rows import Op, statements

CHECKPOINT_ROWS = 500
"""Rows written between two checkpoints. At one to two pages a row, that is some 3 MiB of log."""

_BYTES_A_ROW = 6 * 1024


class Transactions:
    """Writes to the ledger's file, for one thread."""

    def __init__(self, connection: sqlite3.Connection, directory: Path, state_dir_lost: Callable[[], str | None]) -> None:
        """`state_dir_lost` returns why the whole directory is elsewhere now, or `None` while it is in its place; it is called in
        any thread."""
        self.connection = connection
        self._directory = directory
        self._state_dir_lost = state_dir_lost
        self._identity = identities(directory)
        self._guard = open_reader(directory)
        """Keeps the connection that writes from being its file's last one. When the last connection to a file that has lost its
        name is closed, SQLite deletes the log by name, and by then that is another file's log."""
        self._guard.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        # the log has rows of daemons that were killed: without counting them, daemons that each live for less than
        # `CHECKPOINT_ROWS`, as in a crash loop, would let it grow until the disk is full
        self.unmoved = size(log_of(directory / LEDGER)) // _BYTES_A_ROW
        """How many rows are in the log since the last checkpoint, about."""
        (self._patience,) = connection.execute("PRAGMA busy_timeout").fetchone()
        self._waits = self._patience

    def write(self, batch: Sequence[Op], *, wait: bool = True) -> None:
        """Write the batch in one transaction. Raises `sqlite3.Error`, and what a row of the batch may raise. `wait`: for another
        program's lock."""
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
            undo(connection)
        self.unmoved += len(batch)

    def _wait(self, milliseconds: int) -> None:
        if milliseconds != self._waits:
            self.connection.execute(f"PRAGMA busy_timeout = {milliseconds}").fetchone()
            self._waits = milliseconds

    def checkpoint(self) -> bool:
        """Move the log into the database. Return whether all of it is there."""
        self.unmoved = 0
        # a failure loses nothing, because the rows are in the log; if the disk is full, the next write reports it
        with contextlib.suppress(sqlite3.Error):
            busy, logged, moved = self.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            return not busy and bool(logged == moved)
        return False

    @property
    def displaced(self) -> bool:
        """Whether another process has removed or replaced the file. From any thread.

        False if the whole directory is elsewhere: the open file went with it, and its path is not ours to write to."""
        return identities(self._directory) != self._identity and self._state_dir_lost() is None

    def put_back(self) -> PutBack:
        """Write the file again in its place. Raises `LedgerError`."""
        found = put_back(self._directory, self.connection)
        for connection in (self.connection, self._guard):  # in this order: see `_guard`
            with contextlib.suppress(sqlite3.Error):  # its file is gone, and all of it is in the copy
                connection.close()
        self.connection, self._guard, self._waits = found.writer, found.guard, self._patience
        self._identity = identities(self._directory)
        return found

    def suspect(self, why: str) -> None:
        """Have the next start read the whole file."""
        with contextlib.suppress(OSError):
            suspect(self._directory, why)

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):  # everything that can be written has been
            self._guard.close()
            self.connection.close()


def undo(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        # if this fails as well, the next BEGIN raises and comes here again
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
