"""Copies the ledger while it is in use, finds the newest copy, and puts the ledger back after
another process has removed it.

An agent can do that by mistake, with `rm -rf` or `git clean` in the wrong directory. The open
database is still whole, so it is copied to its place. SQLite alone would continue to write to a
file that no later daemon finds.
"""

import os
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from ...host.files import create, identity, is_regular, set_aside
from ...protocol.paths import LEDGER
from ...protocol.texts.units import format_size
from .database import LedgerDamaged, LedgerError, beside, lenient, open_reader
from .opening import configure
from .schema import APPLICATION_ID

BACKUP = Path("backup") / LEDGER

_STEP = 64
"""Pages copied between two pauses, 256 KiB: 0.2 ms."""

LEFT_FREE = 16 * 1024 * 1024
"""Bytes that a copy must leave free: admissions fail on a full disk, which is worse than an old
backup."""


class Backup(Struct, frozen=True):
    """A copy that was whole when it was made."""

    path: Path
    size_bytes: int
    at: datetime


def newest_backup(directory: Path) -> Backup | None:
    with suppress(OSError):
        if is_regular(directory / BACKUP):
            return _backup(directory / BACKUP)
    return None


def keep_apart(backup: Backup) -> str:
    """Rename a backup, so that the next one does not replace all that remains of a lost ledger.
    Return a line about it.

    Raises `OSError`."""
    stamp = int(backup.at.timestamp())
    while (target := backup.path.with_name(f"{backup.path.name}.{stamp}")).exists():
        stamp += 1
    backup.path.rename(target)
    return (
        f"the backup of {backup.at:%Y-%m-%d %H:%M} is of the earlier ledger; it is kept as {target}"
    )


def back_up(
    directory: Path, target: Path, *, replace: bool, between: Callable[[], object] = lambda: None
) -> Backup:
    """Copy the ledger in `directory`, whether a daemon serves it or not, to the file `target`,
    0600, whose directory exists.

    The copy shows one moment. It is read again before it gets its name, so `target` is never a part
    of a copy. The log cannot be reset meanwhile, so it grows by what is written. For a thread;
    `between` is called every 256 KiB, and may wait, or raise to give up, which leaves nothing
    behind.

    Raises `FileExistsError` unless `replace`, `OSError`, `sqlite3.Error`, and `LedgerError` if
    there is no ledger or it is damaged.
    """
    if not (directory / LEDGER).is_file():
        raise LedgerError(f"there is no ledger in {directory}")
    check_room((directory / LEDGER).stat().st_size, target.parent)
    if not replace:
        _claim(target)
    partial = target.with_name(f"{target.name}.part")
    try:
        os.close(create(partial))
        _copy(directory, partial, between)
        os.replace(partial, target)
    except BaseException:
        for left in (partial, *(() if replace else (target,))):
            left.unlink(missing_ok=True)
        raise
    sync(target.parent)
    return _backup(target)


def _backup(path: Path) -> Backup:
    status = path.stat()
    return Backup(path, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))


def check_room(size: int, directory: Path) -> None:
    """Raise `LedgerError` unless `size` bytes, and `LEFT_FREE`, are free."""
    system, needed = os.statvfs(directory), size + LEFT_FREE
    free = system.f_bavail * system.f_frsize
    if free < needed:
        raise LedgerError(
            f"a copy of the ledger needs {format_size(needed)} in {directory}; "
            f"only {format_size(free)} are free"
        )


def _claim(path: Path) -> None:
    os.close(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    )


def _copy(directory: Path, partial: Path, between: Callable[[], object]) -> None:
    with closing(open_reader(directory)) as source:
        # in a transaction each step sees the same; without one each write of the daemon would
        # restart the copy
        source.execute("BEGIN")
        source.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        _write(source, partial, between)
    between()
    _verify(partial)


def _write(source: sqlite3.Connection, target: Path, between: Callable[[], object]) -> None:
    with closing(sqlite3.connect(target, isolation_level=None)) as copy:
        # the copy does not count until it has its name, so it needs neither a journal nor waiting
        # for the disk
        copy.execute("PRAGMA synchronous = OFF")
        source.backup(copy, pages=_STEP, progress=lambda *_: between())
        copy.execute("PRAGMA journal_mode = DELETE").fetchone()  # one file, without a log beside it
    sync(target)


def _verify(partial: Path) -> None:
    with closing(sqlite3.connect(f"{partial.absolute().as_uri()}?mode=ro", uri=True)) as copy:
        if copy.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise LedgerError("it is a database of another program")
        found = copy.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise LedgerDamaged(f"the copy is damaged, and so the ledger may be: {found}")


def sync(path: Path) -> None:
    """Wait until the disk has the file, or the names in the directory. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


Identities = tuple[tuple[int, int] | None, ...]
"""Device and inode of the database, its log and the log's index; `None` for a missing file."""


def identities(directory: str) -> Identities:
    """Return which files have the ledger's names now. Costs three stat(2) calls, a twentieth of a
    transaction."""
    return (
        identity(f"{directory}/{LEDGER}"),
        identity(f"{directory}/{LEDGER}-wal"),
        identity(f"{directory}/{LEDGER}-shm"),
    )


class PutBack(Struct, frozen=True):
    writer: sqlite3.Connection
    guard: sqlite3.Connection
    """See `Transactions`."""
    reader: sqlite3.Connection
    note: str


def put_back(directory: Path, source: sqlite3.Connection) -> PutBack:
    """Copy what `source` has open to its place, and set aside what is there.

    Raises `LedgerError`; then `source` stays the only ledger, as before."""
    path = directory / LEDGER
    try:
        _copy_back(source, path.with_name(f"{LEDGER}.new"))
        kept = [
            str(aside) for name in (path, *beside(path)) if (aside := set_aside(name)) is not None
        ]
        path.with_name(f"{LEDGER}.new").rename(path)
        writer, guard, reader = _opened(path, source)
    except (OSError, sqlite3.Error, LedgerError) as error:
        raise LedgerError(
            f"the ledger {path} was removed or replaced by another process, "
            f"and cannot be put back: {error}"
        ) from error
    rest = f"; what was in its place is kept as {', '.join(kept)}" if kept else ""
    note = (
        f"the ledger {path} was removed or replaced by another process; "
        f"all of it was written again{rest}"
    )
    return PutBack(writer, guard, reader, note)


def _copy_back(source: sqlite3.Connection, target: Path) -> None:
    pages, size = (
        source.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size")
    )
    check_room(pages * size, target.parent)
    for name in beside(target):
        set_aside(name)
    os.close(create(target))
    try:
        _write(source, target, lambda: None)
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def _opened(
    path: Path, source: sqlite3.Connection
) -> tuple[sqlite3.Connection, sqlite3.Connection, sqlite3.Connection]:
    busy_timeout = source.execute("PRAGMA busy_timeout").fetchone()[0] / 1000
    with ExitStack() as undo:
        undo.callback(path.unlink)
        writer = lenient(
            sqlite3.connect(
                path, isolation_level=None, timeout=busy_timeout, check_same_thread=False
            )
        )
        undo.callback(writer.close)
        configure(writer)
        guard, reader = (undo.enter_context(closing(open_reader(path.parent))) for _ in range(2))
        for connection in (guard, reader):
            # SQLite opens the file no sooner
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        undo.pop_all()
    return writer, guard, reader
