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

from ..host.tasks import in_thread
from ..meters.reading import Reading
from ..protocol.types import RunId
from .session import Session, TooMany

LOOK_EVERY = 1.0
"""Seconds between two looks at a run's session."""
LAST_LOOK_WAIT = 1.0
"""Seconds that the end of a run waits for the last look. A look that takes longer waits for its file system."""
REST_TIMES = 4
"""How long the next look of a user waits, in multiples of the CPU time of the last look: whatever agents write, looking takes a
fifth of a core."""


@dataclass
class Sessions:
    """The sessions of all runs. `seen(run, readings)`: what the files of the run's attempts tell has changed; a reading for each
    file. `lost(run, message)`: the session cannot be told from another."""

    seen: Callable[[RunId, tuple[Reading, ...]], None]
    lost: Callable[[RunId, str], None]
    trouble: Callable[[str], None]
    _runs: dict[RunId, Session] = field(default_factory=dict)
    _before: dict[RunId, tuple[Reading, ...]] = field(default_factory=dict)
    _wanted: dict[int, dict[RunId, list[trio.Event]]] = field(default_factory=dict)
    """By uid: the runs to look at, and the events to set then."""
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

    def begin(self, run: RunId, session: Session, before: tuple[Reading, ...] = ()) -> None:
        """Begin an attempt, or continue with one. `before`: what the sessions of earlier attempts told."""
        self._before[run] = before
        self._runs[run] = session
        self._some.set()

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
            if not self._runs:
                self._some = trio.Event()
                await self._some.wait()
            await trio.sleep(LOOK_EVERY)
            for run, session in self._runs.items():
                if run not in self._wanted.get(session.uid, ()):
                    self._want(run)

    async def catch_up(self, run: RunId, *, succeeded: bool = False) -> None:
        """Read what the session of a run says by now; its main process has ended. Give up after `LAST_LOOK_WAIT`, and at
        once if the file system of its user does not answer. `succeeded`: the process is known to have exited with 0."""
        session = self._runs.get(run)
        if session is None or trio.current_time() - self._looking.get(session.uid, math.inf) > LAST_LOOK_WAIT:
            return
        session.end(succeeded=succeeded)
        with trio.move_on_after(LAST_LOOK_WAIT):
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
                await trio.sleep(REST_TIMES * session.spent)
        except TooMany:
            self._lose(run, session)
        except OSError:
            pass  # it is looked at again soon; perhaps no thread could be started
        except Exception:  # noqa: BLE001 - a bug in a meter must not leave every tree without a supervisor
            self._runs.pop(run, None)
            self.trouble(f"run {run}: its session is no longer read: internal error:\n{traceback.format_exc()}")
        if session.readings != before and self._runs.get(run) is session:
            self.seen(run, self.told(run))
        return whole

    def _lose(self, run: RunId, session: Session) -> None:
        if self._runs.get(run) is session:
            del self._runs[run]
            self.lost(
                run,
                f"what the run uses is not read from its {session.files.program} session: several sessions began in {session.cwd} "
                "at about that time, and nothing tells which is the run's. Have it print JSON events, or name the session in the "
                "command, as claude --session-id does",
            )
