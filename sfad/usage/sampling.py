"""Samples how many processes and how much memory runs use, if they have a limit of it, because no
event tells.

Each tree has a limit of processes, so 500 idle runs must cost nothing. So the sampler looks at a
number of the whole machine, and at a run only when by that number the run can have come near its
limit:

- `pids`: the fifth field of /proc/loadavg is the last pid that the kernel gave out
  (proc_loadavg(5)). A tree cannot have grown by more than the pids that were given out. (A thread
  takes a pid, too, and so does a fork that fails because of `pids.max`.) While no run is near its
  limit, nothing is looked at before the kernel tells that so many pids were given out.
- `memory`: what is not available to a program that starts. A run can grow while others shrink, so
  this is only a good guess; the run itself is looked at from time to time as well.

A run above its limit is found up to a tick later. If the kernel enforces the limit, looking only
serves `limit_nearing` and the reason of an end.
"""

import math
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

import psutil
import trio
from msgspec import Struct

from ..core import events as e
from ..core.state.run import Run
from ..host.linux.process_events import ForkAlarm
from ..processes import kernel
from ..processes.launcher import Launcher
from ..protocol.kinds import BY_KERNEL, KINDS
from ..protocol.types import LimitKind, RunId

Seen = Callable[[RunId, str, int, bool], object]
"""Takes a run, `memory` or `pids`, what the run uses (bytes, processes), and whether the kernel had
to enforce the limit. Decides what is near and what is over. May call `watch` and `forget`."""

IDLE, WATCHFUL, STORM = 0.5, 0.1, 0.05
"""Seconds between two looks at the machine: with limits that cannot be reached soon; with a limit
that can be passed within moments; and while there are so many forks that this may be a fork
bomb."""
IDLE_ENFORCED = 2.0
"""Replaces `IDLE` if the kernel enforces the limits, so that nothing is lost meanwhile. A look
costs 0.3 ms of CPU, mostly to wake up."""
_SOON = 1.0
_BOMB = 1000
_SMALL = 256
"""A limit of processes that can be passed within moments."""
_BLIND = 1.0
"""Seconds between two counts if /proc/loadavg does not tell (lxcfs makes its own)."""
_BACKSTOP, _BACKSTOP_NEAR = 10.0, 1.0
"""Seconds after which the memory of a run is looked at in any case; the second for a run that is
near its limit."""
_STEP = 0.05
"""The growth that is told again, as a share of the limit."""
_LEAST_GROWTH = 1 << 20
"""Bytes below which a growth of the machine means nothing, because the kernel's sums are not more
exact."""
_SHARE = 5
"""A pause is at least so many times as long as the look before it, so counting takes at most a
sixth of a CPU."""


class MachineTotals:
    """The kernel's sums over all processes. Raises `OSError` if they cannot be read."""

    def __init__(self) -> None:
        self._last = 0
        self._range = 1

    def tells_forks(self) -> bool:
        """Start counting. Return whether `forks` can be believed: a new thread must show in it."""
        content = kernel.read("/proc/sys/kernel/pid_max")
        self._range = int(content) if content else 1 << 22
        before = self._last = _last_pid()
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
        return _last_pid() != before

    def forks(self) -> int:
        """Return how many pids were given out since the last call. Right if they were fewer than
        pid_max."""
        before, self._last = self._last, _last_pid()
        return (self._last - before) % self._range

    async def wait_forks(self, count: int) -> None:
        """Sleep until `count` pids were given out since the last call of `forks`. Return at once if
        the kernel does not tell."""
        with suppress(OSError), ForkAlarm(self._last, count) as alarm:
            if (_last_pid() - self._last) % self._range < count:
                await trio.lowlevel.wait_readable(alarm)

    def memory(self) -> int:
        found = psutil.virtual_memory()
        return int(found.total - found.available)

    def oom_kills(self) -> int:
        words = (kernel.read("/proc/vmstat", whole=True) or b"").split()
        return int(words[words.index(b"oom_kill") + 1]) if b"oom_kill" in words else 0


def _last_pid() -> int:
    return int((kernel.read("/proc/loadavg") or b"0").split()[-1])


