"""Opens the one connection that writes, at the newest schema version, and reads a ledger that a
daemon left.

A corrupt file is set aside under a new name, never deleted. So is anything else that has one of the
ledger's names. A start reads the schema, the rows of live runs and the highest numbers, whatever
the size of the file. `Maintenance` checks all of it later.
"""

import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from ...host.files import create, free_name, is_regular, keep_damaged, regain, set_aside
from ...protocol.paths import LEDGER, make_private
from ...protocol.types import RunId, RunInfo
from .database import LedgerError, beside, corrupt, is_damage, lenient, log_of, open_reader, size
from .queries import OPEN_RUNS, Reader
from .rows import is_damaged, run_info
from .schema import READ_COLUMNS, VERSION, check_ours, migrate, version_of

_HIGHEST = 1 << 60
"""Of runs and events. No daemon gave a higher number, and it would leave none for the next."""


SUSPECT = f"{LEDGER}.suspect"
"""Is there when damage was found in the ledger while it was in use: the next start reads all of
it."""


def suspect(directory: Path, why: str) -> None:
    """Have the next start read the whole ledger. Raises `OSError`."""
    with open(create(directory / SUSPECT), "w") as file:
        file.write(f"{why}\n")


def check_whole(directory: Path, between: Callable[[], object]) -> str | None:
    """Read the ledger to its last page, and return what is wrong with it. Takes 1.2 ms a MB from
    the page cache. `between` is called every few ms, and may raise to give up. Raises
    `sqlite3.Error` if it cannot be read at all."""
    stopped: list[BaseException] = []

    def look() -> bool:
        try:
            between()
        except BaseException as error:  # noqa: BLE001 - SQLite would swallow it
            stopped.append(error)
        return bool(stopped)

    with closing(open_reader(directory)) as connection:
        connection.set_progress_handler(look, _STEPS)
        try:
            found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        except sqlite3.Error as error:
            if stopped:
                raise stopped[0] from None
            if is_damage(error):
                return str(error)
            raise
    return None if found == "ok" else str(found)


_STEPS = 100_000
"""Steps of SQLite's machine between two calls of `between`."""


def check(path: Path, busy_timeout: float, *, whole: bool) -> None:
    """Read the schema and the highest numbers, and, if `whole`, the file to its last page. Raise
    the `sqlite3.Error` that says what is wrong with it."""
    if size(path) == 0:
        return
    # read-only: another connection would move the log into a file that is to be salvaged when it is
    # closed
    with closing(open_reader(path.parent, busy_timeout)) as connection:
        try:
            check_ours(connection)
            _read_newest(connection)
        except sqlite3.Error as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_READONLY:
                raise
            return  # a rollback journal is beside it, which only a connection that writes can read
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0] if whole else "ok"
        if found != "ok":
            raise corrupt(found)


def check_known(directory: Path) -> None:
    """Raise `LedgerError` for a ledger that this build cannot continue. Changes nothing."""
    if not (directory / LEDGER).exists():
        return
    try:
        with closing(open_reader(directory)) as connection:
            check_ours(connection)
    except (sqlite3.Error, LedgerError) as error:
        raise LedgerError(f"the ledger {directory / LEDGER} cannot be used: {error}") from error


def _read_newest(connection: sqlite3.Connection) -> None:
    if not version_of(connection):
        return
    for table, key in (("runs", "number"), ("events", "seq")):
        connection.execute(f"SELECT * FROM {table} ORDER BY {key} DESC LIMIT 1").fetchall()  # noqa: S608
        if Reader(connection).last(table, key) > _HIGHEST:
            raise corrupt(f"a {key} in its table {table} is higher than {_HIGHEST}")


_LOG_KEPT = 16 * 1024 * 1024
"""Bytes of the log that stay allocated after a checkpoint. A burst may need more, but does not keep
it."""


class OpenedFile(Struct, frozen=True):
    connection: sqlite3.Connection
    is_new: bool
    """There was no ledger, or it was set aside."""
    left: list[RunInfo]
    damaged: frozenset[RunId]
    """Those of `left` whose rows are damaged."""


def open_writer(directory: Path, notes: list[str], *, busy_timeout: float) -> OpenedFile:
    """Open the file, and make it if it is missing.

    Set a corrupt one aside, untouched, and add a line about that to `notes`. Raises `LedgerError`
    for everything else that keeps it from being opened."""
    path = directory / LEDGER
    try:
        _clear(path, notes)
        try:
            opened = _open_checked(path, notes, busy_timeout)
        except sqlite3.Error as error:
            if not is_damage(error):
                raise
            notes.append(_set_aside(path, error))
            opened = _open_checked(path, notes, busy_timeout)
        (directory / SUSPECT).unlink(missing_ok=True)
        return opened
    except (sqlite3.Error, OSError, LedgerError) as error:
        kind = type(error) if isinstance(error, LedgerError) else LedgerError
        raise kind(f"the ledger {path} cannot be opened: {error}") from error


