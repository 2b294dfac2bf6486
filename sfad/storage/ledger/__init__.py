"""The durable record: SQLite in WAL mode, one writer, every admission committed before its process
starts.

`ledger`    `Ledger`, opened and brought up to date; used in the trio thread: queues writes, and
            tells a listener of each
`records`   reads of runs, calls and events, which also see queued writes
`schema`    tables, and the ordered list of migrations that leads to them
`rows`      runs, calls and events as rows, and back, and the SQL that writes them
`writer`    writes, in the caller's thread while the disk is fast, else in its own: transactions,
            queue, backlog, errands
`database`  the names of the ledger's files, connections that only read, and SQLite's errors
`opening`   the connection that writes: whether the file is whole, modes, pragmas, setting a corrupt
            file aside
`backup`    a copy while it is in use, and the ledger written again after another process has
            removed it
`queries`   queries: pages, filters, lookups
`summary`   the report of a period
`retention` deletes old rows and gives pages back
"""

from .backup import Backup, back_up
from .database import LedgerError, LedgerUnknown, is_full
from .ledger import Ledger, OpenedLedger
from .rows import RunExtra

__all__ = [
    "Backup",
    "Ledger",
    "LedgerError",
    "LedgerUnknown",
    "OpenedLedger",
    "RunExtra",
    "back_up",
    "is_full",
]
