"""Finds and reads session files. All of this is for a thread: their file system may have a server
that does not answer."""

import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import NamedTuple, Protocol

import msgspec
from msgspec import Struct, field

from ..agents.counters import MAX_LINE, Meter, Reading
from ..agents.program import (
    FileName,
    SessionFiles,
    SessionHead,
    SessionPlace,
    SessionSearch,
    is_session_id,
    timestamp,
)
from ..processes import observed

# ---- Searches for session files. They belong to the agent: any name may be there as a FIFO, a
# link, or a directory of 100 000
# names.
#
# So a search is bounded, no link below the program's own directory is followed, and only regular
# files of the run's user are opened.


MOST_ENTRIES = 10_000
"""Names in directories that one search reads."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC


class FileSearch:
    """One search for files of a user that were written since a time (seconds since the epoch)."""

    def __init__(self, uid: int, since: float) -> None:
        self.entries = 0
        self._uid = uid
        self._since = since

    def found(self, places: Sequence[SessionPlace]) -> Iterator[tuple[str, int]]:
        """Yield the path of each file, and a descriptor that is open until the next one. Raises
        `OSError`."""
        done: set[str] = set()
        for place in places:
            root = _opened(place.root, _DIRECTORY) if os.path.isabs(place.root) else None
            if root is None:
                continue
            with _closing(root):
                for path, descriptor in self._walk(root, place.root, place.names):
                    if path not in done:
                        done.add(path)
                        yield path, descriptor

    def _walk(
        self, directory: int, above: str, names: Sequence[FileName]
    ) -> Iterator[tuple[str, int]]:
        name, *below = names
        for entry in self._matching(directory, name):
            path = f"{above}/{entry}"
            descriptor = (
                _opened(entry, _DIRECTORY | os.O_NOFOLLOW, directory)
                if below
                else self._file(entry, directory)
            )
            if descriptor is None:
                continue
            with _closing(descriptor):
                if below:
                    yield from self._walk(descriptor, path, below)
                else:
                    yield path, descriptor

    def _matching(self, directory: int, name: FileName) -> list[str]:
        if isinstance(name, str):
            return [name]
        found = []
        with os.scandir(directory) as entries:
            for entry in entries:
                self.entries += 1
                if self.entries > MOST_ENTRIES:
                    break
                if name.fullmatch(entry.name):
                    found.append(entry.name)
        return sorted(found, reverse=True)

    def _file(self, name: str, directory: int) -> int | None:
        # first without opening it for reading: opening a device may have an effect
        handle = _opened(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, directory)
        if handle is None:
            return None
        with _closing(handle):
            status = os.fstat(handle)
            ours = (
                stat.S_ISREG(status.st_mode)
                and status.st_uid == self._uid
                and status.st_mtime >= self._since
            )
            return (
                _opened(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                if ours
                else None
            )


def _opened(path: str, flags: int, directory: int | None = None) -> int | None:
    with suppress(OSError):
        return os.open(path, flags, dir_fd=directory)
    return None


@contextmanager
def _closing(descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(descriptor)


# ---- What keeps the sessions of a program


MOST_FILES = 256
"""Files of one session that are read: one, and one for each subagent. Also the files whose
beginning one look reads."""
OWNER_WITHIN = 256 << 10
"""Bytes in which a file says whose it is. Codex puts its instructions, 22 KB, before the first
newline."""
READ_AT_ONCE = 64 << 10


class TooMany(Exception):
    """More than one session may be the run's."""


class Begun(NamedTuple):
    """A session that may be the run's."""

    head: SessionHead
    written: float
    """When it was written last, in seconds since the epoch."""


class Store(Protocol):
    """The sessions of a program, as an attempt sees them."""

    written: float
    """When something of a session that was read was written last, in seconds since the epoch."""

    def begun(self, search: SessionSearch) -> Iterator[Begun]:
        """Yield the sessions that there are. Raises `OSError`, `sqlite3.Error`, `TooMany`."""

    def read(self, search: SessionSearch, session: str, until: float) -> bool:
        """Read on in a session, until `time.monotonic()` is `until`. Return whether that was all.
        Raises `OSError`, `sqlite3.Error`."""

    def readings(self, session: str) -> list[Reading]:
        """Return what was read of a session: a reading for itself, and one for each subagent."""

    def asked(self, search: SessionSearch, pids: Iterable[int]) -> str | None:
        """Return the session that processes tell, or keep open."""


