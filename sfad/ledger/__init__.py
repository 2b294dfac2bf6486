"""The durable record: SQLite in WAL mode, one writer, every admission committed before its process starts.

`Ledger`   the facade used in the trio thread: operations are queued, reads are synchronous
`schema`   tables, and the ordered list of migrations that leads to them
`opening`  the file on disk: modes, pragmas, setting a corrupt one aside
`rows`     a run and an event as rows, and back
`numbers`  ids as numbers, which is what rows are found by
`inbox`    what waits for the writer, and when it is worth a transaction
`writer`   the thread that owns the write connection
`reader`   the read-only connection: pages, filters, lookups
"""

from .errors import LedgerError, LedgerTooNew
from .ledger import Ledger
from .rows import RunExtra

__all__ = ["Ledger", "LedgerError", "LedgerTooNew", "RunExtra"]
