"""Why a ledger cannot be opened. What goes wrong later is reported by callback, not raised."""

from __future__ import annotations


class LedgerError(Exception):
    """The ledger cannot be used; the message names the file and the cause."""


class LedgerTooNew(LedgerError):
    """The file was written by a newer version of this program. Nothing was changed in it."""
