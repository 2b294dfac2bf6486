"""Reads the SQLite databases in which programs keep their sessions, while these write to them. For
a thread, as `session_files`.

A database is read where it is: a copy of it at each look would be too much. So its reader is one
that no writer waits for, makes no file, and may do in that thread what the owner may.
"""

import ctypes
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import quote

from msgspec import Struct, field

from ..agents.counters import MAX_LINE, Reading
from ..agents.program import (
    RowMeter,
    SessionDatabase,
    SessionHead,
    SessionPlace,
    SessionRow,
    SessionSearch,
    is_session_id,
    timestamp,
)
from .session_files import MOST_FILES, Begun, FileSearch

QUERY_SECONDS = 2.0
"""Seconds after which a query is broken off. The file is the user's: it may have a view that never
ends."""
MOST_VALUE = 64 << 20
"""Bytes of the largest value that is read. Files that a person has pasted are among them."""
SETTLED = 0.1
"""Seconds after the last change of a file from which on its time tells that nothing has changed
since. The kernel's clock for files has a tick of some milliseconds."""

MOST_TIME = 1 << 47
"""Unix milliseconds of a time that can be: the year 6429."""

_libc = ctypes.CDLL(None)


class _Stamp(Struct, frozen=True):
    """What changes whenever a database is written to: of its file and of its log."""

    files: tuple[tuple[int, int, int], ...]
    changed: float


class FoundDatabase(Struct, frozen=True):
    path: str
    uid: int
    status: os.stat_result

    @property
    def stamp(self) -> _Stamp:
        log = self._log
        found = [self.status, *([log] if log is not None else [])]
        files = tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in found)
        return _Stamp(files, max(each.st_mtime for each in found))

    @property
    def _log(self) -> os.stat_result | None:
        try:
            return os.lstat(f"{self.path}-wal")
        except FileNotFoundError:
            return None

    @contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection that only reads. Raises `OSError`, `sqlite3.Error`."""
        # a database without a log is in no program's use; to open it as one that is would make one
        how = "immutable=1" if self._log is None else "mode=ro&readonly_shm=1"
        uri = f"file:{quote(os.fsencode(self.path))}?{how}"
        until = time.monotonic() + QUERY_SECONDS
        with (
            _rights_of(self.uid),
            closing(sqlite3.connect(uri, uri=True, timeout=0, isolation_level=None)) as connection,
        ):
            self._check()
            connection.text_factory = bytes
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_VALUE)
            connection.set_progress_handler(lambda: time.monotonic() > until, 10_000)
            connection.execute("PRAGMA trusted_schema = OFF")
            yield connection
            self._check()

    def _check(self) -> None:
        """Raise `OSError` if another file is there now: SQLite follows links."""
        if not os.path.samestat(os.stat(self.path), self.status):
            raise OSError(f"{self.path} was replaced")


@contextmanager
def _rights_of(uid: int) -> Iterator[None]:
    """Have this thread open files with the rights of a user."""
    other = os.geteuid() == 0 and uid != 0
    if other:
        _libc.setfsuid(uid)
    try:
        yield
    finally:
        if other:
            _libc.setfsuid(0)


def find_database(place: SessionPlace | None, uid: int) -> FoundDatabase | None:
    """Return the database of a user in a place, if it is there. Raises `OSError`."""
    places = [place] if place is not None else []
    found = FileSearch(uid, 0.0).found(places)
    return next((FoundDatabase(path, uid, os.fstat(file)) for path, file in found), None)


class SessionBegun(NamedTuple):
    """A session of a database."""

    session: str
    parent: str | None
    """The session whose agent has begun it."""
    directory: str
    began: datetime
    changed: datetime


def sessions_in(connection: sqlite3.Connection, database: SessionDatabase) -> list[SessionBegun]:
    """Return the newest sessions. Raises `sqlite3.Error`."""
    rows = connection.execute(database.sessions)
    return [each for row in rows if (each := _session_of(*row)) is not None]


def _session_of(
    session: Any, parent: Any, directory: Any, began: Any, changed: Any
) -> SessionBegun | None:
    """Return what a row says, of which each value may be of any type."""
    if not isinstance(session, bytes) or not isinstance(directory, bytes):
        return None
    name, begun = session.decode(errors="replace"), _time(began)
    if begun is None or not is_session_id(name):
        return None
    above = parent.decode(errors="replace") if isinstance(parent, bytes) else None
    return SessionBegun(name, above, os.fsdecode(directory), begun, _time(changed) or begun)


def _time(milliseconds: Any) -> datetime | None:
    if not isinstance(milliseconds, int) or not 0 <= milliseconds < MOST_TIME:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


class DatabaseStore(Struct):
    """A `Store`: rows in a database."""

    database: SessionDatabase
    uid: int
    since: float
    """What was written before, in seconds since the epoch, is of no interest."""
    written: float = 0.0
    _listed: _Stamp | None = None
    """The database, when its sessions were listed."""
    _followed: tuple[str, _Stamp] | None = None
    """A session, and the database when all of that was read."""
    _sessions: list[SessionBegun] = field(default_factory=list)
    _meters: dict[str, RowMeter] = field(default_factory=dict)

    def begun(self, search: SessionSearch) -> Iterator[Begun]:
        found = find_database(self.database.place(search), self.uid)
        if found is not None and (stamp := found.stamp) != self._listed:
            with found.opened() as connection:
                self._sessions = sessions_in(connection, self.database)
            self._listed = _settled(stamp)
        for each in self._sessions:
            if each.parent is None and each.changed.timestamp() >= self.since:
                head = SessionHead(each.session, each.directory, timestamp(each.began))
                yield Begun(head, each.changed.timestamp())

    def read(self, search: SessionSearch, session: str, until: float) -> bool:
        found = find_database(self.database.place(search), self.uid)
        if found is None or self._followed == (session, stamp := found.stamp):
            return True
        self._followed = None
        with found.opened() as connection:
            self._sessions = sessions_in(connection, self.database)
            for each in self._below(session):
                if not self._advance(connection, each, until):
                    return False
        if (settled := _settled(stamp)) is not None:
            self._followed = session, settled
        return True

    def readings(self, session: str) -> list[Reading]:
        below = self._below(session)
        return [meter.reading for each in below if (meter := self._meters.get(each)) is not None]

    def asked(self, search: SessionSearch, pids: Iterable[int]) -> str | None:  # noqa: ARG002 - one database holds the sessions of all processes
        return None

    def _below(self, session: str) -> list[str]:
        """Return a session, and those that its agent and its subagents have begun."""
        found = {session: None}
        for each in reversed(self._sessions):  # the newest ones come first
            if each.parent in found and len(found) < MOST_FILES:
                found[each.session] = None
        return list(found)

    def _advance(self, connection: sqlite3.Connection, session: str, until: float) -> bool:
        meter = self._meters.get(session)
        if meter is None:
            meter = self._meters[session] = self.database.meter()
        meter.again()
        wanted = {
            "session": session,
            "after": meter.after,
            "since": int(self.since * 1000),
            "most": MAX_LINE,
        }
        for number, part, message, written in connection.execute(self.database.rows, wanted):
            if isinstance(part, bytes) and isinstance(message, bytes):
                meter.take(SessionRow(number, part, message))
            if (at := _time(written)) is not None:
                self.written = max(self.written, min(at.timestamp(), time.time()))
            if time.monotonic() >= until:
                return False
        return True


def _settled(stamp: _Stamp) -> _Stamp | None:
    return stamp if time.time() - stamp.changed >= SETTLED else None
