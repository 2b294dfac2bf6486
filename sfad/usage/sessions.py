"""Has the session files of all runs read in threads.

Their file system may have a server that does not answer. So there is one thread for each user at a time, and no task waits for a
thread for more than `LAST_LOOK_WAIT`.

Files are looked at every `LOOK_EVERY` and once more at the end, not when inotify tells: adding a watch would wait for the same file
systems, the directories do not exist before the agent's first start, and a look at a file that has not grown is 20 µs.
"""

import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from ..agents.counters import Reading
from ..host.tasks import in_thread
from ..processes import procfs
from ..protocol.types import RunId
from .session import Session, TooMany

LOOK_EVERY = 1.0
"""Seconds between two looks at a run's session."""
LAST_LOOK_WAIT = 1.0
"""Seconds that the end of a run waits for the last look. A look that takes longer waits for its file system."""
REST_TIMES = 4
"""How long the next look of a user waits, in multiples of the CPU time of the last look: whatever agents write, looking takes a
fifth of a core."""


MOST_AGENTS = 256
"""Sessions of one run's attempt that are read: of its own program, and of agent programs that it has started itself."""

_Process = tuple[int, int]
"""The pid and the start of an agent program."""
_OWN: _Process = (0, 0)
"""The run's own program, whatever its process is."""
_Key = tuple[RunId, _Process]


@dataclass
class Sessions:
    """The sessions of all runs. `seen(run, readings)`: what the files of the run's attempts tell has changed; a reading for each
    file. `lost(run, message)`: the session cannot be told from another."""

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

    def __contains__(self, run: RunId) -> bool:
        return run in self._runs

    @property
    def waiting(self) -> int:
        """The number of threads that have waited for a file system for longer than `LAST_LOOK_WAIT`, and may never return."""
        now = trio.current_time()
        return sum(now - since >= LAST_LOOK_WAIT for since in self._looking.values())

    def begin(self, run: RunId, session: Session | None, before: tuple[Reading, ...] = ()) -> None:
        """Begin an attempt, or continue with one. `session`: of the run's own program, if that keeps one; `before`: what the
        sessions of earlier attempts told."""
        self._runs.pop(run, None)
        if before:
            self._before[run] = before
        if session is not None:
            self._add(run, session)

    def add(self, run: RunId, session: Session) -> None:
        """Read also the session of an agent program that the run has started itself, once for each process."""
        known = self._runs.get(run, {})
        if session.process not in known and len(known) < MOST_AGENTS:
            self._add(run, session)

    def _add(self, run: RunId, session: Session) -> None:
        self._runs.setdefault(run, {})[session.process or _OWN] = session
        self._some.set()

    def told(self, run: RunId) -> tuple[Reading, ...]:
        now = (reading for session in self._runs.get(run, {}).values() for reading in session.readings)
        return (*self._before.get(run, ()), *now)

    def name(self, run: RunId, session: str) -> None:
        """Note the id of the session of the run's own program."""
        own = self._runs.get(run, {}).get(_OWN)
        if own is not None:
            own.name(session)

    def saved(self, run: RunId) -> str | None:
        """Return the id of the session of the run's own program, if that is certain and its file was read."""
        own = self._runs.get(run, {}).get(_OWN)
        return own.session_id if own is not None and own.readings else None

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
            if not self._runs:
                self._some = trio.Event()
                await self._some.wait()
            await trio.sleep(LOOK_EVERY)
            for key, session in self._all():
                if key not in self._wanted.get(session.uid, ()) and _may_grow(session):
                    self._want(key, session)

    def _all(self) -> list[tuple[_Key, Session]]:
        return [((run, process), session) for run, each in self._runs.items() for process, session in each.items()]

    async def catch_up(self, run: RunId, *, succeeded: bool = False) -> None:
        """Read what the sessions of a run say by now; its main process has ended. Give up after `LAST_LOOK_WAIT`, and at
        once if the file system of its user does not answer. `succeeded`: the process is known to have exited with 0."""
        looks = []
        for process, session in self._runs.get(run, {}).items():
            if trio.current_time() - self._looking.get(session.uid, math.inf) > LAST_LOOK_WAIT:
                return
            if process == _OWN or not session.ended:
                session.end(succeeded=succeeded and process == _OWN)
                looks.append(self._want((run, process), session))
        with trio.move_on_after(LAST_LOOK_WAIT):
            for look in looks:
                await look.wait()

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
        others = [other for _, other in self._all() if other is not session and other.uid == session.uid]
        own = [other for other in self._runs[run].values() if other is not session]
        taken = {each for each in (*(other.session_id for other in others), *(other.guess for other in own)) if each is not None}
        session.siblings = 1 + sum(_alike(session, other) for other in own)
        session.contested = any(_alike(session, other) for other in others if other not in own)
        try:
            whole = await in_thread(session.look, taken, abandon=True, limiter=self._threads)
            if not session.ended:
                await trio.sleep(REST_TIMES * session.spent)
        except TooMany:
            self._lose(key, session)
        except OSError:
            pass  # it is looked at again soon; perhaps no thread could be started
        except Exception:  # noqa: BLE001 - a bug in a meter must not leave every tree without a supervisor
            self._drop(key)
            self.trouble(f"run {run}: its session is no longer read: internal error:\n{traceback.format_exc()}")
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

    def _lose(self, key: _Key, session: Session) -> None:
        if self._session(key) is session:
            self._drop(key)
            if session.readings:
                self.seen(key[0], self.told(key[0]))  # without what may be another process's
            self.lost(
                key[0],
                f"what the run uses is not read from its {session.files.program} session: several sessions began in {session.cwd} "
                "at about that time, and nothing tells which is the run's. Have it print JSON events, or name the session in the "
                "command, as claude --session-id does",
            )


def _may_grow(session: Session) -> bool:
    """Return whether to look at a session once more. Of an agent program that has ended, the next look is the last."""
    if session.process is None:
        return True
    ended = session.ended
    if not ended and not procfs.is_alive(*session.process):
        session.end(succeeded=False)
    return not ended


def _alike(one: Session, other: Session) -> bool:
    """Return whether nothing tells which of two programs has begun which session of their directory."""
    return (
        other.session_id is None
        and other.guess is None
        and other.files is one.files
        and other.cwd == one.cwd
        and other.env == one.env
    )