class _Watched(Struct, eq=False):
    run: RunId
    kind: str
    threshold: float
    near: float
    due: float
    """The machine's sum at which the run must be looked at again."""
    room: float = 0.0
    by: float = 0.0
    """When it must be looked at in any case."""
    used: int = 0
    """At the last look."""
    told: float = -1
    breached: bool = False

    def matters(self, used: int, breached: bool) -> bool:
        """Return whether this is worth telling, and note that it was told."""
        news = breached and not self.breached
        higher = (
            self.told < self.near
            or used > self.threshold >= self.told
            or used >= self.told + _STEP * self.threshold
        )
        if not (news or (used >= self.near and higher)):
            return False
        self.told, self.breached = max(self.told, used), breached
        return True

    def headroom(self, used: int) -> float:
        """Return how much it may grow before there is anything to tell."""
        if used < self.near:
            return self.near - used
        step = max(1.0, _STEP * self.threshold)
        return min(step, self.threshold - used + 1) if used <= self.threshold else step


class Sampler:
    """Watches runs by `launcher`, and tells `seen`. `nearing` is the share of a limit from which on
    it is worth telling (`limits.nearing`)."""

    def __init__(
        self,
        launcher: Launcher,
        seen: Seen,
        *,
        nearing: float = 0.8,
        machine: MachineTotals | None = None,
    ) -> None:
        self._nearing = nearing
        self._launcher = launcher
        self._seen = seen
        self._machine = machine or MachineTotals()
        self._pids: dict[RunId, _Watched] = {}
        self._memory: dict[RunId, _Watched] = {}
        self._small: set[RunId] = set()
        self._forks = 0
        self._earliest = 0.0
        self._rate = 0.0
        self._ooms: int | None = None
        self._blind: bool | None = None
        """Whether the machine does not tell its forks; `None` until it was tried."""
        self._looking = False
        self._looked = 0.0
        self._pause = 0.0
        self._resting = False
        """Whether it sleeps until the machine has forked, however long that takes."""
        self._waiting = trio.CancelScope()

    def set_nearing(self, nearing: float) -> None:
        self._nearing = nearing

    def watch(self, run: RunId, kind: str, threshold: float, *, fresh: bool = False) -> None:
        """Watch one limit (`memory` in bytes, `pids`), or change its threshold. `fresh`: the run
        uses next to nothing yet, so it need not be looked at soon."""
        watched = _Watched(run, kind, threshold, self._nearing * threshold, 0.0)
        sooner = True
        if kind == "memory":
            self._memory[run] = watched
        else:
            # counted from the last look: later forks are not the run's, so this is too soon rather
            # than too late
            watched.due = self._forks + watched.near if fresh and self._looking else 0.0
            sooner = watched.due < self._earliest
            self._earliest = min(self._earliest, watched.due)
            self._pids[run] = watched
            self._small.discard(run)
            if threshold <= _SMALL:
                self._small.add(run)
        if not self._looking or self._pace() < self._pause or (self._resting and sooner):
            self._waiting.cancel()

    def forget(self, run: RunId) -> None:
        self._pids.pop(run, None)
        self._memory.pop(run, None)
        self._small.discard(run)
        # runs may follow each other. To set it costs ten calls
        none = not (self._pids or self._memory)
        if none and self._resting and self._waiting.deadline == math.inf:
            self._waiting.deadline = trio.current_time() + IDLE

    async def serve(self) -> None:
        took = 0.0
        while True:
            self._waiting = trio.CancelScope()
            if not (self._pids or self._memory):
                self._looking = False
                with self._waiting:
                    await trio.sleep_forever()
                continue
            if not self._looking:
                self._begin()
            self._pause = max(self._pace(), _SHARE * took)
            with self._waiting:
                await trio.sleep(self._pause)
                await self._rest()
            took = self._look()

    async def _rest(self) -> None:
        """Sleep while no run can have come near its limit. A run that is near it is looked at: the
        kernel tells no failed forks."""
        room = self._earliest - self._forks
        if self._memory or not self._pids or self._blind is not False or room <= 0:
            return
        if any(one.used >= one.near for one in self._pids.values()):
            return
        self._resting = True
        try:
            await self._machine.wait_forks(math.ceil(room))
        finally:
            self._resting = False

    def _begin(self) -> None:
        """Begin the sums after a time without anything to watch. All that is watched now is due."""
        self._looking, self._looked = True, trio.current_time()
        self._forks, self._earliest, self._rate, self._ooms = 0, 0.0, 0.0, None
        try:
            if self._blind is None:
                self._blind = not self._machine.tells_forks()
            self._machine.forks()
        except (OSError, RuntimeError):
            # no descriptor or thread is free: the next count is of all forks since the last time
            return

    def _pace(self) -> float:
        if self._rate >= _BOMB:
            return STORM
        if self._memory or self._small or self._earliest - self._forks < _SOON * self._rate:
            return WATCHFUL
        enforced = self._launcher.enforced_by("pids") == "kernel"
        return IDLE_ENFORCED if enforced else IDLE if self._blind is False else _BLIND

    def _look(self) -> float:
        began = trio.current_time()
        try:
            self._look_at_pids(began)
            if self._memory:
                self._look_at_memory(began)
        except OSError:  # no descriptor is free: try again the next time
            self._earliest = 0.0
        return trio.current_time() - began

    def _look_at_pids(self, now: float) -> None:
        forks = self._machine.forks()
        # after a rest, all of them may have come at its end
        self._rate = forks / max(min(now - self._looked, self._pause), STORM)
        self._looked = now
        self._forks += forks
        blind = self._blind is not False
        if self._forks < self._earliest and not blind:
            return
        due = [one for one in self._pids.values() if one.due <= self._forks or blind]
        for one, used in self._count("pids", due):
            one.used, one.due = used, self._forks + one.headroom(used)
        self._earliest = min((one.due for one in self._pids.values()), default=0.0)

    def _look_at_memory(self, now: float) -> None:
        total, killed = self._machine.memory(), self._killed()
        due = [one for one in self._memory.values() if killed or one.by <= now or total >= one.due]
        for one, used in self._count("memory", due):
            one.room = max(_LEAST_GROWTH, one.headroom(used) / 2)
            one.due = total + one.room
            one.by = now + (_BACKSTOP if used < one.near else _BACKSTOP_NEAR)
        for one in self._memory.values():
            # if others have shrunk, it can grow from here on
            one.due = min(one.due, total + one.room)

    def _killed(self) -> bool:
        before, self._ooms = self._ooms, self._machine.oom_kills()
        return before is not None and self._ooms != before

    def _count(self, kind: str, due: list[_Watched]) -> Iterable[tuple[_Watched, int]]:
        if not due:
            return []
        used = self._launcher.amounts(kind, {one.run: one.near for one in due})
        counted = [(one, used[one.run]) for one in due if one.run in used]
        watched = self._memory if kind == "memory" else self._pids
        for one, figure in counted:
            # `seen` may have forgotten or changed another run
            if watched.get(one.run) is one and one.matters(
                figure, breached := kind in self._launcher.breaches(one.run)
            ):
                self._seen(one.run, kind, figure, breached)
        return counted


_WATCHED = {kind: kind.value for kind in BY_KERNEL if KINDS[kind].acts}


class KernelLevels:
    """What the kernel counts of runs that have a limit of it, memory and processes, told to the
    core."""

    def __init__(self, launcher: Launcher, feed: e.Feed, *, nearing: float) -> None:
        self.sampler = Sampler(launcher, self._seen, nearing=nearing)
        self._launcher = launcher
        self._feed = feed

    def watch(self, run: Run, *, fresh: bool = False) -> None:
        """Watch what a run has limits of now. `fresh`: it uses next to nothing yet."""
        for kind, word in _WATCHED.items():
            bound = run.limits.get(kind)
            if bound is not None:
                self.sampler.watch(run.id, word, bound.limit.threshold, fresh=fresh)

    def killed(self, run: Run) -> None:
        """SIGKILL has ended its main process. The kernel may have sent it because of a limit of the
        run or of an ancestor."""
        for above in run.lineage:
            for kind in self._launcher.breaches(above.id):
                self._seen(above.id, kind, 0, True)

    def _seen(self, run: RunId, kind: str, used: int, refused: bool) -> None:
        self._feed(e.LevelSeen(trio.current_time(), run, LimitKind(kind), used, refused))
