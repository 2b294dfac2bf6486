"""The ledger's file: created 0600 in a directory 0700, opened with the pragmas that the promises rest on, and set aside
under a new name, never deleted, when it is corrupt."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

from .errors import LedgerError
from .schema import migrate

FILE = "ledger.db"

CHECKPOINT_ROWS = 500
"""Rows written between two checkpoints; with one to two pages a row that is some 3 MiB of WAL."""

_WAL_KEPT = 16 * 1024 * 1024
"""Bytes of WAL file that stay allocated after a checkpoint; a burst may need more, but does not keep it."""

_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


def damaged(error: sqlite3.Error) -> bool:
    """Whether the error says that the file's content is broken, rather than that it cannot be reached just now."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _DAMAGE


def open_writer(directory: Path, notes: list[str], *, busy_timeout: float) -> sqlite3.Connection:
    """The one write connection, at the current schema version.

    A corrupt file is set aside, and a line about it is added to `notes`. Raises `LedgerError` for everything else that
    keeps the file from being opened. `busy_timeout` is in seconds.
    """
    path = directory / FILE
    try:
        try:
            return _open_checked(path, busy_timeout)
        except sqlite3.Error as error:
            if not damaged(error):
                raise
            notes.append(_set_aside(path, error))
            return _open_checked(path, busy_timeout)
    except (sqlite3.Error, OSError, LedgerError) as error:
        kind = type(error) if isinstance(error, LedgerError) else LedgerError
        raise kind(f"the ledger {path} cannot be opened: {error}") from error


def open_reader(directory: Path) -> sqlite3.Connection:
    """A read-only connection. In WAL mode it never waits for the writer; the short timeout bounds what an outsider's
    exclusive lock can cost the thread that reads."""
    uri = f"{(directory / FILE).absolute().as_uri()}?mode=ro"
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=0.25)


def _open_checked(path: Path, busy_timeout: float) -> sqlite3.Connection:
    _prepare(path)
    # a WAL that is still there means that the last daemon did not close the file: only then is the full check worth its time
    unclean = path.with_name(f"{path.name}-wal").exists()
    connection = sqlite3.connect(path, isolation_level=None, timeout=busy_timeout, check_same_thread=False)
    try:
        _configure(connection)
        migrate(connection)
        _probe(connection, thorough=unclean)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # SQLite gives -wal and -shm the mode of the database file
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)


def _configure(connection: sqlite3.Connection) -> None:
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise LedgerError(f"its file system does not support WAL (journal mode stays {mode!r})")
    # NORMAL does not fsync at a commit: what was committed survives a crash of the daemon, since it is in the page
    # cache; a power loss may take the last commits, and takes the processes they describe with it
    connection.execute("PRAGMA synchronous = NORMAL")
    # the writer checkpoints after it has answered, so that no admission waits for an fsync
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_KEPT}")


def _probe(connection: sqlite3.Connection, *, thorough: bool) -> None:
    for table, key in (("runs", "number"), ("events", "seq")):
        connection.execute(f"SELECT * FROM {table} ORDER BY {key} DESC LIMIT 1").fetchall()  # noqa: S608
    if thorough:
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise _corrupt(found)


def _corrupt(text: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(text)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def _set_aside(path: Path, error: sqlite3.Error) -> str:
    """Renames the database with its WAL (which SQLite finds by name, so that the pair can still be salvaged)."""
    target = _free_name(path)
    for suffix in ("-shm", "-wal", ""):
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.rename(target.with_name(target.name + suffix))
    return f"the ledger {path} is corrupt ({error}); it was set aside as {target.name}, and a new one was begun"


def _free_name(path: Path) -> Path:
    stamp = int(time.time())
    while (target := path.with_name(f"{path.name}.corrupt-{stamp}")).exists():
        stamp += 1
    return target