# ---- Files


class _SessionFile(Struct):
    meter: Meter
    head: SessionHead
    inode: int
    offset: int = 0


class _Told(msgspec.Struct):
    """What a process tells of its session."""

    sessionId: str = ""  # noqa: N815 - Claude Code's word


class FileStore(Struct):
    """A file for each session, and for each subagent."""

    files: SessionFiles
    uid: int
    since: float
    """Files that were not written since then, in seconds since the epoch, are of no interest."""
    written: float = 0.0
    _read: dict[str, _SessionFile] = field(default_factory=dict)

    def begun(self, search: SessionSearch) -> Iterator[Begun]:
        for number, (path, descriptor) in enumerate(self._candidates(search)):
            if number >= MOST_FILES:
                raise TooMany
            head = self._head(path, descriptor)
            if head is not None:
                yield Begun(head, os.fstat(descriptor).st_mtime)

    def read(self, search: SessionSearch, session: str, until: float) -> bool:
        whole = True
        for path, descriptor in islice(self._candidates(search), MOST_FILES):
            head = self._head(path, descriptor)
            if head is not None and head.session == session:
                self.written = max(self.written, os.fstat(descriptor).st_mtime)
                whole = self._advance(search, path, descriptor, head, until) and whole
        return whole

    def readings(self, session: str) -> list[Reading]:
        return [each.meter.reading for each in self._read.values() if each.head.session == session]

    def asked(self, search: SessionSearch, pids: Iterable[int]) -> str | None:
        """Return the session that processes have: Claude Code tells it, Codex keeps the file
        open."""
        told = ""
        for pid in pids:
            for _, descriptor in self._search().found(self.files.process_places(search, pid)):
                with suppress(msgspec.MsgspecError):
                    data = os.pread(descriptor, OWNER_WITHIN, 0)
                    told = msgspec.json.decode(data, type=_Told).sessionId or told
        if is_session_id(told):
            return told
        processes = [one for pid in pids if (one := observed.find(pid)) is not None]
        held = {file.path for one in processes for file in observed.ask(one.open_files, [])}
        found = None
        for path, descriptor in islice(self._candidates(search), MOST_FILES if held else 0):
            head = self._head(path, descriptor) if os.path.realpath(path) in held else None
            found = head.session if head is not None else found
        return found

    def _search(self) -> FileSearch:
        return FileSearch(self.uid, self.since)

    def _candidates(self, search: SessionSearch) -> Iterator[tuple[str, int]]:
        return self._search().found(self.files.places(search))

    def _head(self, path: str, descriptor: int) -> SessionHead | None:
        known = self._read.get(path)
        if known is not None and known.inode == os.fstat(descriptor).st_ino:
            return known.head
        return self.files.head(os.pread(descriptor, OWNER_WITHIN, 0))

    def _advance(
        self, search: SessionSearch, path: str, descriptor: int, head: SessionHead, until: float
    ) -> bool:
        status = os.fstat(descriptor)
        file = self._read.get(path)
        if file is None or file.inode != status.st_ino or status.st_size < file.offset:
            if len(self._read) >= MOST_FILES:
                return True
            file = self._read[path] = _SessionFile(
                self.files.meter(timestamp(search.since)), head, status.st_ino
            )
        while data := _lines_at(descriptor, file.offset):
            file.meter.feed(data)
            file.offset += len(data)
            if time.monotonic() >= until:
                return False
        return True


def _lines_at(descriptor: int, offset: int) -> bytes:
    """Return the lines that begin at `offset`: those of a piece, else one line, else the beginning
    of a line that is too long for a meter. A line that is being written stays in the file, because
    the meters of 256 files would keep 256 MB of such lines."""
    for size in (READ_AT_ONCE, MAX_LINE + 1):
        data = os.pread(descriptor, size, offset)
        if whole := data.rfind(b"\n") + 1:
            return data[:whole]
        if len(data) < size:
            return b""
    return data
