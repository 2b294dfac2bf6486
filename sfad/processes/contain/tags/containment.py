"""Containment without cgroups: by descent and by two marks that processes inherit. Best effort, as `doctor` tells the operator.

This process is a subreaper (prctl(2)), so whatever a run starts stays below it, and `Census` tells which run a process is in:
by its ancestors, by a soft RLIMIT_MSGQUEUE that only its run has (it survives `env -i`, setsid and a double fork, and can be
read of every process), or by the cookie in its environment.

A live process has a live parent, up to this process, because the orphans of dead processes become our children. So a run is
empty when none of our *direct* children that are in it is alive: one cheap read, and no race with processes that fork.

That is not true of runs that were adopted from a dead daemon, whose processes are elsewhere (`AdoptedTags`). Such a run is empty
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
from ...pidfd import send
from ...procfs import Stat
from ...trampoline.spawner import Door
from ...watch.reactor import wait_ended
from ...watch.reaper import reap_orphan
from ..interface import LauncherParts, RunContainment, RunLimits, RunPauses, RunStops
from .membership import AdoptedTags, Census, TagsMembership

# ---- Pausing runs: SIGSTOP to every process, and again to what another process continues


_KEEP_EVERY = 1.0
"""Seconds between two looks whether paused runs stand still."""
_FIRST_LOOK, _LAST_LOOKS = 0.002, 0.1
"""Seconds between two looks whether every process has stopped: at first, and at most, where one does not stop (uninterruptible
sleep). The kernel notifies us only of our own children."""


class TagsPauses(RunPauses):
    def __init__(self, parts: LauncherParts, census: Census) -> None:
        self._reactor = parts.reactor
        self._owed = parts.owed
        self._census = census
        self._paused: set[LaunchedRun] = set()
        self.forget = self._paused.discard  # for each run that ends
        self._keeping = False
        """Whether `_keep_still` runs."""

    def freeze(self, run: LaunchedRun) -> None:
        self._paused.add(run)
        self._reactor.task(self._stop_all, run)

    async def _stop_all(self, run: LaunchedRun) -> None:
        pause = _FIRST_LOOK
        while run.freezing and (awake := [one for one, _ in self._census.take(run_ids([run])) if not _stands(one)]):
            for process in awake:  # also one that was stopped before: another process may have continued it
                send(process, signal.SIGSTOP)
            await trio.sleep(pause)
            pause = min(2 * pause, _LAST_LOOKS)
        self._owed.report_frozen(run)
        if not self._keeping:
            self._keeping = True
            self._reactor.task(self._keep_still)

    async def _keep_still(self) -> None:
        """Stop again what another process has continued: the clocks of these runs stand."""
        while self._paused:
            await trio.sleep(_KEEP_EVERY)
            for process, _ in self._census.take(run_ids(self._paused)):
                if not _stands(process):
                    send(process, signal.SIGSTOP)
        self._keeping = False

    def thaw(self, run: LaunchedRun) -> None:
        self._paused.discard(run)
        still_paused = {below.id for below in run.subtree() if self._paused.intersection(below.upwards())}
        for process, run_id in self._census.take(run_ids([run])):
            if run_id not in still_paused:
                send(process, signal.SIGCONT)

    def end(self, run: LaunchedRun) -> None:
        """Let no process of the run and its descendants stand still, because they are stopped."""
        self._paused.difference_update(run.subtree())


def _stands(process: Stat) -> bool:
    """Return whether a process runs no more.

    A process that waits in vfork(2) for its child cannot be stopped, and would wait for ever if the child is; but it does
    nothing else, and is stopped before it continues."""
    if process.state in "ZX":  # the main thread has ended, others have not
        return procfs.threads_stopped(process.pid)
    return process.stopped or (process.state == "D" and procfs.will_stop(process.pid))


# ---- Stopping runs: signals to every process of a run until nothing is left


_SIGNAL_SLICE = 0.01
"""Seconds of signalling before the daemon's other tasks get their turn."""
_MIN_SCANS = 2
"""Scans of a SIGTERM at least: the second finds what was forked during the first."""
_PURSUED_FOR = 0.1
"""Seconds after which a SIGTERM is not followed further: processes that fork faster are left to the SIGKILL after the grace.
Nothing is reaped meanwhile: ten scans of twenty processes that forked without pause left 32 000 zombies, and the machine no pid."""
_PIDFDS_AT_ONCE = 32
"""Pidfds waited on at a time; the next are looked for when these are gone."""
_KILL_EVERY = 0.5
"""Seconds between two kills of what does not go."""
_LOOK_EVERY = 0.002
"""Seconds between two looks whether a main process that has ended was reaped."""


