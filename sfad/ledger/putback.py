"""Writes the ledger again after another process has removed or replaced it.

An agent can do that by mistake, with `rm -rf` or `git clean` in the wrong directory. The open database is still whole, so it is
copied to its place. SQLite alone would continue to write to a file that no later daemon finds.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from ..host.private_files import create, set_aside
from .backup import check_room, sync
from .connections import FILE, beside, open_reader
from .errors import LedgerError
from .opening import configure

Identity = tuple[tuple[int, int] | None, ...]
"""Device and inode of the database, its log and the log's index; `None` for a missing file."""


def identity(directory: Path) -> Identity:
    """Return which files have the ledger's names now. Costs three stat(2) calls, a twentieth of a transaction."""
    return _identity(f"{directory}/{FILE}"), _identity(f"{directory}/{FILE}-wal"), _identity(f"{directory}/{FILE}-shm")


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return found.st_dev, found.st_ino


@dataclass(frozen=True, slots=True)
class PutBack:
    """Connections to the copy, which is in place now."""

    writer: sqlite3.Connection
    guard: sqlite3.Connection
    """See `Writer`."""
    reader: sqlite3.Connection
    note: str


def put_back(directory: Path, source: sqlite3.Connection) -> PutBack:
    """Copy what `source` has open to its place, and set aside what is there.

    Raises `LedgerError`; then `source` stays the only ledger, as before."""
    path = directory / FILE
    try:
        _copy(source, path.with_name(f"{FILE}.new"))
        kept = [str(aside) for name in (path, *beside(path)) if (aside := set_aside(name)) is not None]
        path.with_name(f"{FILE}.new").rename(path)
        writer, guard, reader = _opened(path, source)
    except (OSError, sqlite3.Error, LedgerError) as error:
        raise LedgerError(
            f"the ledger {path} was removed or replaced by another process, and cannot be put back: {error}"
        ) from error
    rest = f"; what was in its place is kept as {', '.join(kept)}" if kept else ""
    note = f"the ledger {path} was removed or replaced by another process; all of it was written again{rest}"
    return PutBack(writer, guard, reader, note)


def _copy(source: sqlite3.Connection, target: Path) -> None:
    pages, size = (source.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    check_room(pages * size, target.parent)
    for name in beside(target):
        set_aside(name)
    os.close(create(target))
    try:
        with closing(sqlite3.connect(target, isolation_level=None)) as copy:
            copy.execute("PRAGMA synchronous = OFF")
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE").fetchone()  # one file, without a log beside it
        sync(target)
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def _opened(path: Path, source: sqlite3.Connection) -> tuple[sqlite3.Connection, sqlite3.Connection, sqlite3.Connection]:
    patience = source.execute("PRAGMA busy_timeout").fetchone()[0] / 1000
    with ExitStack() as undo:
        undo.callback(path.unlink)
        writer = sqlite3.connect(path, isolation_level=None, timeout=patience, check_same_thread=False)
        undo.callback(writer.close)
        configure(writer)
        guard, reader = (undo.enter_context(closing(open_reader(path.parent))) for _ in range(2))
        for connection in (guard, reader):
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # SQLite opens the file no sooner
        undo.pop_all()
    return writer, guard, reader
