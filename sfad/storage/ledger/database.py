"""The ledger as a database of SQLite: the names of its files, connections that only read, and its
errors.

What goes wrong after the ledger was opened is reported by callback, not raised.
"""

import errno
import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from ...protocol.paths import LEDGER as FILE

__all__ = ["FILE", "beside", "log_of", "open_reader", "size"]


def beside(path: Path) -> Iterator[Path]:
    """Yield the paths at which SQLite looks for a database's log, the log's index and a rollback
    journal."""
    return (path.with_name(f"{path.name}{suffix}") for suffix in ("-wal", "-shm", "-journal"))


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def size(path: Path) -> int:
    """Return the bytes of a file; 0 if there is none. A connection that only reads may leave an
    empty log behind."""
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0


def open_reader(directory: Path, busy_timeout: float = 0.25) -> sqlite3.Connection:
    """Return a read-only connection, for one thread at a time.

    In WAL mode it never waits for the writer. `busy_timeout`, in seconds, bounds what the exclusive
    lock of another program can cost the thread that reads."""
    uri = f"{(directory / FILE).absolute().as_uri()}?mode=ro"
    return lenient(
        sqlite3.connect(
            uri, uri=True, isolation_level=None, timeout=busy_timeout, check_same_thread=False
        )
    )


def lenient(connection: sqlite3.Connection) -> sqlite3.Connection:
    """Have a connection read text that is not UTF-8, with U+FFFD in the place of what is wrong.
    Otherwise one byte of one row would hide all rows of a query."""
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")
    return connection


_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_UNREADABLE = frozenset(
    {sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_IOERR_CORRUPTFS}
)

_REMEDIES = {
    sqlite3.SQLITE_FULL: "free some of the disk",
    sqlite3.SQLITE_BUSY: "end what else holds the ledger open, or wait for it",
    sqlite3.SQLITE_READONLY: "let sfad write to the state directory",
}


class LedgerError(Exception):
    """The ledger cannot be used. The message names the file and the cause."""

    @property
    def full(self) -> bool:
        return is_full(self.__cause__)


class LedgerDamaged(LedgerError):
    """A part of the file is broken. The next start reads all of it, and sets it aside."""


class LedgerUnknown(LedgerError):
    """A build whose schema is not known here wrote the file. Nothing was changed in it."""


def corrupt(text: str) -> sqlite3.DatabaseError:
    """Return an error like SQLite's for a damaged file: opening sets such a file aside."""
    error = sqlite3.DatabaseError(text)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def is_full(error: BaseException | None) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return (code is not None and code & 0xFF == sqlite3.SQLITE_FULL) or getattr(
        error, "errno", None
    ) == errno.ENOSPC


def is_damage(error: BaseException | None) -> bool:
    """Return whether the error says that the file's content is broken or unreadable, and not that
    it is out of reach."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and (code & 0xFF in _DAMAGE or code in _UNREADABLE)


def explained(error: Exception) -> str:
    remedy = _REMEDIES.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
    if is_damage(error):
        remedy = (
            "restart sfad: it sets the damaged ledger aside and begins another (an orderly restart "
            "stops the runs)"
        )
    return f"{error}; {remedy}" if remedy else str(error)
