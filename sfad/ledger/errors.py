"""Why a ledger cannot be opened. What goes wrong later is reported by callback, not raised."""

from __future__ import annotations

import errno
import sqlite3


def is_full(error: BaseException | None) -> bool:
    """Whether something failed for want of room on the disk."""
    code = getattr(error, "sqlite_errorcode", None)
    return (code is not None and code & 0xFF == sqlite3.SQLITE_FULL) or getattr(error, "errno", None) == errno.ENOSPC


class LedgerError(Exception):
    """The ledger cannot be used; the message names the file and the cause."""

    @property
    def full(self) -> bool:
        """Whether it is for want of room."""
        return is_full(self.__cause__)


class LedgerTooNew(LedgerError):
    """The file was written by a newer version of this program. Nothing was changed in it."""


def corrupt(text: str) -> sqlite3.DatabaseError:
    """Return an error as SQLite raises it for a damaged file: such a file is set aside when it is opened."""
    error = sqlite3.DatabaseError(text)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error
