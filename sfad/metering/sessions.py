"""Finds and reads the session files of all runs.

Their file system may have a server that does not answer. So files are looked at in a thread, one for each user at a time, and no
task waits for a thread for more than `PATIENCE`.

They are looked at every `INTERVAL` and once more at the end, not when inotify tells: adding a watch would wait for the same file
systems, the directories do not exist before the agent's first start, and a look at a file that has not grown is 20 µs.

The files belong to the agent: any name may be there as a FIFO, a link, or a directory of 100 000 names. So a search is bounded,
no link below the program's own directory is followed, and only regular files of the run's user are opened.
"""

import math
import os
import stat
import time
import traceback
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice

import trio

from ..host.tasks import in_thread
from ..meters.base import MAX_LINE, Meter, Reading
from ..meters.program import SESSION_ID, FileName, SessionFiles, SessionHead, SessionPlace, SessionSearch, timestamp
from ..protocol.types import RunId

ENTRIES = 10_000
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
                if self.entries > ENTRIES:
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


SETTLED = 15.0
"""Seconds after the start of a session from which on a file of another process is not mistaken for the run's: an agent creates
its own within 2 s, and within 10 s on a machine with four times as much to do as it can."""
FILES = 256
"""Files of one session that are read: one, and one for each subagent. Also the files whose beginning one look reads."""
HEAD = 256 << 10
"""Bytes in which a file says whose it is. Codex puts its instructions, 22 KB, before the first newline."""
PIECE = 64 << 10
SLICE = 0.1
"""Seconds of reading in one look: 50 MB of what agents write."""


class TooMany(Exception):
    """More than one session may be the run's."""


@dataclass(slots=True)
class _SessionFile:
    meter: Meter
    head: SessionHead
    inode: int
    offset: int = 0


class Session:
    """The session files of one attempt. Its session is known by the id that the command, the stream or a file tells."""

    def __init__(
        self,
        files: SessionFiles,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        uid: int,
        began: datetime,
        session_id: str | None = None,
    ) -> None:
        self.files = files
        self.cwd = cwd
        self.uid = uid
        self.session_id: str | None = None
        self.ended = False
        self.readings: tuple[Reading, ...] = ()
        """One for each file."""
        self.spent = 0.0
        """Seconds for which the last look has kept a CPU busy."""
        self._succeeded = False
        self._resumes = files.resumes(argv)
        self._env = env
        self._began = began
        self._read: dict[str, _SessionFile] = {}
        self._search = FileSearch(uid, began.timestamp())
        self.name(session_id or "")

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
        until = time.monotonic() + SLICE
        session = self.session_id or self._only_session(taken)
        if session is None:
            return True
        whole = True
        for path, descriptor in islice(self._candidates(session), FILES):
            head = self._head(path, descriptor)
            if head is not None and head.session == session:
                whole = self._advance(path, descriptor, head, until) and whole
        read = [each.meter.reading for each in self._read.values() if each.head.session == session]
        # between two looks the agent may have begun another call
        final = whole and self.ended and (self._succeeded or self.files.tells_end)
        self.readings = tuple(_merged(read, final=final))
        return whole

    def _only_session(self, taken: Container[str]) -> str | None:
        """Return the session that must be the run's, because no other was begun in its directory since its start."""
        since, project = timestamp(self._began), self.files.project(os.path.realpath(self.cwd))
        found: dict[str, str] = {}
        for number, (path, descriptor) in enumerate(self._candidates(None)):
            if number >= FILES:
                raise TooMany
            head = self._head(path, descriptor)
            if head is None or head.project != project or head.session in taken:
                continue
            if self._resumes or head.began >= since:
                found.setdefault(head.session, head.began)
            if len(found) > 1:
                raise TooMany
        settled = timestamp(datetime.fromtimestamp(time.time() - SETTLED, UTC))
        session = next(iter(found), None)
        if session is not None and (self.ended or found[session] <= settled):
            self.name(session)
        return self.session_id

    def _candidates(self, session: str | None) -> Iterator[tuple[str, int]]:
        search = SessionSearch(self._env, os.path.realpath(self.cwd), self._began, session)
        self._search = FileSearch(self.uid, self._began.timestamp())
        return self._search.found(self.files.places(search))

    def _head(self, path: str, descriptor: int) -> SessionHead | None:
        known = self._read.get(path)
        if known is not None and known.inode == os.fstat(descriptor).st_ino:
            return known.head
        return self.files.head(os.pread(descriptor, HEAD, 0))

    def _advance(self, path: str, descriptor: int, head: SessionHead, until: float) -> bool:
        status = os.fstat(descriptor)
        file = self._read.get(path)
        if file is None or file.inode != status.st_ino or status.st_size < file.offset:
            if len(self._read) >= FILES:
                return True
            file = self._read[path] = _SessionFile(self.files.meter(timestamp(self._began)), head, status.st_ino)
        while data := _lines_at(descriptor, file.offset):
            file.meter.feed(data)
            file.offset += len(data)
            if time.monotonic() >= until:
                return False
        return True


def _lines_at(descriptor: int, offset: int) -> bytes:
    """Return the lines that begin at `offset`: those of a piece, else one line, else the beginning of a line that is too long for a
    meter. A line that is being written stays in the file, because the meters of 256 files would keep 256 MB of such lines."""
    for size in (PIECE, MAX_LINE + 1):
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


