"""The ledger's file: created 0600 in a directory 0700, opened with the pragmas that the promises rest on, and set aside
under a new name, never deleted, when it is corrupt.

A file is checked to its last page before anything is written to it, if that takes no longer than a start may. What the disk
does not give in time is checked by `check`, in a thread, and what is above `CHECKED_AT_ONCE` likewise, after an unclean end.
Until that has found it whole, a mark beside the file says that it has to be done.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..host.private_files import create, free_name, is_regular, regain, set_aside
from ..protocol.paths import LEDGER
from ..protocol.types import RunInfo
from .errors import LedgerError, corrupt
from .reader import Reader
from .schema import VERSION, check_ours, migrate, version_of
from .wal import keep_if_damaged

FILE = LEDGER

CHECKPOINT_ROWS = 500
"""Rows written between two checkpoints; with one to two pages a row that is some 3 MiB of WAL."""

_BYTES_A_ROW = 6 * 1024

_WAL_KEPT = 16 * 1024 * 1024
"""Bytes of WAL file that stay allocated after a checkpoint; a burst may need more, but does not keep it."""

CHECKED_AT_ONCE = 128 * 1024 * 1024
"""Bytes of a file that is checked whenever it is opened: 1.2 ms a MB out of the page cache, so 0.16 s. 100 000 runs with their
events are 100 MB."""

READ_AT_ONCE = 0.5
"""Seconds that reading it into the page cache may take first. On a slower disk it is checked later, like a larger one."""

_REWRITTEN_AT_ONCE = 16 * 1024 * 1024
"""Bytes in use of a file that is rewritten once, so that it can be made smaller in steps from then on: 0.2 s."""

_SCHEMA_AT_ONCE = 2.0
"""Seconds that reading the schema may take: ours takes a millisecond."""

_HIGHEST = 1 << 60
"""Of runs and events. A higher number was not given by a daemon, and would leave none for the next."""

_UNCHECKED = "ledger.unchecked"

_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_UNREADABLE = frozenset({sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_IOERR_CORRUPTFS})


@dataclass(frozen=True, slots=True)
class Opened:
    """The one write connection, at the current schema version, and what was found."""

    connection: sqlite3.Connection
    begun_anew: bool
    """There was no ledger, or it was set aside."""
    unchecked: bool
    """`check` has to be called: the file is too large, or the disk too slow, to check it while everybody waits."""
    left: list[RunInfo]
    """The runs that it shows as live, oldest first."""


def damaged(error: sqlite3.Error) -> bool:
    """Whether the error says that the file's content is broken or cannot be read, rather than that it cannot be reached."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and (code & 0xFF in _DAMAGE or code in _UNREADABLE)


_REMEDIES = {
    sqlite3.SQLITE_FULL: "free some of the disk",
    sqlite3.SQLITE_BUSY: "end what else holds the ledger open, or wait for it",
    sqlite3.SQLITE_READONLY: "let sfad write to the state directory",
}


def explained(error: Exception) -> str:
    """What went wrong with a write, and what helps."""
    if not isinstance(error, sqlite3.Error):
        return str(error)
    remedy = _REMEDIES.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
    if damaged(error):
        remedy = "restart sfad: it sets the damaged ledger aside and begins another (an orderly restart stops the runs)"
    return f"{error}; {remedy}" if remedy else str(error)


def open_writer(directory: Path, notes: list[str], *, busy_timeout: float, handed_over: bool = False) -> Opened:
    """Opens the file, made if it is missing.

    A corrupt one is set aside, untouched, and a line about it is added to `notes`. Raises `LedgerError` for everything else
    that keeps it from being opened. `busy_timeout` is in seconds. `handed_over`: it was flushed by this very process, before
    it executed itself anew, so that there is nothing to check.
    """
    path = directory / FILE
    try:
        _clear(path, notes)
        try:
            return _open_checked(path, notes, busy_timeout, handed_over)
        except sqlite3.Error as error:
            if not damaged(error):
                raise
            notes.append(_set_aside(path, error))
            return _open_checked(path, notes, busy_timeout, handed_over)
    except (sqlite3.Error, OSError, LedgerError) as error:
        kind = type(error) if isinstance(error, LedgerError) else LedgerError
        raise kind(f"the ledger {path} cannot be opened: {error}") from error


def check(directory: Path) -> str | None:
    """Reads the whole file: what is wrong with it, `None` if nothing is. Raises `sqlite3.Error` if that cannot be told now.

    For a thread: it waits for the disk. A damaged file is set aside by the next start."""
    try:
        with closing(open_reader(directory)) as connection:
            _check_pages(connection)
    except sqlite3.Error as error:
        if not damaged(error):
            raise
        mark_damaged(directory, str(error))
        return str(error)
    _unmark(directory / _UNCHECKED)
    return None