class TagsStops(RunStops):
    def __init__(self, parts: LauncherParts, census: Census, membership: TagsMembership, pauses: TagsPauses) -> None:
        self._runs = parts.runs
        self._reactor = parts.reactor
        self._orphans = parts.orphans
        self._owed = parts.owed
        self._census = census
        self._membership = membership
        self._pauses = pauses
        self._terminating: dict[LaunchedRun, tuple[int, int]] = {}
        """Runs to be signalled: the signal, and the number of the stop that asked for it."""
        self._killing: dict[LaunchedRun, int] = {}
        """Runs to be killed, and the number of the stop that asked for it."""
        self._kills = False
        """Whether `_kill_all` runs."""
        self._kill_now = trio.Event()
        self._draining: set[LaunchedRun] = set()
        """Runs whose `_drain` runs."""

    def terminate(self, run: LaunchedRun, number: int) -> None:
        self._pauses.end(run)
        if not self._terminating:
            self._reactor.soon(self._signal_all)  # one scan for all that are stopped at the same time
        self._terminating[run] = (number, run.stop_count)

    def _signal_all(self) -> None:
        asked = {run: number for run, (number, stop) in self._terminating.items() if run.in_stop(stop)}
        for number in set(asked.values()):
            runs = run_ids(run for run in asked if asked[run] == number)
            signalled: set[tuple[int, int]] = set()
            until = monotonic() + _PURSUED_FOR
            for scans in count(1):
                fresh = self._signal_new(runs, signalled, number, signal.SIGCONT)
                if not fresh or (scans >= _MIN_SCANS and monotonic() > until):
                    break
        self._terminating = {}
        for run in asked:
            self._drain_soon(run)

    def kill(self, run: LaunchedRun) -> None:
        self._killing[run] = run.stop_count
        if not self._kills:
            self._kills = True
            self._reactor.task(self._kill_all)
        self._kill_now.set()
        self._drain_soon(run)

    async def _kill_all(self) -> None:
        while True:
            # also before the first look: the run may have ended by then, and be in its next attempt
            self._killing = {run: stop for run, stop in self._killing.items() if run.in_stop(stop)}
            if not self._killing:
                break
            self._kill_now = trio.Event()
            if self._kill_slice(run_ids(self._killing)):
                await trio.lowlevel.checkpoint()
            else:
                with trio.move_on_after(_KILL_EVERY):
                    await self._kill_now.wait()
        self._kills = False

    def _kill_slice(self, runs: set[RunId]) -> bool:
        """Kill for a while; return whether the last look still found something new."""
        until = monotonic() + _SIGNAL_SLICE
        signalled: set[tuple[int, int]] = set()
        while monotonic() < until:
            fresh = self._kill_children(runs, signalled)
            if not fresh and not self._signal_new(runs, signalled, signal.SIGKILL):
                return False
        return True

    def _kill_children(self, runs: set[RunId], signalled: set[tuple[int, int]]) -> bool:
        """Kill the direct children that are not in `signalled` yet; return whether there were any.

        Against processes that fork and exit this is the race to win: each of their processes is our child as soon as the one
        before it is gone. A look costs microseconds, and the pid of an unreaped child is no other process's."""
        fresh = False
        for pid in procfs.children():
            if (pid, 0) not in signalled and self._membership.run_of_child(pid) in runs:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
                signalled.add((pid, 0))
                fresh = True
            if pid not in self._orphans.owned:
                reap_orphan(pid)
        return fresh

    def _signal_new(self, runs: set[RunId], signalled: set[tuple[int, int]], *numbers: int) -> bool:
        """Signal the processes that are not in `signalled` yet; return whether there were any."""
        fresh = [process for process, _ in self._census.take(runs) if (process.pid, process.started) not in signalled]
        sandboxes = (
            set() if signal.SIGKILL in numbers else {pid for run in runs if run in self._runs for pid in self._runs[run].sandboxes}
        )
        for process in fresh:
            if process.pid not in sandboxes:
                send(process, *numbers)
            signalled.add((process.pid, process.started))
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
                children = self._census.live_children(run_ids([run]))
                if children:
                    await wait_ended(self._reactor, children[:_PIDFDS_AT_ONCE], _KILL_EVERY)
                else:
                    self._owed.report_if_empty(run)
                    # a main process that has ended is reaped meanwhile; another process may need seconds, and that is reported
                    await trio.sleep(_KILL_EVERY if any(not main.ours for main in run.mains) else _LOOK_EVERY)
        finally:
            self._draining.discard(run)


# ---- containment


class TagsContainment(RunContainment):
    """Contains runs by descent and marks. `why` tells the reason for not using cgroups."""

    kind: Literal["cgroup", "tags"] = "tags"
    adopted: AdoptedTags
    pauses: TagsPauses
    stops: TagsStops

    def __init__(self, parts: LauncherParts, *, why: str = "") -> None:
        self.detail = why or "asked for"
        self._runs = parts.runs
        self.limits = RunLimits()
        self.adopted = AdoptedTags(parts.runs)
        self._membership = TagsMembership(parts.runs, parts.orphans, self.adopted)
        self._census = Census(parts.orphans, self.adopted, self._membership)
        self.pauses = TagsPauses(parts, self._census)
        self.stops = TagsStops(parts, self._census, self._membership, self.pauses)

    def enter(self, run: LaunchedRun) -> Door:
        self.adopted.forget(run)  # an earlier attempt's processes are gone, or the run would not start again
        return Door(msgqueue=self._runs.tag_of(run))

    def leave(self, run: LaunchedRun) -> None:
        self.adopted.forget(run)
        self.pauses.forget(run)

    def populated(self, run: LaunchedRun, poll: int | None = None) -> bool:  # noqa: ARG002 - it looks at all processes anyway
        return self._census.populated(run_ids([run]))

    def members(self, *tops: LaunchedRun) -> Iterator[tuple[int, RunId]]:
        return ((process.pid, run_id) for process, run_id in self._census.take(run_ids(tops)))

    def run_of(self, pid: int, pidfd: int | None) -> RunId | None:
        return self._membership.run_of(pid, pidfd)
