"""Containment without cgroups: by descent and by two marks that processes inherit. Best effort, as `doctor` tells the operator.

This process is a subreaper (prctl(2)), so whatever a run starts stays below it, and `Census` tells which run a process is in:
by its ancestors, by a soft RLIMIT_MSGQUEUE that only its run has (it survives `env -i`, setsid and a double fork, and can be
read of every process), or by the cookie in its environment.

A live process has a live parent, up to this process, because the orphans of dead processes become our children. So a run is
empty when none of our *direct* children that are in it is alive: one cheap read, and no race with processes that fork.

That is not true of runs that were adopted from a dead daemon, whose processes are elsewhere (`Abroad`). Such a run is empty
when two looks at all processes of the machine find none of it.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from time import monotonic
from typing import Literal

import trio

from ....protocol.types import RunId
from ... import procfs
from ...launched_runs import LaunchedRun, run_ids
from ...procfs import Stat
from ..interface import Door, Ground, RunContainment, RunLimits
from .adopted import Abroad
from .census import Census

_SLICE = 0.01
"""Seconds of signalling before the daemon's other tasks get their turn."""
_PASSES = 2
"""Scans of a SIGTERM at least: the second finds what was forked during the first."""
_PURSUIT = 0.1
"""Seconds after which a SIGTERM is not followed further: processes that fork faster are left to the SIGKILL after the grace.
Nothing is reaped meanwhile: ten scans of twenty lineages that forked without pause left 32 000 zombies, and the machine no pid."""
_WATCHED = 32
"""Pidfds waited on at a time; the next are looked for when these are gone."""
_INSIST = 0.5
"""Seconds between two kills of what does not go."""
_STILL = 1.0
"""Seconds between two looks whether paused runs stand still."""
_SETTLE, _APART = 0.002, 0.1
"""Seconds between two looks whether every process has stopped: at first, and at most, where one does not stop (uninterruptible
sleep). The kernel notifies us only of our own children."""


