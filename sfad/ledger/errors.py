"""What goes wrong with a ledger: why it cannot be opened, and how SQLite's errors are told apart.

What goes wrong after it was opened is reported by callback, not raised.
"""

from __future__ import annotations

import errno
import sqlite3

_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_UNREADABLE = frozenset({sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_IOERR_CORRUPTFS})

_REMEDIES = {
    sqlite3.SQLITE_FULL: "free some of the disk",
    sqlite3.SQLITE_BUSY: "end what else holds the ledger open, or wait for it",
    sqlite3.SQLITE_READONLY: "let sfad write to the state directory",
}


class LedgerError(Exception):
    """The ledger cannot be used. The message names the file and the cause."""

    @property
    def full(self) -> bool:
        """Whether the cause is a full disk."""
        return is_full(self.__cause__)


class LedgerTooNew(LedgerError):
    """A newer version of this program wrote the file. Nothing was changed in it."""


def corrupt(text: str) -> sqlite3.DatabaseError:
    """Return an error like SQLite's for a damaged file: opening sets such a file aside."""
    error = sqlite3.DatabaseError(text)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def is_full(error: BaseException | None) -> bool:
    """Return whether the error says that the disk is full."""
    code = getattr(error, "sqlite_errorcode", None)
    return (code is not None and code & 0xFF == sqlite3.SQLITE_FULL) or getattr(error, "errno", None) == errno.ENOSPC


def is_damage(error: BaseException | None) -> bool:
    """Return whether the error says that the file's content is broken or unreadable, and not that it is out of reach."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and (code & 0xFF in _DAMAGE or code in _UNREADABLE)


def explained(error: Exception) -> str:
    """Return what went wrong with a write, and what helps."""
    remedy = _REMEDIES.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
    if is_damage(error):
        remedy = "restart sfad: it sets the damaged ledger aside and begins another (an orderly restart stops the runs)"
    return f"{error}; {remedy}" if remedy else str(error)
