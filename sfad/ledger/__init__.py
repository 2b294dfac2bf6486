"""The durable record: SQLite in WAL mode, one writer, every admission committed before its process starts.

`Ledger`     the facade used in the trio thread: operations are queued, reads are synchronous
`schema`     tables, and the ordered list of migrations that leads to them
`opening`    the file on disk: modes, pragmas, checking it, setting a corrupt one aside
`rows`       a run and an event as rows, and back
`numbers`    ids as numbers, which is what rows are found by
`inbox`      what waits for the writer, and when it is worth a transaction
`writer`     the thread that owns the write connection
`reader`     the read-only connection: pages, filters, lookups
`retention`  deleting old rows and giving pages back, little by little
`backup`     a copy while it is in use
"""

from .backup import Backup, back_up
from .errors import LedgerError, LedgerTooNew, is_full
from .ledger import Ledger, current_boot
from .rows import RunExtra

__all__ = ["Backup", "Ledger", "LedgerError", "LedgerTooNew", "RunExtra", "back_up", "current_boot", "is_full"]