def open_past(directory: Path) -> sqlite3.Connection:
    """Return a connection to a ledger that a daemon of any release left. Raises `LedgerError`.

    Nothing on the disk is made, changed or migrated: an older ledger is copied into memory and
    migrated there."""
    connection = None
    try:
        for name in (directory / LEDGER, *beside(directory / LEDGER)):
            # SQLite would wait for the other end of a FIFO
            if os.path.lexists(name) and not is_regular(name):
                raise LedgerError(f"{name} is not a regular file")
        connection = open_reader(directory)
        check_ours(connection)
        if version_of(connection) < VERSION:
            copy = sqlite3.connect(":memory:", isolation_level=None)
            with closing(connection):
                connection.backup(copy)
            connection = copy
            migrate(copy)
    except (sqlite3.Error, LedgerError) as error:
        if connection is not None:
            connection.close()
        raise LedgerError(f"the ledger {directory / LEDGER} cannot be read: {error}") from error
    return connection


def configure(connection: sqlite3.Connection) -> None:
    """Set the pragmas that the promises of docs/durability.md need. Raises `LedgerError` if the
    file system cannot do it."""
    if not version_of(connection):
        # Only before the first page is written. In any other file the pragma changes nothing, but
        # it wants the write lock: a program that holds the lock would keep the live runs
        # unsupervised.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise LedgerError(f"its file system does not support WAL (journal mode stays {mode!r})")
    # NORMAL does not fsync at a commit. A commit survives a crash of the daemon, because it is in
    # the page cache; a power failure may take the last commits, and ends the processes that they
    # describe
    connection.execute("PRAGMA synchronous = NORMAL")
    # the writer checkpoints after it has answered, so that no admission waits for an fsync
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute(f"PRAGMA journal_size_limit = {_LOG_KEPT}")


def _clear(path: Path, notes: list[str]) -> None:
    """Set aside what is not a regular file: SQLite would follow a symlink, and wait for the other
    end of a FIFO."""
    foreign = [
        name for name in (path, *beside(path)) if os.path.lexists(name) and not is_regular(name)
    ]
    notes += [
        f"{name} was not a regular file; it was set aside as {set_aside(name)}" for name in foreign
    ]
    if (
        is_regular(path)
        and path.lstat().st_uid == os.geteuid()
        and not os.access(path, os.R_OK | os.W_OK)
    ):
        regain(path)


def _open_checked(path: Path, notes: list[str], busy_timeout: float) -> OpenedFile:
    _make(path)
    check(path, busy_timeout, whole=os.path.lexists(path.with_name(SUSPECT)))
    connection = lenient(
        sqlite3.connect(path, isolation_level=None, timeout=busy_timeout, check_same_thread=False)
    )
    try:
        is_new = version_of(connection) == 0
        configure(connection)
        if dropped := migrate(connection):
            notes.append(
                "dropped triggers and indices of another program from the "
                f"ledger {path}: {', '.join(dropped)}"
            )
        left, damaged = _left(path, notes)
    except BaseException:
        connection.close()
        raise
    return OpenedFile(connection, is_new, left, damaged)


def _left(path: Path, notes: list[str]) -> tuple[list[RunInfo], frozenset[RunId]]:
    """Return the runs that the ledger shows as live, and which of their rows are damaged. Keep each
    such row, and add a line."""
    left, damaged = list[RunInfo](), set[RunId]()
    with closing(open_reader(path.parent)) as connection:
        connection.text_factory = text = _TextDecoder()
        for row in connection.execute(OPEN_RUNS):
            info = run_info(row)
            left.append(info)
            if is_damaged(info) or text.wrong:
                damaged.add(info.id)
                why = (
                    "a text in it is not UTF-8"
                    if text.wrong
                    else info.reason.message
                    if info.reason
                    else ""
                )
                content = repr(dict(zip(READ_COLUMNS, row, strict=True)))
                kept = keep_damaged(
                    path.with_name(f"{LEDGER}.{info.id}"), content.encode(errors="backslashreplace")
                )
                notes.append(
                    f"run {info.id}: the row of this live run in the ledger is damaged ({why}) "
                    f"and is written again; {kept}"
                )
            text.wrong = False
    return left, frozenset(damaged)


class _TextDecoder:
    """Decodes text, and notes whether some is not UTF-8."""

    wrong = False

    def __call__(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError:
            self.wrong = True
            return data.decode(errors="replace")


def _make(path: Path) -> None:
    make_private(path.parent)
    # SQLite gives -wal and -shm the mode of the database file. O_NONBLOCK: do not wait for the
    # other end of a FIFO
    descriptor = os.open(
        path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW, 0o600
    )
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise LedgerError("it is not a regular file")
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)
    if found.st_size == 0 and size(log_of(path)):
        # SQLite would take the log for another file's, and delete it
        raise corrupt("it is empty, and its log is not")


def _set_aside(path: Path, error: sqlite3.Error) -> str:
    """Rename the database and its log, which SQLite finds by name, so that both can still be
    salvaged."""
    target = free_name(path, "corrupt")
    # an index into the log, which SQLite makes from it again
    path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
    if size(log := log_of(path)):
        log.rename(log_of(target))
    else:
        log.unlink(missing_ok=True)
    path.rename(target)
    return (
        f"the ledger {path} is corrupt ({error}); "
        f"it was set aside as {target.name}, and a new one was begun"
    )
