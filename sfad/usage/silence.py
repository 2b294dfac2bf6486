"""Looks for runs that give no sign of life for longer than their limit of silence.

Signs are output, model calls, tool calls, what session files tell, and a hundredth of a CPU (three
for each agent program), of the run and of the runs below it. None of them wakes this: the kernel
notes when a file or pipe was written last, and the loop notes the time of what it is told. So each
run is looked at a few times within its limit, which also finds out when it used a CPU last, because
the kernel only tells how much. Rejected: to look once, when the limit may be reached. A run that
compiled and then hung would be found after twice the limit.
"""

import math
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress

import trio
from msgspec import Struct, field

from ..core import events as e
from ..core.state.naming import AGENT_COMMANDS, program_name
from ..processes import kernel
from ..processes.launcher import Footprint, Launcher
from ..protocol.types import LimitKind, RunId, Status
from ..runs.live import Live
from ..storage.output.files import OutputFiles

LOOKS = 16
"""Looks within a limit, so that a silence is found so late at most, as a share of it."""
LEAST = 2.5
"""Seconds between two looks at least, and at a run that has just started: what its program uses to
start is no sign of life."""
SHARE = 0.01
"""Of a CPU: what counts as a sign. An idle Node.js or Python program uses a tenth of it."""
IDLE_AGENT = 0.02
"""Of a CPU: what an agent program may use that waits for a model which does not answer. Measured
over 20 s without a terminal: Codex 0.169 0.4 to 1.6 %, opencode 1.18 0.8 to 1.4 %, Claude Code
2.1.330 0.6 % at most, Gemini CLI 0.61 and Qwen Code 0.15 0.2 % at most."""


class Signs:
    """Tells when a run was heard of last."""

    def __init__(
        self,
        lives: Mapping[RunId, Live],
        output: OutputFiles,
        session_written: Callable[[RunId], float],
    ) -> None:
        """`session_written`: `Sessions.written`."""
        self._lives = lives
        self._output = output
        self._session_written = session_written

    def share(self, live: Live) -> float:
        """Return the part of a CPU that is a sign of life of a run and those below it."""
        lives = [other for run in live.run.subtree() if (other := self._lives.get(run.id))]
        return SHARE + IDLE_AGENT * sum(_agent_programs(other) for other in lives)

    def of(self, live: Live, now: float) -> float | None:
        """Return the time of the last sign of a run or one below it, on trio's clock; `None` if
        none is known."""
        wall = time.time()
        found = [
            at
            for run in live.run.subtree()
            if (other := self._lives.get(run.id))
            for at in self._of_one(other, now, wall)
        ]
        return max(found, default=None)

    def _of_one(self, live: Live, now: float, wall: float) -> list[float]:
        found = [live.heard] if live.heard is not None else []
        found += [
            min(now, now - (wall - written))
            for written in self._written(live)
            if written > live.created_at.timestamp()
        ]
        if live.run.account.reserved_by_gateway:
            waits = [silence.since for silence in live.run.account.silences]
            found.append(min(waits, default=now))
        return found

    def _written(self, live: Live) -> list[float]:
        """Return when the run's output and session were written, in seconds since the epoch."""
        found = [self._session_written(live.run.id)]
        with suppress(OSError):
            if live.kept:
                statuses = [self._output.status(live.run.id, suffix) for suffix in (".out", ".err")]
                found += [status.st_mtime for status in statuses if status is not None]
            for descriptor in live.descriptors[1:]:
                # fstat(2) of a file may wait for a network
                if os.readlink(f"/proc/self/fd/{descriptor}").startswith(("pipe:", "/dev/")):
                    found.append(os.fstat(descriptor).st_mtime)
        return found


def _agent_programs(live: Live) -> int:
    """Return how many agent programs are alive in a run: its own, and those that it has started."""
    own = program_name(live.run.asked.shown.argv) in AGENT_COMMANDS
    return own + sum(kernel.is_alive(*process) for process in live.run.seen.started.items())


