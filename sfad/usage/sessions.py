"""Has the sessions that the programs of runs keep read in threads.

Their file system may have a server that does not answer. So there is one thread for each user at a
time, and no task waits for a thread for more than `LAST_LOOK_WAIT`.

Files are looked at every `LOOK_EVERY` and once more at the end, not when inotify tells: adding a
watch would wait for the same file systems, the directories do not exist before the agent's first
start, and a look at a file that has not grown is 20 µs.
"""

import math
import os
import sqlite3
import time
import traceback
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain

import psutil
import trio
from msgspec import Struct, field
from msgspec.structs import replace

from ..agents.counters import Reading
from ..agents.program import (
    AgentSessions,
    SessionDatabase,
    SessionFiles,
    SessionSearch,
    is_session_id,
    timestamp,
)
from ..core.events import AgentProcess
from ..core.state.naming import agent_of
from ..host.tasks import in_thread
from ..processes import kernel, observed
from ..protocol.types import RunId
from .session_database import DatabaseStore
from .session_files import FileStore, Store, TooMany

# ---- Reads the session of one attempt, in a thread


CERTAIN_AFTER = 15.0
"""Seconds after the start of a session from which on a file of another process is not mistaken for
the run's: an agent creates its own within 2 s, and within 10 s on a machine with four times as much
to do as it can. Until then the session counts as well, because an agent in a terminal may spend
several times its limit meanwhile, but a second one makes it unknown."""
LOOK_SECONDS = 0.1
"""Seconds of reading in one look: 50 MB of what agents write."""


class Session(Struct, eq=False, dict=True):
    """The session of one attempt. It is known by the id that the command, the stream or a file
    tells."""

    files: AgentSessions
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    uid: int
    began: datetime
    given: str | None = None
    """The id of the session in the command."""
    session_id: str | None = None
    guess: str | None = None
    """The session that counts until its id is certain."""
    ended: bool = False
    readings: tuple[Reading, ...] = ()
    """One for each file."""
    process: tuple[int, int] | None = None
    """The pid and the start of an agent program that the run has started itself; `None`: it is the
    run's own program."""
    guesses: bool = True
    """A session counts before it is certain that it is the run's. Not where calls that only a
    session file tells of end the run, unless its program has another address than the gateway's."""
    around: bool = False
    """The run has the gateway, and its program another address. What the session tells has not come
    through the gateway."""
    pids: frozenset[int] = frozenset()
    """The processes of its program that were seen."""
    runs: bool = False
    """One of them executes the program, and not a launcher."""
    family: frozenset[int] = frozenset()
    """The processes of the run that may have begun the session."""
    beside: bool = False
    """A program of the run that calls through the gateway may have begun the session, too."""
    contested: bool = False
    """Another run may have begun the same session, and has found none of its own yet."""
    siblings: int = 1
    """So many programs of the run may have begun the new sessions of the directory, this one among
    them."""
    spent: float = 0.0
    """Seconds for which the last look has kept a CPU busy."""
    written: float = 0.0
    """When something that may be of the session was written last, in seconds since the epoch."""
    _succeeded: bool = False

    def __post_init__(self) -> None:
        since = self.began.timestamp()
        self._store: Store
        if isinstance(self.files, SessionDatabase):
            self._store = DatabaseStore(self.files, self.uid, since)
        else:
            assert isinstance(self.files, SessionFiles)
            self._store = FileStore(self.files, self.uid, since)
        self.name(self.given or "")

    def name(self, session_id: str) -> None:
        """Note the id of the session. An id that no agent would give is ignored."""
        if is_session_id(session_id):
            self.session_id = session_id

    def end(self, *, succeeded: bool) -> None:
        self.ended, self._succeeded = True, self._succeeded or succeeded

    def look(self, taken: Container[str]) -> bool:
        """Read what has been written. Return whether that was all. `taken`: ids of other runs'
        sessions. Raises `OSError`, and `TooMany`."""
        begun = time.thread_time()
        try:
            return self._look(taken)
        finally:
            self.spent = time.thread_time() - begun

    def _look(self, taken: Container[str]) -> bool:
        until = time.monotonic() + LOOK_SECONDS
        if self.session_id is None and self.around:
            self.name(self._store.asked(self._search(None), self.pids) or "")
        session = self.session_id or self._only_session(taken)
        if session is None:
            return True
        whole = self._store.read(self._search(session), session, until)
        self.written = max(self.written, self._store.written)
        read = self._store.readings(session)
        # between two looks the agent may have begun another call
        # of a call that failed or was broken off no file tells what was billed
        final = whole and self.ended and self._succeeded
        self.readings = tuple(_merged(read, final=final))
        return whole

    def _only_session(self, taken: Container[str]) -> str | None:
        """Return the session that is the run's, because no other was begun in its directory since
        its start."""
        since, project = timestamp(self.began), self.files.project(os.path.realpath(self.cwd))
        resumes = self.files.resumes(self.argv)
        found: dict[str, str] = {}
        for head, written in self._store.begun(self._search(None)):
            if head.project != project or head.session in taken:
                continue
            if resumes or head.began >= since:
                self.written = max(self.written, written)
                found.setdefault(head.session, head.began)
            if len(found) > self.siblings:
                raise TooMany
        certain = timestamp(datetime.fromtimestamp(time.time() - CERTAIN_AFTER, UTC))
        session = min(found, key=found.__getitem__, default=None)
        if session is None or self.contested or self.beside:
            return None
        if self.ended or found[session] <= certain:
            self.name(session)
        elif not self.guesses or (self.around and session != self.guess and self._has_rival()):
            return None
        self.guess = session
        return session

    def _has_rival(self) -> bool:
        """Return whether a process of the user outside of the run may have begun a session of its
        directory since its start."""
        earliest = self.began.timestamp() - CERTAIN_AFTER
        mentioned, cwd = self.files.program.encode(), os.path.realpath(self.cwd)
        return any(
            agent_of(kernel.words(command), {self.files.program}) is not None
            and (one := observed.find(pid)) is not None
            and observed.ask(lambda: one.uids().effective, self.uid) == self.uid
            and observed.ask(one.create_time, 0.0) >= earliest
            and observed.ask(one.cwd, cwd) == cwd
            and self.family.isdisjoint(each.pid for each in kernel.ancestors(pid))
            for pid in psutil.pids()
            if (command := kernel.read(f"/proc/{pid}/cmdline")) and mentioned in command
        )

    def lead(self, other: "Session") -> bool:
        """Take what is known of a process of its program. Return whether it is one: what a program
        that calls through the gateway has started, and that goes around it, has its own session."""
        around = other.around and not self.around
        if around and self.runs and not self.pids & other.pids:
            return False
        self.pids |= other.pids
        self.runs |= other.runs
        if around:
            self.env, self.cwd = other.env, other.cwd
            self.around = self.guesses = True
        return True

    @property
    def pause(self) -> float:
        """Return the seconds until the next look. The first call of a program that goes around the
        gateway shall be seen before the second one, and an idle terminal costs little."""
        age = time.time() - self.began.timestamp()
        waits = self.around and not any(reading.models for reading in self.readings)
        return min(LOOK_EVERY, max(LOOK_SOON, age / 200)) if waits else LOOK_EVERY

    def _search(self, session: str | None) -> SessionSearch:
        return SessionSearch(self.env, os.path.realpath(self.cwd), self.began, session)


