"""The durable record: SQLite in WAL mode, one writer, every admission committed before its process starts.

`ledger`       `Ledger`, used in the trio thread: writes are queued and answered by callback
`records`      its reads, which also see queued writes
`schema`       tables, and the ordered list of migrations that leads to them
`rows`         a run and an event as rows, and back
`statements`   the SQL that writes a batch
`inbox`        the queue of the writer's thread, which wakes it when a transaction is worth its cost
`writer`       the thread that owns the connection that writes
`connections`  the names of the ledger's files, and connections that only read
`opening`      the connection that writes: modes, pragmas, setting a corrupt file aside
`checking`     whether a ledger is whole
`putback`      writes the ledger again after another process has removed it
`backup`       a copy while it is in use
`reader`       queries: pages, filters, lookups
`numbers`      run ids as numbers, by which rows are found
`totals`       what runs have used together with their descendants
`summary`      the report of a period
`advice`       limits suggested from past runs
`retention`    deletes old rows and gives pages back
`errors`       why a ledger cannot be used
"""

from .backup import Backup, back_up
from .errors import LedgerError, LedgerTooNew, is_full
from .ledger import Ledger
from .rows import RunExtra

__all__ = ["Backup", "Ledger", "LedgerError", "LedgerTooNew", "RunExtra", "back_up", "is_full"]
