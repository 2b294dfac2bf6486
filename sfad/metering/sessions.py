"""Finds and reads the session files that agents keep of themselves.

The files belong to the agents: anything may be there, a FIFO, a link, a directory of 100 000 names, a file system whose server
does not answer. So they are looked at in a thread, one for each user at a time, within bounds, and no task waits for a thread for
more than `PATIENCE`. Below the program's own directory no link is followed, and only regular files of the run's user are read.

They are looked at every `INTERVAL` and once more at the end, rather than when inotify tells: adding a watch would wait for the same
file systems, the directories do not exist before the agent's first start, and a look at a file that has not grown is 20 µs.
"""

from __future__ import annotations

import math
import os
import stat
import time
import traceback
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice

import trio

from ..host.threads import in_thread
from ..meters import SESSION_VARIABLES
from ..meters.base import MAX_LINE, Meter, Reading
from ..meters.program import SESSION_ID, FileName, SessionFiles, SessionHead, SessionPlace, SessionSearch, timestamp
from ..protocol.types import RunId

INTERVAL = 1.0
"""Seconds between two looks at a run's session."""
PATIENCE = 1.0
"""Seconds that the end of a run waits for the last look."""
SETTLED = 15.0
"""Seconds after the start of a session from which on a file of another process is no rival: an agent makes its own within 2 s, and
within 10 on a machine with four times as much to do as it can."""
ENTRIES = 10_000
"""Names in directories that one look goes through."""
FILES = 256
"""Files of one session that are read: one, and one for each subagent. Also the files whose beginning one look reads."""
HEAD = 256 << 10
"""Bytes in which a file says whose it is. Codex puts its instructions, 22 KB, before the first newline."""
PIECE = 64 << 10
SLICE = 0.1
"""Seconds of reading in one look: 50 MB of what agents write."""
REST = 4
"""Times as long as a look has kept a CPU busy its user's next look waits: whatever agents write, that takes a fifth of a core."""


class TooMany(Exception):
    """More than one session may be the run's."""


@dataclass(slots=True)
class _File:
    meter: Meter
    head: SessionHead
    inode: int
    offset: int = 0


@dataclass(slots=True)
class Session:
    """The session files of one attempt. All but `names` belongs to the thread that looks."""

    files: SessionFiles
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    uid: int
    began: datetime
    names: str | None = None
    """The id of its session, where its command, its stream or its file tells."""
    over: bool = False
    """Nothing of the attempt is alive any more."""
    succeeded: bool = False
    """Its main process exited with 0."""
    readings: tuple[Reading, ...] = ()
    """One for each file."""
    spent: float = 0.0
    """Seconds for which the last look has kept a CPU busy."""
    _read: dict[str, _File] = field(default_factory=dict)
    _entries: int = 0

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
        self._entries = 0
        session = self.names or self._alone(taken)
        if session is None:
            return True
        whole = True
        for path, descriptor in islice(self._candidates(session), FILES):
            head = self._head(path, descriptor)
            if head is not None and head.session == session:
                whole = self._advance(path, descriptor, head, until) and whole
        read = [each.meter.reading for each in self._read.values() if each.head.session == session]
        # between two looks the agent may have begun another call
        final = whole and self.over and (self.succeeded or self.files.tells_end)
        self.readings = tuple(_merged(read, final=final))
        return whole

    def _alone(self, taken: Container[str]) -> str | None:
        """The session that must be the run's, as no other was begun in its directory since its start."""
        since, project = timestamp(self.began), self.files.project(os.path.realpath(self.cwd))
        resumes = self.files.resumes(self.argv)
        found: dict[str, str] = {}
        for number, (path, descriptor) in enumerate(self._candidates(None)):
            if number >= FILES:
                raise TooMany
            head = self._head(path, descriptor)
            if head is None or head.project != project or head.session in taken:
                continue
            if resumes or head.began >= since:
                found.setdefault(head.session, head.began)
            if len(found) > 1:
                raise TooMany
        settled = timestamp(datetime.fromtimestamp(time.time() - SETTLED, UTC))
        session = next(iter(found), None)
        if session is not None and (self.over or found[session] <= settled):
            self.names = session if SESSION_ID.fullmatch(session) else None
        return self.names

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
            file = self._read[path] = _File(self.files.meter(timestamp(self.began)), head, status.st_ino)
        while data := _lines_at(descriptor, file.offset):
            file.meter.feed(data)
            file.offset += len(data)
            if time.monotonic() >= until:
                return False
        return True

    def _candidates(self, session: str | None) -> Iterator[tuple[str, int]]:
        """Files that may be the session's, open for reading: regular, the user's, written since the attempt began."""
        done: set[str] = set()
        for place in self.files.places(SessionSearch(self.env, os.path.realpath(self.cwd), self.began, session)):
            for path, descriptor in self._below(place):
                if path not in done:
                    done.add(path)
                    yield path, descriptor

    def _below(self, place: SessionPlace) -> Iterator[tuple[str, int]]:
        if not os.path.isabs(place.root):
            return
        try:
            root = os.open(place.root, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return
        with _closing(root):
            yield from self._walk(root, place.root, place.names)

    def _walk(self, directory: int, above: str, names: Sequence[FileName]) -> Iterator[tuple[str, int]]:
        for name in self._matching(directory, names[0]):
            path = f"{above}/{name}"
            descriptor = self._opened(name, directory) if len(names) == 1 else _directory(name, directory)
            if descriptor is None:
                continue
            with _closing(descriptor):
                if len(names) == 1:
                    yield path, descriptor
                else:
                    yield from self._walk(descriptor, path, names[1:])

    def _matching(self, directory: int, name: FileName) -> list[str]:
        if isinstance(name, str):
            return [name]
        found = []
        with os.scandir(directory) as entries:
            for entry in entries:
                self._entries += 1
                if self._entries > ENTRIES:
                    break
                if name.fullmatch(entry.name):
                    found.append(entry.name)
        return sorted(found, reverse=True)

    def _opened(self, name: str, directory: int) -> int | None:
        """A regular file of the user that was written to since the attempt began."""
        try:
            # a device is not even opened: that alone may have an effect
            handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        except OSError:
            return None
        with _closing(handle):
            status = os.fstat(handle)
            ours = stat.S_ISREG(status.st_mode) and status.st_uid == self.uid
            if not ours or status.st_mtime < self.began.timestamp():
                return None
            with suppress(OSError):
                return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        return None


def _lines_at(descriptor: int, offset: int) -> bytes:
    """The lines that begin at `offset`: those of a piece, else one, else the beginning of one that is too long for a meter. A line
    that is being written is left in the file: meters of 256 files would keep 256 MB of such."""
    for size in (PIECE, MAX_LINE + 1):
        data = os.pread(descriptor, size, offset)
        if whole := data.rfind(b"\n") + 1:
            return data[:whole]
        if len(data) < size:
            return b""
    return data


def _directory(name: str, above: int) -> int | None:
    with suppress(OSError):
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=above)
    return None