def _merged(readings: list[Reading], *, final: bool) -> Iterator[Reading]:
    """Yield copies without tools. If one file tells the cost of the whole session, it includes the
    tokens of the other files."""
    told = any(reading.cost_usd is not None for reading in readings)
    for reading in readings:
        cost = 0.0 if told and reading.cost_usd is None else reading.cost_usd
        partial = reading.partial or not final
        yield replace(
            reading,
            models=dict(reading.models),
            uncovered=dict(reading.uncovered),
            tools=[],
            cost_usd=cost,
            partial=partial,
        )


# ---- Has the session files of all runs read in threads

LOOK_EVERY = 1.0
"""Seconds between two looks at a run's session."""
LOOK_SOON = 0.02
"""The same at first, of a program that goes around the gateway and has made no call yet."""
LAST_LOOK_WAIT = 1.0
"""Seconds that the end of a run waits for the last look. A look that takes longer waits for its
file system."""
REST_TIMES = 4
"""How long the next look of a user waits, in multiples of the CPU time of the last look: whatever
agents write, looking takes a fifth of a core."""


MOST_AGENTS = 256
"""Sessions of one run's attempt that are read: of its own program, and of agent programs that it
has started itself."""

_Process = tuple[int, int]
"""The pid and the start of an agent program."""
_OWN: _Process = (0, 0)
"""The run's own program, whatever its process is."""
_Key = tuple[RunId, _Process]