class _Watched(Struct):
    live: Live
    limit: float
    since: float
    """When it was heard of last, a CPU's work included."""
    due: float
    sample: Footprint | None = None
    sampled: float = 0.0

    def use(self, now: float, sample: Footprint | None, share: float) -> bool:
        """Take what its processes have used by now. Return whether that is a sign of life, which
        takes this share of a CPU."""
        before, at = self.sample, self.sampled
        self.sample, self.sampled = sample, now
        if before is None or sample is None or before.cpu_s is None or sample.cpu_s is None:
            return False
        # without cgroups it is the sum of those that are alive, which falls when one ends whose
        # parent is not in the run
        return (
            abs(sample.cpu_s - before.cpu_s) >= share * (now - at)
            or sample.processes != before.processes
        )


class SilenceWatch(Struct):
    signs: Signs
    launcher: Launcher
    feed: e.Feed
    nearing: float
    """The share of a limit from which on it is worth telling."""
    look_at_sessions: Callable[[Iterable[RunId]], Awaitable[None]]
    """`Sessions.look_again`."""
    watched: dict[RunId, _Watched] = field(default_factory=dict)
    _waiting: trio.CancelScope = field(default_factory=trio.CancelScope)
    _until: float = math.inf

    def watch(self, live: Live) -> None:
        """Watch a run with a limit of silence, from now on."""
        bound, now = live.run.limits.get(LimitKind.SILENCE), trio.current_time()
        if bound is None:
            self.watched.pop(live.run.id, None)
            return
        known, limit = self.watched.get(live.run.id), bound.limit.threshold
        since = now if known is None else known.since
        due = now + min(LEAST, limit / 2)
        self.watched[live.run.id] = _Watched(live, limit, since, due)
        if due < self._until:
            self._waiting.cancel()

    def heard(self, live: Live, now: float) -> float | None:
        """Return when a run was heard of last, as far as that is known."""
        watched, found = self.watched.get(live.run.id), self.signs.of(live, now)
        return found if watched is None or found is None else max(watched.since, found)

    async def serve(self) -> None:
        """Look at each run when it is due, until cancelled."""
        while True:
            self._waiting = trio.CancelScope()
            self._until = min((one.due for one in self.watched.values()), default=math.inf)
            with self._waiting:
                await trio.sleep_until(self._until)
            now = trio.current_time()
            due = [one for one in self.watched.values() if one.due <= now]
            for one in due:
                self._look(one, now)
            over = [one for one in due if now - one.since >= one.limit]
            if over:
                # the last look at a session file may have been before its newest line
                await self.look_at_sessions(run.id for o in over for run in o.live.run.subtree())
            for one in due:
                if self.watched.get(one.live.run.id) is one:
                    self._tell(one, trio.current_time())

    def _look(self, one: _Watched, now: float) -> None:
        """Note whether its processes have worked since the last look."""
        run = one.live.run
        sample = self.launcher.footprints([run.id], cpu=True).get(run.id)
        used = one.use(now, sample, self.signs.share(one.live))
        if used or run.status is not Status.RUNNING or run.paused_in_lineage or run.asks:
            one.since = now
        else:
            one.since = max(one.since, self.signs.of(one.live, now) or 0.0)

    def _tell(self, one: _Watched, now: float) -> None:
        """Decide when to look again, and tell of its silence."""
        run = one.live.run
        one.since = max(one.since, self.signs.of(one.live, now) or 0.0)
        silent = now - one.since
        left, pause = one.limit - silent, max(LEAST, one.limit / LOOKS)
        one.due = now + (min(left, pause) if left > 0 else pause)
        if silent >= self.nearing * one.limit:
            doing = "waiting for a person" if "waiting" in one.live.shown else ""
            self.feed(e.LevelSeen(now, run.id, LimitKind.SILENCE, silent, doing=doing))
