"""The names of the ledger's files, and connections that only read."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

from ..protocol.paths import LEDGER as FILE

__all__ = ["FILE", "beside", "log_of", "open_reader", "size"]


def beside(path: Path) -> Iterator[Path]:
    """Yield the paths at which SQLite looks for a database's log, the log's index and a rollback journal."""
    return (path.with_name(f"{path.name}{suffix}") for suffix in ("-wal", "-shm", "-journal"))


def log_of(path: Path) -> Path:
    """Return the path of a database's write-ahead log."""
    return path.with_name(f"{path.name}-wal")


def size(path: Path) -> int:
    """Return the bytes of a file; 0 if there is none. A connection that only reads may leave an empty log behind."""
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0


def open_reader(directory: Path, busy_timeout: float = 0.25) -> sqlite3.Connection:
    """Return a read-only connection, for one thread at a time.

    In WAL mode it never waits for the writer. `busy_timeout`, in seconds, bounds what the exclusive lock of another program
    can cost the thread that reads."""
    uri = f"{(directory / FILE).absolute().as_uri()}?mode=ro"
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=busy_timeout, check_same_thread=False)