@contextmanager
def _closing(descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(descriptor)


def _merged(readings: list[Reading], *, final: bool) -> Iterator[Reading]:
    """Copies, without tools. Where one file tells the cost of all, the others' tokens are in that."""
    told = any(reading.cost_usd is not None for reading in readings)
    for reading in readings:
        covers = told and reading.cost_usd is None
        cost = 0.0 if covers else reading.cost_usd
        partial = reading.partial or not final
        yield replace(reading, models=dict(reading.models), uncovered={}, tools=[], cost_usd=cost, partial=partial)


def environment_of(env: Sequence[bytes]) -> dict[str, str]:
    """Return what a run's environment says of where session files are."""
    pairs = (os.fsdecode(item).partition("=") for item in env)
    return {key: value for key, _, value in pairs if key in SESSION_VARIABLES and value}


class Sessions:
    """The sessions of all runs. `seen(run, readings)`: what the files of the run's attempts tell has changed, a reading for each
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
        """Of earlier attempts."""
        self._wanted: dict[int, dict[RunId, list[trio.Event]]] = {}
        """By uid: who is to be looked at, and who waits for that."""
        self._looking: dict[int, float] = {}
        """By uid: since when a thread looks."""
        self._threads = trio.CapacityLimiter(math.inf)  # one for each user is the bound
        self._nursery: trio.Nursery

    def __contains__(self, run: RunId) -> bool:
        return run in self._runs

    @property
    def waiting(self) -> int:
        """Threads that have waited for a file system for longer than `PATIENCE`, and may do so for ever."""
        now = trio.current_time()
        return sum(now - since >= PATIENCE for since in self._looking.values())

    def begin(self, run: RunId, session: Session, before: tuple[Reading, ...] = ()) -> None:
        """Begin an attempt, or go on with one. `before`: what the sessions of earlier attempts told. An id that no agent would give
        is not looked for: a client chose it, and it goes into file names and patterns."""
        if session.names is not None and not SESSION_ID.fullmatch(session.names):
            session.names = None
        self._before[run] = before
        self._runs[run] = session

    def told(self, run: RunId) -> tuple[Reading, ...]:
        """Return what the sessions of all attempts have told so far."""
        session = self._runs.get(run)
        return self._before.get(run, ()) + (session.readings if session is not None else ())

    def name(self, run: RunId, session: str) -> None:
        """Take note of what the stream calls the session."""
        if run in self._runs and SESSION_ID.fullmatch(session):
            self._runs[run].names = session

    def forget(self, run: RunId) -> None:
        """The run is over."""
        self._runs.pop(run, None)
        self._before.pop(run, None)

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look at every session now and then, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            while True:
                await trio.sleep(INTERVAL)
                for run, session in self._runs.items():
                    if run not in self._wanted.get(session.uid, ()):
                        self._want(run)

    async def catch_up(self, run: RunId, *, succeeded: bool = False) -> None:
        """Read what the session of a run, whose main process has ended, says by now. Give up after `PATIENCE`, and at once for a
        user whose file system does not answer. `succeeded`: the process is known to have exited with 0."""
        session = self._runs.get(run)
        if session is None or trio.current_time() - self._looking.get(session.uid, math.inf) > PATIENCE:
            return
        session.over, session.succeeded = True, session.succeeded or succeeded
        with trio.move_on_after(PATIENCE):
            await self._want(run).wait()

    def _want(self, run: RunId) -> trio.Event:
        uid = self._runs[run].uid
        done = trio.Event()
        self._wanted.setdefault(uid, {}).setdefault(run, []).append(done)
        if uid not in self._looking:
            self._looking[uid] = trio.current_time()
            self._nursery.start_soon(self._look_for, uid)
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
        """Whether all was read that can be."""
        session = self._runs.get(run)
        if session is None:
            return True
        whole, before = True, session.readings
        others = (other for other in self._runs.values() if other is not session and other.uid == session.uid)
        taken = {other.names for other in others if other.names is not None}
        try:
            whole = await in_thread(session.look, taken, abandon=True, limiter=self._threads)
            if not session.over:
                await trio.sleep(REST * session.spent)
        except TooMany:
            self._lose(run, session)
        except OSError:
            pass  # it is looked at again soon; no thread may have been started either
        except Exception:  # noqa: BLE001 - a bug in a meter must not leave every tree without a supervisor
            self._runs.pop(run, None)
            self._trouble(f"run {run}: its session is not read any more: internal error:\n{traceback.format_exc()}")
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