class TagsContainment(RunContainment):
    """Contains runs by descent and marks. `why` tells the reason for not using cgroups."""

    kind: Literal["cgroup", "tags"] = "tags"
    adopted: Abroad

    def __init__(self, ground: Ground, *, why: str = "") -> None:
        self.detail = why or "asked for"
        self._runs = ground.runs
        self._reactor = ground.reactor
        self._orphans = ground.orphans
        self._owed = ground.owed
        self.limits = RunLimits()
        self.adopted = Abroad(ground.runs)
        self._census = Census(ground.runs, ground.orphans, self.adopted)
        self._paused: set[LaunchedRun] = set()
        self._holding = False
        """Whether `_keep_still` runs."""
        self._terminating: dict[LaunchedRun, tuple[int, int]] = {}
        """Runs to be signalled: the signal, and the number of the stop that asked for it."""
        self._killing: dict[LaunchedRun, int] = {}
        """Runs to be killed, and the number of the stop that asked for it."""
        self._slaying = False
        """Whether `_kill_all` runs."""
        self._kill_now = trio.Event()
        self._draining: set[LaunchedRun] = set()
        """Runs whose `_drain` runs."""

    # Entering and leaving.

    def enter(self, run: LaunchedRun) -> Door:
        self.adopted.forget(run)  # an earlier attempt's processes are gone, or the run would not start again
        return Door(msgqueue=self._runs.tag_of(run))

    def leave(self, run: LaunchedRun) -> None:
        self.adopted.forget(run)
        self._paused.discard(run)
        self._killing.pop(run, None)
        self._terminating.pop(run, None)

    # Stopping.

    def terminate(self, run: LaunchedRun, number: int) -> None:
        self._paused.difference_update(run.subtree())
        if not self._terminating:
            self._reactor.soon(self._signal_all)  # one scan for all that are stopped at the same time
        self._terminating[run] = (number, run.ladder)

    def _signal_all(self) -> None:
        asked = {run: number for run, (number, ladder) in self._terminating.items() if run.in_stop(ladder)}
        for number in set(asked.values()):
            runs = run_ids(run for run in asked if asked[run] == number)
            done: set[tuple[int, int]] = set()
            until = monotonic() + _PURSUIT
            for scans in count(1):
                fresh = self._strike(runs, (number, signal.SIGCONT), done)
                if not fresh or (scans >= _PASSES and monotonic() > until):
                    break
        self._terminating = {}
        for run in asked:
            self._drain_soon(run)

    def kill(self, run: LaunchedRun) -> None:
        self._killing[run] = run.ladder
        if not self._slaying:
            self._slaying = True
            self._reactor.task(self._kill_all)
        self._kill_now.set()
        self._drain_soon(run)

    async def _kill_all(self) -> None:
        while True:
            # also before the first look: the run may have ended by then, and be in its next attempt
            self._killing = {run: ladder for run, ladder in self._killing.items() if run.in_stop(ladder)}
            if not self._killing:
                break
            self._kill_now = trio.Event()
            if self._slay(run_ids(self._killing)):
                await trio.lowlevel.checkpoint()
            else:
                with trio.move_on_after(_INSIST):
                    await self._kill_now.wait()
        self._slaying = False

    def _slay(self, runs: set[RunId]) -> bool:
        """Kill for a while; return whether the last look still found something new."""
        until = monotonic() + _SLICE
        struck: set[tuple[int, int]] = set()
        while monotonic() < until:
            fresh = self._census.kill_children(runs, struck)
            if not fresh and not self._strike(runs, (signal.SIGKILL,), struck):
                return False
        return True

    def _strike(self, runs: set[RunId], numbers: tuple[int, ...], done: set[tuple[int, int]]) -> bool:
        """Signal the processes that are not in `done` yet; return whether there were any."""
        fresh = [process for process, _ in self._census.take(runs) if (process.pid, process.started) not in done]
        for process in fresh:
            _send(process, numbers)
            done.add((process.pid, process.started))
        return bool(fresh)

    def _drain_soon(self, run: LaunchedRun) -> None:
        if run not in self._draining:
            self._draining.add(run)
            self._reactor.task(self._drain, run)

    async def _drain(self, run: LaunchedRun) -> None:
        """Wait until nothing of the run is alive."""
        self._draining.add(run)
        try:
            while run.emptying:
                tops = self._census.tops(run_ids([run]))
                if tops:
                    await self._reactor.wait_ended(tops[:_WATCHED], _INSIST)
                else:
                    self._owed.consider(run)
                    await trio.sleep(_INSIST if _awaits_news(run) else _SETTLE)  # a main that has ended is reaped meanwhile
        finally:
            self._draining.discard(run)

    # Pausing.

    def freeze(self, run: LaunchedRun) -> None:
        self._paused.add(run)
        self._reactor.task(self._hold_still, run)

    async def _hold_still(self, run: LaunchedRun) -> None:
        pause = _SETTLE
        while run.freezing and (awake := [one for one, _ in self._census.take(run_ids([run])) if not _stands(one)]):
            for process in awake:  # also one that was stopped before: another process may have continued it
                _send(process, (signal.SIGSTOP,))
            await trio.sleep(pause)
            pause = min(2 * pause, _APART)
        self._owed.stands_still(run)
        if not self._holding:
            self._holding = True
            self._reactor.task(self._keep_still)

    async def _keep_still(self) -> None:
        """Stop again what another process has continued: the clocks of these runs stand."""
        while self._paused:
            await trio.sleep(_STILL)
            for process, _ in self._census.take(run_ids(self._paused)):
                if not _stands(process):
                    _send(process, (signal.SIGSTOP,))
        self._holding = False

    def thaw(self, run: LaunchedRun) -> None:
        self._paused.discard(run)
        still_paused = {below.id for below in run.subtree() if self._paused.intersection(below.chain())}
        for process, run_id in self._census.take(run_ids([run])):
            if run_id not in still_paused:
                _send(process, (signal.SIGCONT,))

    # Looking.

    def populated(self, run: LaunchedRun) -> bool:
        return self._census.populated(run_ids([run]))

    def members(self, *tops: LaunchedRun) -> Iterator[tuple[int, RunId]]:
        return ((process.pid, run_id) for process, run_id in self._census.take(run_ids(tops)))

    def place(self, pid: int, pidfd: int | None) -> RunId | None:
        return self._census.place(pid, pidfd)


def _stands(process: Stat) -> bool:
    """Return whether a process runs no more.

    A process that waits in vfork(2) for its child cannot be stopped, and would wait for ever if the child is; but it does
    nothing else, and is stopped before it continues."""
    if process.state in "ZX":  # the main thread has ended, others have not
        return procfs.threads_stopped(process.pid)
    return process.stopped or (process.state == "D" and procfs.will_stop(process.pid))


def _awaits_news(run: LaunchedRun) -> bool:
    """Return whether another process has to reap a main process: that can take seconds, and is reported."""
    return any(not main.ours for main in run.mains)


def _send(process: Stat, numbers: tuple[int, ...]) -> None:
    """Signal exactly this process: the start time, read after its pidfd was opened, rules out that its pid was used again."""
    with suppress(ProcessLookupError, PermissionError):
        pidfd = os.pidfd_open(process.pid)
        try:
            now = procfs.stat(process.pid)
            if now is not None and now.started == process.started:
                for number in numbers:
                    signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)