def mark_damaged(directory: Path, found: str) -> None:
    """The next start checks the file to its end, however long that takes."""
    _mark(directory / _UNCHECKED, found)


def check_known(directory: Path) -> None:
    """Raises `LedgerError` for a ledger that this build cannot go on with; nothing is changed in it."""
    if not (directory / FILE).exists():
        return
    try:
        with closing(open_reader(directory)) as connection:
            check_ours(connection)
    except (sqlite3.Error, LedgerError) as error:
        raise LedgerError(f"the ledger {directory / FILE} cannot be used: {error}") from error


def logged_rows(directory: Path) -> int:
    """About how many rows are in the log of a ledger that has just been opened: those of daemons that were killed, and more where
    a part of the log has been checkpointed."""
    return _size(_wal(directory / FILE)) // _BYTES_A_ROW


def open_reader(directory: Path, busy_timeout: float = 0.25) -> sqlite3.Connection:
    """A read-only connection, for one thread at a time. In WAL mode it never waits for the writer; the short timeout
    bounds what an outsider's exclusive lock can cost the thread that reads."""
    uri = f"{(directory / FILE).absolute().as_uri()}?mode=ro"
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=busy_timeout, check_same_thread=False)


def open_past(directory: Path) -> sqlite3.Connection:
    """A connection to a ledger as it was left, whatever release wrote it: an older one is read into memory and brought up to date
    there. Nothing is made, changed or migrated on the disk. Raises `LedgerError`."""
    connection = None
    try:
        for name in (directory / FILE, *beside(directory / FILE)):
            if os.path.lexists(name) and not is_regular(name):  # SQLite would wait for the other end of a FIFO
                raise LedgerError(f"{name} is not a regular file")
        connection = open_reader(directory)
        _check_schema(connection)
        if version_of(connection) < VERSION:
            copy = sqlite3.connect(":memory:", isolation_level=None)
            with closing(connection):
                connection.backup(copy)
            connection = copy
            migrate(copy)
    except (sqlite3.Error, LedgerError) as error:
        if connection is not None:
            connection.close()
        raise LedgerError(f"the ledger {directory / FILE} cannot be read: {error}") from error
    return connection


def _clear(path: Path, notes: list[str]) -> None:
    """Sets aside what is not the daemon's: SQLite would follow a symlink, and wait for the other end of a FIFO."""
    foreign = [name for name in (path, *beside(path)) if os.path.lexists(name) and not is_regular(name)]
    notes += [f"{name} was not a regular file; it was set aside as {set_aside(name)}" for name in foreign]
    if is_regular(path) and path.lstat().st_uid == os.geteuid() and not os.access(path, os.R_OK | os.W_OK):
        regain(path)


def _open_checked(path: Path, notes: list[str], busy_timeout: float, handed_over: bool) -> Opened:
    _prepare(path)
    unchecked = _inspect(path, busy_timeout, handed_over)
    if not handed_over and (damage := keep_if_damaged(path)) is not None:
        notes.append(damage)
    connection = sqlite3.connect(path, isolation_level=None, timeout=busy_timeout, check_same_thread=False)
    try:
        begun_anew = version_of(connection) == 0
        configure(connection)
        if dropped := migrate(connection):
            notes.append(f"the ledger {path} had triggers or indices that are not its own; they were dropped: {', '.join(dropped)}")
        _allow_steps(connection)
        left = _left(connection)
    except BaseException:
        connection.close()
        raise
    return Opened(connection, begun_anew, unchecked, left)


def _left(connection: sqlite3.Connection) -> list[RunInfo]:
    """A daemon that cannot read which runs it has to look for would end at each start: such a ledger is damaged."""
    try:
        return Reader(connection).open_runs()
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        raise corrupt(f"the row of a live run cannot be read: {error}") from error


def _prepare(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # SQLite gives -wal and -shm the mode of the database file. O_NONBLOCK is for what is no file: a FIFO
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW, 0o600)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise LedgerError("it is not a regular file")
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)
    if found.st_size == 0 and _size(_wal(path)):
        # SQLite would take the log for another file's, and delete it
        raise corrupt("it is empty, and its log is not")


def _inspect(path: Path, busy_timeout: float, handed_over: bool) -> bool:
    """Raises what is wrong with the file. True: only a part of it was looked at, and the rest is due.

    On a connection that cannot write: another would, when it is closed, move the log into a file that is to be salvaged."""
    size, mark = _size(path), path.with_name(_UNCHECKED)
    if size == 0:
        return False
    due = not handed_over and (_size(_wal(path)) > 0 or mark.exists())
    with closing(open_reader(path.parent, busy_timeout)) as connection:
        try:
            _check_schema(connection)
            _read_newest(connection)
        except sqlite3.Error as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_READONLY:
                raise
            return due  # a journal of a rollback lies beside it, which only a writer can read
        if not handed_over and (_size(mark) or (size <= CHECKED_AT_ONCE and _is_at_hand(path))):
            _check_pages(connection)
            _unmark(mark)
            return False
    due = due or (size <= CHECKED_AT_ONCE and not handed_over)
    if due:
        _mark(mark)
    return due