class Sessions(Struct, dict=True):
    """The sessions of all runs. `seen(run, readings)`: what the files of the run's attempts tell
    has changed; a reading for each file. `lost(run, message)`: the session cannot be told from
    another."""

    seen: Callable[[RunId, tuple[Reading, ...]], None]
    lost: Callable[[RunId, str], None]
    trouble: Callable[[str], None]
    _runs: dict[RunId, dict[_Process, Session]] = field(default_factory=dict)
    _before: dict[RunId, tuple[Reading, ...]] = field(default_factory=dict)
    _wanted: dict[int, dict[_Key, list[trio.Event]]] = field(default_factory=dict)
    """By uid: the sessions to look at, and the events to set then."""
    _looking: dict[int, float] = field(default_factory=dict)
    """By uid: the time since when a thread looks."""

    def __post_init__(self) -> None:
        self._threads = trio.CapacityLimiter(math.inf)  # one for each user is the bound
        self._to_look, self._users = trio.open_memory_channel[int](math.inf)
        """Users for whom a task must begin to look."""
        self._some = trio.Event()
        """There is a run."""
        self._suspect = trio.Event()
        """There may be a session to look at sooner than the others."""

    def __contains__(self, run: RunId) -> bool:
        return run in self._runs

    @property
    def waiting(self) -> int:
        """The number of threads that have waited for a file system for longer than
        `LAST_LOOK_WAIT`, and may never return."""
        now = trio.current_time()
        return sum(now - since >= LAST_LOOK_WAIT for since in self._looking.values())

    def begin(self, run: RunId, session: Session | None, before: tuple[Reading, ...] = ()) -> None:
        """Begin an attempt, or continue with one. `session`: of the run's own program, if that
        keeps one; `before`: what the sessions of earlier attempts told."""
        self._runs.pop(run, None)
        if before:
            self._before[run] = before
        if session is not None:
            self._add(run, session)

    def add(self, run: RunId, session: Session) -> None:
        """Read also the session of an agent program that the run has started itself, once for each
        process."""
        known = self._runs.get(run, {})
        if session.process not in known and len(known) < MOST_AGENTS:
            self._add(run, session)

    def follow(self, run: RunId, session: Session, process: AgentProcess) -> bool:
        """Note which process has a session that is read, and whether it goes around the gateway.
        Return whether the session is known."""
        sessions = self._runs.get(run, {})
        pids = {process.pid} | ({process.above[0][0]} if process.is_part else set())
        known = next((each for each in sessions.values() if each.pids & pids), None)
        own = sessions.get(_OWN)
        if known is None and own is not None and not own.pids and own.files is session.files:
            alone = process.program not in {program for _, program in process.above}
            known = own if process.is_main or (process.below_main and alone) else None
        self._suspect.set()
        return known is not None and known.lead(session)

    def _add(self, run: RunId, session: Session) -> None:
        self._runs.setdefault(run, {})[session.process or _OWN] = session
        self._some.set()
        self._suspect.set()

    def told(self, run: RunId) -> tuple[Reading, ...]:
        now = (
            reading for session in self._runs.get(run, {}).values() for reading in session.readings
        )
        return (*self._before.get(run, ()), *now)

    def around(self, run: RunId) -> tuple[Reading, ...]:
        """Return those of its last attempt that tell of calls around the gateway."""
        found = (each.readings for each in self._runs.get(run, {}).values() if each.around)
        return tuple(chain.from_iterable(found))

    def name(self, run: RunId, session: str) -> None:
        """Note the id of the session of the run's own program."""
        own = self._runs.get(run, {}).get(_OWN)
        if own is not None:
            own.name(session)

    def saved(self, run: RunId) -> str | None:
        """Return the id of the session of the run's own program, if that is certain and its file
        was read."""
        own = self._runs.get(run, {}).get(_OWN)
        return own.session_id if own is not None and own.readings else None

    def written(self, run: RunId) -> float:
        """Return when a file of the run's sessions was written last, in seconds since the epoch, as
        of the last look; 0 if none was found."""
        return max((each.written for each in self._runs.get(run, {}).values()), default=0.0)

    def forget(self, run: RunId) -> None:
        self._runs.pop(run, None)
        self._before.pop(run, None)

    async def serve(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._want_all)
            nursery.start_soon(self._want_suspects)
            async for uid in self._users:
                nursery.start_soon(self._look_for, uid)

    async def _want_all(self) -> None:
        while True:
            if not self._runs:
                self._some = trio.Event()
                await self._some.wait()
            await trio.sleep(LOOK_EVERY)
            for key, session in self._all():
                if key not in self._wanted.get(session.uid, ()) and _may_grow(session):
                    self._want(key, session)

    async def _want_suspects(self) -> None:
        """Look sooner at the sessions of programs that go around the gateway."""
        while True:
            found = [(key, each) for key, each in self._all() if each.pause < LOOK_EVERY]
            if not found:
                self._suspect = trio.Event()
                await self._suspect.wait()
                continue
            await trio.sleep(min(each.pause for _, each in found))
            for key, session in found:
                waits = key in self._wanted.get(session.uid, ())
                if not waits and self._session(key) is session and _may_grow(session):
                    self._want(key, session)

    def _all(self) -> list[tuple[_Key, Session]]:
        return [
            ((run, process), session)
            for run, each in self._runs.items()
            for process, session in each.items()
        ]

    async def catch_up(self, run: RunId, *, succeeded: bool = False) -> None:
        """Read what the sessions of a run say by now; its main process has ended. Give up after
        `LAST_LOOK_WAIT`, and at once if the file system of its user does not answer. `succeeded`:
        the process is known to have exited with 0."""
        looks = []
        for process, session in self._runs.get(run, {}).items():
            if trio.current_time() - self._looking.get(session.uid, math.inf) > LAST_LOOK_WAIT:
                return
            if process == _OWN or not session.ended:
                session.end(succeeded=succeeded and process == _OWN)
                looks.append(self._want((run, process), session))
        await _within_patience(looks)

    async def look_again(self, runs: Iterable[RunId]) -> None:
        """Look at the sessions of these runs now. Give up after `LAST_LOOK_WAIT`."""
        wanted = {*runs}
        found = [(key, each) for key, each in self._all() if key[0] in wanted and not each.ended]
        await _within_patience([self._want(key, session) for key, session in found])

    def _want(self, key: _Key, session: Session) -> trio.Event:
        uid = session.uid
        done = trio.Event()
        self._wanted.setdefault(uid, {}).setdefault(key, []).append(done)
        if uid not in self._looking:
            self._looking[uid] = trio.current_time()
            self._to_look.send_nowait(uid)
        return done

    async def _look_for(self, uid: int) -> None:
        wanted = self._wanted[uid]
        try:
            while wanted:
                key = next(iter(wanted))
                waiting = wanted.pop(key)
                self._looking[uid] = trio.current_time()
                if await self._look(key):
                    for done in waiting:
                        done.set()
                else:
                    wanted[key] = waiting + wanted.get(key, [])
        finally:
            del self._looking[uid]

    async def _look(self, key: _Key) -> bool:
        run, session = key[0], self._session(key)
        if session is None:
            return True
        whole, before = True, (session.readings, session.session_id)
        others = [
            other for _, other in self._all() if other is not session and other.uid == session.uid
        ]
        own = [other for other in self._runs[run].values() if other is not session]
        taken = {
            each
            for each in (*(other.session_id for other in others), *(other.guess for other in own))
            if each is not None
        }
        session.siblings = 1 + sum(_alike(session, other) for other in own)
        led = [each for each in own if each.runs and not each.around and session.around]
        session.family = session.pids.union(*(each.pids for each in own if each not in led))
        session.beside = any(_alike(session, each, env=False) for each in led if not each.ended)
        session.contested = any(_alike(session, other) for other in others if other not in own)
        try:
            whole = await in_thread(session.look, taken, abandon=True, limiter=self._threads)
            if not session.ended:
                await trio.sleep(REST_TIMES * session.spent)
        except TooMany:
            self._lose(
                key,
                session,
                f"several sessions began in {session.cwd} at about that time, "
                "and nothing tells which is the run's",
            )
        except OSError:
            pass  # it is looked at again soon; perhaps no thread could be started
        except sqlite3.Error as error:
            # until its end it may still be making its tables, or keep a lock
            if session.ended and not session.readings:
                self._lose(key, session, f"its database cannot be read: {error}")
        except Exception:  # noqa: BLE001 - a bug in a meter must not leave every tree without a supervisor
            self._drop(key)
            self.trouble(
                f"run {run}: "
                f"its session is no longer read: internal error:\n{traceback.format_exc()}"
            )
        if (session.readings, session.session_id) != before and self._session(key) is session:
            self.seen(run, self.told(run))
        return whole

    def _session(self, key: _Key) -> Session | None:
        return self._runs.get(key[0], {}).get(key[1])

    def _drop(self, key: _Key) -> None:
        run, process = key
        sessions = self._runs.get(run, {})
        sessions.pop(process, None)
        if not sessions:
            self._runs.pop(run, None)

    def _lose(self, key: _Key, session: Session, why: str) -> None:
        if self._session(key) is session:
            self._drop(key)
            if session.readings:
                self.seen(key[0], self.told(key[0]))  # without what may be another process's
            self.lost(
                key[0],
                f"what the run uses is not read from its {session.files.program} session: "
                f"{why}. Have it print JSON events, "
                "or name the session in the command, as claude --session-id does",
            )


async def _within_patience(looks: Iterable[trio.Event]) -> None:
    with trio.move_on_after(LAST_LOOK_WAIT):
        for look in looks:
            await look.wait()


def _may_grow(session: Session) -> bool:
    """Return whether to look at a session once more. Of an agent program that has ended, the next
    look is the last."""
    if session.process is None:
        return True
    ended = session.ended
    if not ended and not kernel.is_alive(*session.process):
        session.end(succeeded=False)
    return not ended


def _alike(one: Session, other: Session, *, env: bool = True) -> bool:
    """Return whether nothing tells which of two programs has begun which session of their
    directory."""
    return (
        other.session_id is None
        and other.guess is None
        and other.files is one.files
        and other.cwd == one.cwd
        and (other.env == one.env or not env)
    )