INTERVAL = 1.0
"""Seconds between two looks at a run's session."""
PATIENCE = 1.0
"""Seconds that the end of a run waits for the last look."""
REST = 4
"""How long the next look of a user waits, in multiples of the CPU time of the last look: whatever agents write, looking takes a
fifth of a core."""


class Sessions:
    """The sessions of all runs. `seen(run, readings)`: what the files of the run's attempts tell has changed; a reading for each
    file. `lost(run, message)`: the session cannot be told from another."""

    def __init__(
        self,
        *,
        seen: Callable[[RunId, tuple[Reading, ...]], None],
        lost: Callable[[RunId, str], None],
        trouble: Callable[[str], None],
    ) -> None:
        self._seen = seen
        self._lost = lost
        self._trouble = trouble
        self._runs: dict[RunId, Session] = {}
        self._before: dict[RunId, tuple[Reading, ...]] = {}
        self._wanted: dict[int, dict[RunId, list[trio.Event]]] = {}
        """By uid: the runs to look at, and the events to set then."""
        self._looking: dict[int, float] = {}
        """By uid: the time since when a thread looks."""
        self._threads = trio.CapacityLimiter(math.inf)  # one for each user is the bound
        self._to_look, self._users = trio.open_memory_channel[int](math.inf)
        """Users for whom a task must begin to look."""

    def __contains__(self, run: RunId) -> bool:
        return run in self._runs

    @property
    def waiting(self) -> int:
        """The number of threads that have waited for a file system for longer than `PATIENCE`, and may never return."""
        now = trio.current_time()
        return sum(now - since >= PATIENCE for since in self._looking.values())

    def begin(self, run: RunId, session: Session, before: tuple[Reading, ...] = ()) -> None:
        """Begin an attempt, or continue with one. `before`: what the sessions of earlier attempts told."""
        self._before[run] = before
        self._runs[run] = session

    def told(self, run: RunId) -> tuple[Reading, ...]:
        session = self._runs.get(run)
        return self._before.get(run, ()) + (session.readings if session is not None else ())

    def name(self, run: RunId, session: str) -> None:
        if run in self._runs:
            self._runs[run].name(session)

    def forget(self, run: RunId) -> None:
        self._runs.pop(run, None)
        self._before.pop(run, None)

    async def serve(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._want_all)
            async for uid in self._users:
                nursery.start_soon(self._look_for, uid)

    async def _want_all(self) -> None:
        while True:
            await trio.sleep(INTERVAL)
            for run, session in self._runs.items():
                if run not in self._wanted.get(session.uid, ()):
                    self._want(run)

    async def catch_up(self, run: RunId, *, succeeded: bool = False) -> None:
        """Read what the session of a run says by now; its main process has ended. Give up after `PATIENCE`, and at once if the file
        system of its user does not answer. `succeeded`: the process is known to have exited with 0."""
        session = self._runs.get(run)
        if session is None or trio.current_time() - self._looking.get(session.uid, math.inf) > PATIENCE:
            return
        session.end(succeeded=succeeded)
        with trio.move_on_after(PATIENCE):
            await self._want(run).wait()

    def _want(self, run: RunId) -> trio.Event:
        uid = self._runs[run].uid
        done = trio.Event()
        self._wanted.setdefault(uid, {}).setdefault(run, []).append(done)
        if uid not in self._looking:
            self._looking[uid] = trio.current_time()
            self._to_look.send_nowait(uid)
        return done

    async def _look_for(self, uid: int) -> None:
        wanted = self._wanted[uid]
        try:
            while wanted:
                run = next(iter(wanted))
                waiting = wanted.pop(run)
                self._looking[uid] = trio.current_time()
                if await self._look(run):
                    for done in waiting:
                        done.set()
                else:
                    wanted[run] = waiting + wanted.get(run, [])
        finally:
            del self._looking[uid]

    async def _look(self, run: RunId) -> bool:
        session = self._runs.get(run)
        if session is None:
            return True
        whole, before = True, session.readings
        others = (other for other in self._runs.values() if other is not session and other.uid == session.uid)
        taken = {other.session_id for other in others if other.session_id is not None}
        try:
            whole = await in_thread(session.look, taken, abandon=True, limiter=self._threads)
            if not session.ended:
                await trio.sleep(REST * session.spent)
        except TooMany:
            self._lose(run, session)
        except OSError:
            pass  # it is looked at again soon; perhaps no thread could be started
        except Exception:  # noqa: BLE001 - a bug in a meter must not leave every tree without a supervisor
            self._runs.pop(run, None)
            self._trouble(f"run {run}: its session is no longer read: internal error:\n{traceback.format_exc()}")
        if session.readings != before and self._runs.get(run) is session:
            self._seen(run, self.told(run))
        return whole

    def _lose(self, run: RunId, session: Session) -> None:
        if self._runs.get(run) is session:
            del self._runs[run]
            self._lost(
                run,
                f"what the run uses is not read from its {session.files.program} session: several sessions began in {session.cwd} "
                "at about that time, and nothing tells which is the run's. Have it print JSON events, or name the session in the "
                "command, as claude --session-id does",
            )