def _is_at_hand(path: Path) -> bool:
    """Whether the file is in the page cache, where this puts it, if the disk is fast enough. The check itself reads pages in
    the order of the trees: 100 MB took three seconds after a cold boot."""
    until = time.monotonic() + READ_AT_ONCE
    buffer = bytearray(1 << 20)
    with open(path, "rb", buffering=0) as file:
        while time.monotonic() < until:
            if not file.readinto(buffer):
                return True
    return False


def _check_schema(connection: sqlite3.Connection) -> None:
    """SQLite reads the whole schema first, in a time that grows with the square of its size: eight minutes for 70 MB."""
    until = time.monotonic() + _SCHEMA_AT_ONCE
    connection.set_progress_handler(lambda: time.monotonic() > until, 1000)
    try:
        check_ours(connection)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
            raise corrupt(f"its schema takes longer than {_SCHEMA_AT_ONCE:g} s to read") from error
        raise
    finally:
        connection.set_progress_handler(None, 0)


def _read_newest(connection: sqlite3.Connection) -> None:
    if not version_of(connection):
        return
    for table, key in (("runs", "number"), ("events", "seq")):
        connection.execute(f"SELECT * FROM {table} ORDER BY {key} DESC LIMIT 1").fetchall()  # noqa: S608
        try:
            if Reader(connection).last(table, key) > _HIGHEST:
                raise corrupt(f"a {key} in its table {table} is higher than {_HIGHEST}")
        except (TypeError, ValueError) as error:
            raise corrupt(f"its highest {key} is no number") from error


def _check_pages(connection: sqlite3.Connection) -> None:
    found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise corrupt(found)


def configure(connection: sqlite3.Connection) -> None:
    """Sets what the promises rest on. Raises `LedgerError` where the file system cannot do it."""
    if not version_of(connection):
        # only before the first page is written; the free pages of an older file stay in it, for later rows. Said of any
        # other it changes nothing, and wants the write lock: whoever holds that would keep the live runs unsupervised
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise LedgerError(f"its file system does not support WAL (journal mode stays {mode!r})")
    # NORMAL does not fsync at a commit: what was committed survives a crash of the daemon, since it is in the page
    # cache; a power loss may take the last commits, and takes the processes they describe with it
    connection.execute("PRAGMA synchronous = NORMAL")
    # the writer checkpoints after it has answered, so that no admission waits for an fsync
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_KEPT}")


def _allow_steps(connection: sqlite3.Connection) -> None:
    """Rewrites a file of a release that could not make it smaller in steps, if there is little in it.

    A larger one is left as it is: it would take all disk space that is in use a second time, and seconds of a start; what
    is freed in it holds later rows, so it does not grow either."""
    names = ("page_count", "freelist_count", "page_size", "auto_vacuum")
    pages, free, size, steps = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
    if not steps and (pages - free) * size <= _REWRITTEN_AT_ONCE:
        connection.execute("PRAGMA busy_timeout = 0")
        with suppress(sqlite3.OperationalError):  # no space, or somebody has locked it: it is not needed either
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("VACUUM")


def _set_aside(path: Path, error: sqlite3.Error) -> str:
    """Renames the database with its WAL (which SQLite finds by name, so that the pair can still be salvaged)."""
    target = free_name(path, "corrupt")
    path.with_name(f"{path.name}-shm").unlink(missing_ok=True)  # an index into the log, made anew from it
    if _size(wal := _wal(path)):
        wal.rename(_wal(target))
    else:
        wal.unlink(missing_ok=True)
    path.rename(target)
    _unmark(path.with_name(_UNCHECKED))
    return f"the ledger {path} is corrupt ({error}); it was set aside as {target.name}, and a new one was begun"


def beside(path: Path) -> Iterator[Path]:
    """Names of what SQLite finds by name beside a database."""
    return (path.with_name(f"{path.name}{suffix}") for suffix in ("-wal", "-shm", "-journal"))


def _wal(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _size(path: Path) -> int:
    """Bytes; 0 for what is not there. A log without any is left by those who only read."""
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0


def _unmark(mark: Path) -> None:
    with suppress(OSError):  # what cannot be unlinked is not the daemon's; it costs a check at each start
        mark.unlink()


def _mark(mark: Path, text: str = "") -> None:
    # best effort: on a disk that takes nothing, only a start that comes before the check is done does not know of it
    with suppress(OSError), open(create(mark), "w") as file:
        file.write(text)
