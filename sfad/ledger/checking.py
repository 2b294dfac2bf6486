"""Whether a ledger is whole.

A file of up to `CHECKED_AT_ONCE` bytes is read to its last page at each start. A larger one, which a machine with 100 000 runs
has, would keep the live runs without a supervisor for that time: after an unclean end `check` reads it later, in a thread.
Until `check` has found it whole, a mark beside the file says that the check is due.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from ..host.private_files import create
from .connections import FILE, log_of, open_reader, size
from .errors import LedgerError, corrupt, is_damage
from .reader import Reader
from .schema import check_ours, version_of

CHECKED_AT_ONCE = 128 * 1024 * 1024
"""Bytes of a file that is checked at each start: 1.2 ms a MB from the page cache, so 0.16 s. 100 000 runs with their events take
100 MB."""

_HIGHEST = 1 << 60
"""Of runs and events. No daemon gave a higher number, and it would leave none for the next."""

_UNCHECKED = "ledger.unchecked"


def check_at_start(path: Path, busy_timeout: float, *, trusted: bool) -> bool:
    """Raise the `sqlite3.Error` that says what is wrong with the file. Return whether `check` is due for the rest of it.

    `trusted`: look at the schema and the newest rows only."""
    bytes_, mark = size(path), path.with_name(_UNCHECKED)
    if bytes_ == 0:
        return False
    unclean = size(log_of(path)) > 0 or mark.exists()
    # read-only: another connection would move the log into a file that is to be salvaged when it is closed
    with closing(open_reader(path.parent, busy_timeout)) as connection:
        try:
            check_ours(connection)
            _read_newest(connection)
        except sqlite3.Error as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_READONLY:
                raise
            # a rollback journal is beside it, which only a connection that writes can read
        else:
            if not trusted and (bytes_ <= CHECKED_AT_ONCE or size(mark)):
                _check_pages(connection)
                _unmark(mark)
                return False
    if trusted or not unclean:
        return False
    _mark(mark)
    return True


def check(directory: Path) -> str | None:
    """Read the whole file. Return what is wrong with it, `None` if nothing is. Raises `sqlite3.Error` if it cannot be read now.

    For a thread: it waits for the disk. The next start sets a damaged file aside."""
    try:
        with closing(open_reader(directory)) as connection:
            _check_pages(connection)
    except sqlite3.Error as error:
        if not is_damage(error):
            raise
        mark_damaged(directory, str(error))
        return str(error)
    _unmark(directory / _UNCHECKED)
    return None


def check_known(directory: Path) -> None:
    """Raise `LedgerError` for a ledger that this build cannot continue. Changes nothing."""
    if not (directory / FILE).exists():
        return
    try:
        with closing(open_reader(directory)) as connection:
            check_ours(connection)
    except (sqlite3.Error, LedgerError) as error:
        raise LedgerError(f"the ledger {directory / FILE} cannot be used: {error}") from error


def mark_damaged(directory: Path, found: str) -> None:
    """Make the next start check the file to its end, whatever its size."""
    _mark(directory / _UNCHECKED, found)


def forget_mark(directory: Path) -> None:
    """Remove the mark: the file that it was about has been set aside."""
    _unmark(directory / _UNCHECKED)


def _read_newest(connection: sqlite3.Connection) -> None:
    if not version_of(connection):
        return
    for table, key in (("runs", "number"), ("events", "seq")):
        connection.execute(f"SELECT * FROM {table} ORDER BY {key} DESC LIMIT 1").fetchall()  # noqa: S608
        try:
            if Reader(connection).last(table, key) > _HIGHEST:
                raise corrupt(f"a {key} in its table {table} is higher than {_HIGHEST}")
        except (TypeError, ValueError) as error:
            raise corrupt(f"its highest {key} is not a number") from error


def _check_pages(connection: sqlite3.Connection) -> None:
    found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise corrupt(found)


def _unmark(mark: Path) -> None:
    with suppress(OSError):  # what cannot be unlinked is not the daemon's; it costs a check at each start
        mark.unlink()


def _mark(mark: Path, text: str = "") -> None:
    # best effort: on a full disk, a start that comes before the check is done does not know that one is due
    with suppress(OSError), open(create(mark), "w") as file:
        file.write(text)
