"""Finds the session files of one attempt, and reads them, in a thread."""

import os
import stat
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import InitVar, dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice

from ..agents.counters import MAX_LINE, Meter, Reading
from ..agents.program import SESSION_ID, FileName, SessionFiles, SessionHead, SessionPlace, SessionSearch, timestamp

# ---- Searches for session files. They belong to the agent: any name may be there as a FIFO, a link, or a directory of 100 000
# names.
#
# So a search is bounded, no link below the program's own directory is followed, and only regular files of the run's user are
# opened.


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
        """Yield the path of each file, and a descriptor that is open until the next one. Raises `OSError`."""
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

    def _walk(self, directory: int, above: str, names: Sequence[FileName]) -> Iterator[tuple[str, int]]:
        name, *below = names
        for entry in self._matching(directory, name):
            path = f"{above}/{entry}"
            descriptor = _opened(entry, _DIRECTORY | os.O_NOFOLLOW, directory) if below else self._file(entry, directory)
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
            ours = stat.S_ISREG(status.st_mode) and status.st_uid == self._uid and status.st_mtime >= self._since
            return _opened(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC) if ours else None


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


# ---- Reads the session files of one attempt, in a thread


CERTAIN_AFTER = 15.0
"""Seconds after the start of a session from which on a file of another process is not mistaken for the run's: an agent creates
its own within 2 s, and within 10 s on a machine with four times as much to do as it can. Until then the session counts as well,
because an agent in a terminal may spend several times its limit meanwhile, but a second one makes it unknown."""
MOST_FILES = 256
"""Files of one session that are read: one, and one for each subagent. Also the files whose beginning one look reads."""
OWNER_WITHIN = 256 << 10
"""Bytes in which a file says whose it is. Codex puts its instructions, 22 KB, before the first newline."""
READ_AT_ONCE = 64 << 10
LOOK_SECONDS = 0.1
"""Seconds of reading in one look: 50 MB of what agents write."""


class TooMany(Exception):
    """More than one session may be the run's."""


@dataclass(slots=True)
class _SessionFile:
    meter: Meter
    head: SessionHead
    inode: int
    offset: int = 0


