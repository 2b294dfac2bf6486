"""Why a ledger cannot be opened. What goes wrong later is reported by callback, not raised."""

from __future__ import annotations

import errno
import sqlite3


class LedgerError(Exception):
    """The ledger cannot be used; the message names the file and the cause."""

    @property
    def full(self) -> bool:
        """Whether it is for want of room."""
        cause = self.__cause__
        return getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL or getattr(cause, "errno", None) == errno.ENOSPC


class LedgerTooNew(LedgerError):
    """The file was written by a newer version of this program. Nothing was changed in it."""