@dataclass(slots=True, eq=False)
class Session:
    """The session files of one attempt. Its session is known by the id that the command, the stream or a file tells."""

    files: SessionFiles
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    uid: int
    began: datetime
    given: InitVar[str | None] = None
    """The id of the session in the command."""
    session_id: str | None = None
    guess: str | None = None
    """The session that counts until its id is certain."""
    ended: bool = False
    readings: tuple[Reading, ...] = ()
    """One for each file."""
    process: tuple[int, int] | None = None
    """The pid and the start of an agent program that the run has started itself; `None`: it is the run's own program."""
    guesses: bool = True
    """A session counts before it is certain that it is the run's. Not where calls that only a session file tells of end the run."""
    contested: bool = False
    """Another run may have begun the same session, and has found none of its own yet."""
    siblings: int = 1
    """So many programs of the run may have begun the new sessions of the directory, this one among them."""
    spent: float = 0.0
    """Seconds for which the last look has kept a CPU busy."""
    _succeeded: bool = False
    _read: dict[str, _SessionFile] = field(default_factory=dict)

    def __post_init__(self, given: str | None) -> None:
        self.name(given or "")

    def name(self, session_id: str) -> None:
        """Note the id of the session. An id that no agent would give is ignored: a client may have chosen it, and it goes into file
        names and patterns."""
        if SESSION_ID.fullmatch(session_id):
            self.session_id = session_id

    def end(self, *, succeeded: bool) -> None:
        self.ended, self._succeeded = True, self._succeeded or succeeded

    def look(self, taken: Container[str]) -> bool:
        """Read what has been written. Return whether that was all. `taken`: ids of other runs' sessions. Raises `OSError`, and
        `TooMany`."""
        begun = time.thread_time()
        try:
            return self._look(taken)
        finally:
            self.spent = time.thread_time() - begun

    def _look(self, taken: Container[str]) -> bool:
        until = time.monotonic() + LOOK_SECONDS
        session = self.session_id or self._only_session(taken)
        if session is None:
            return True
        whole = True
        for path, descriptor in islice(self._candidates(session), MOST_FILES):
            head = self._head(path, descriptor)
            if head is not None and head.session == session:
                whole = self._advance(path, descriptor, head, until) and whole
        read = [each.meter.reading for each in self._read.values() if each.head.session == session]
        # between two looks the agent may have begun another call
        # of a call that failed or was broken off no file tells what was billed
        final = whole and self.ended and self._succeeded
        self.readings = tuple(_merged(read, final=final))
        return whole

    def _only_session(self, taken: Container[str]) -> str | None:
        """Return the session that is the run's, because no other was begun in its directory since its start."""
        since, project = timestamp(self.began), self.files.project(os.path.realpath(self.cwd))
        resumes = self.files.resumes(self.argv)
        found: dict[str, str] = {}
        for number, (path, descriptor) in enumerate(self._candidates(None)):
            if number >= MOST_FILES:
                raise TooMany
            head = self._head(path, descriptor)
            if head is None or head.project != project or head.session in taken:
                continue
            if resumes or head.began >= since:
                found.setdefault(head.session, head.began)
            if len(found) > self.siblings:
                raise TooMany
        certain = timestamp(datetime.fromtimestamp(time.time() - CERTAIN_AFTER, UTC))
        session = min(found, key=found.__getitem__, default=None)
        if session is None or self.contested:
            return None
        if self.ended or found[session] <= certain:
            self.name(session)
        elif not self.guesses:
            return None
        self.guess = session
        return session

    def _candidates(self, session: str | None) -> Iterator[tuple[str, int]]:
        search = SessionSearch(self.env, os.path.realpath(self.cwd), self.began, session)
        return FileSearch(self.uid, self.began.timestamp()).found(self.files.places(search))

    def _head(self, path: str, descriptor: int) -> SessionHead | None:
        known = self._read.get(path)
        if known is not None and known.inode == os.fstat(descriptor).st_ino:
            return known.head
        return self.files.head(os.pread(descriptor, OWNER_WITHIN, 0))

    def _advance(self, path: str, descriptor: int, head: SessionHead, until: float) -> bool:
        status = os.fstat(descriptor)
        file = self._read.get(path)
        if file is None or file.inode != status.st_ino or status.st_size < file.offset:
            if len(self._read) >= MOST_FILES:
                return True
            file = self._read[path] = _SessionFile(self.files.meter(timestamp(self.began)), head, status.st_ino)
        while data := _lines_at(descriptor, file.offset):
            file.meter.feed(data)
            file.offset += len(data)
            if time.monotonic() >= until:
                return False
        return True


def _lines_at(descriptor: int, offset: int) -> bytes:
    """Return the lines that begin at `offset`: those of a piece, else one line, else the beginning of a line that is too long for a
    meter. A line that is being written stays in the file, because the meters of 256 files would keep 256 MB of such lines."""
    for size in (READ_AT_ONCE, MAX_LINE + 1):
        data = os.pread(descriptor, size, offset)
        if whole := data.rfind(b"\n") + 1:
            return data[:whole]
        if len(data) < size:
            return b""
    return data


def _merged(readings: list[Reading], *, final: bool) -> Iterator[Reading]:
    """Yield copies without tools. If one file tells the cost of the whole session, it includes the tokens of the other files."""
    told = any(reading.cost_usd is not None for reading in readings)
    for reading in readings:
        cost = 0.0 if told and reading.cost_usd is None else reading.cost_usd
        partial = reading.partial or not final
        yield replace(reading, models=dict(reading.models), uncovered={}, tools=[], cost_usd=cost, partial=partial)
