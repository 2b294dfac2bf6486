"""Containment without cgroups, by descent and marks: which run a process is in, and signals until
nothing is left."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, count
from time import monotonic
from typing import Literal

import psutil
import trio

from ...protocol.types import RunId
from .. import kernel, observed
from ..kernel import Stat, send
from ..launched_runs import LaunchedRun, LaunchedRuns, run_ids
from ..launcher import Unidentifiable
from ..trampoline.creating import Door
from ..watch import Orphans, reap_orphan, wait_ended
from .interface import AdoptedRuns, KernelLimits, LauncherParts, RunContainment, RunPauses, RunStops
from .membership import (
    MarkedProcess,
    RecentScan,
    descends,
    run_by_cookie,
    run_by_marks,
    scan_marks,
    still_there,
    unmarked,
    with_marks,
    with_steady_ancestors,
)

# ---- Which run a process is in, by descent and marks
#
# A process is in the run of its nearest ancestor that is known. If it lost that ancestor it became
# our child; then its tag tells its run, else its cookie. Both can be copied, so below a known
# ancestor a tag counts only if it names a run of its subtree.

# ---- Runs of an earlier daemon, without cgroups: their processes are not below this one
#
# While there are such runs, all processes of the machine are looked at for their marks.


class AdoptedTags(AdoptedRuns):
    def __init__(self, runs: LaunchedRuns) -> None:
        self._runs = runs
        self._scan = RecentScan()
        self._elsewhere: set[RunId] = set()
        """Runs that may have processes which are not below this one."""

    def __bool__(self) -> bool:
        return bool(self._elsewhere)

    def concerns(self, runs: set[RunId]) -> bool:
        """Return whether one of these runs may have processes that are not below this one."""
        return bool(runs & self._elsewhere)

    def rejoin(self, run: LaunchedRun) -> None:
        self._runs.tag_of(run)

    def forget(self, run: LaunchedRun) -> None:
        self._elsewhere.discard(run.id)

    def is_of(self, run: LaunchedRun, pid: int) -> bool:
        process = observed.find(pid)
        tag = self._runs.tag_of(run)
        tags = {tag: run.id} if tag is not None else {}
        return (
            process is not None
            and run_by_marks(with_marks(process), None, {run.cookie: run.id}, tags) == run.id
        )

    def finish(self, run: LaunchedRun) -> bool:
        if run.main is not None:
            if not run.main.ours:
                self._elsewhere.add(run.id)
            return True
        recent = self._scan.recent()
        found = recent.members(run.cookie, self._runs.tag_of(run))
        if not {process.pid for process in found} <= recent.ours:
            self._elsewhere.add(run.id)
        return any(process.is_running() and observed.lives(process) for process in found)

    def processes(self) -> Iterator[tuple[Stat, RunId]]:
        """Yield what is alive in adopted runs and not below this process. Raises `OSError`."""
        if self._elsewhere:
            for one, run_id in scan_marks().with_runs(self.run_of, but=os.getpid()):
                process = kernel.stat(one.process.pid) if run_id else None
                if process and run_id and one.process.is_running():  # no other process has its pid
                    yield process, run_id

    def run_of(self, one: MarkedProcess, inherited: RunId | None) -> RunId | None:
        """Return the run of a process that is not below this one, by its parent's run and its
        marks."""
        if inherited:
            tagged = self._runs.tags.get(one.tag) if one.tag is not None else None
            return (
                tagged if tagged is not None and self._runs.within(tagged, inherited) else inherited
            )
        cookies = {self._runs[run_id].cookie: run_id for run_id in self._elsewhere}
        tags = {tag: run_id for tag, run_id in self._runs.tags.items() if run_id in self._elsewhere}
        return run_by_marks(one, inherited, cookies, tags)


# ---- Which run a process is in


class TagsMembership:
    """Finds the run of a process. Every method may raise `OSError`."""

    def __init__(self, runs: LaunchedRuns, orphans: Orphans, adopted: AdoptedTags) -> None:
        self._runs = runs
        self._orphans = orphans
        self._adopted = adopted
        self._strays: dict[psutil.Process, RunId] = {}
        """Processes that have the tag of a run which they are not in, and the run that they are in.
        They may lose the ancestor that tells it."""

    def run_of(self, pid: int, pidfd: int | None) -> RunId | None:
        """Return the run of a descendant by its nearest ancestor that is known; of an orphan by
        tag, else by cookie; of any other process by cookie. Raises `Unidentifiable`, `OSError`."""
        if pid <= 0:
            raise Unidentifiable("the process is in another pid namespace")
        run_id, ours = with_steady_ancestors(pid, self._by_descent)
        run_id = run_id or run_by_cookie(pid, self._runs)
        if not psutil.pid_exists(pid) or not still_there(pidfd):
            raise Unidentifiable(f"process {pid} ended before it could be identified")
        if run_id is None and ours:
            raise unmarked(pid)
        return run_id

    def _by_descent(self, line: list[Stat]) -> tuple[RunId | None, bool]:
        """Return the run, and whether the process descends from this one."""
        found: RunId | None = None
        ours = descends(line)
        for ancestor in reversed(line[:-1] if ours else line if self._adopted else []):
            if ours:
                found = self._marked_below(ancestor.pid, found)
            elif (process := observed.find(ancestor.pid)) is not None:
                found = self._adopted.run_of(with_marks(process), found)
        return found or None, ours

    def run_of_child(self, pid: int) -> RunId | None:
        """Return the run of a direct child of this process. Nothing tells that of a zombie without
        a tag."""
        return (
            self._orphans.owned.get(pid)
            or self._stray(pid)
            or self._by_mark(pid)
            or self._sole(pid)
        )

    def run_below(self, process: Stat, inherited: RunId | None) -> RunId | None:
        """Return the run of a process whose parent is in `inherited`."""
        run_id = self._marked_below(process.pid, inherited) or (
            self._sole(process.pid) if inherited is None else None
        )
        if (
            run_id is not None
            and self._runs.by_tag(process.pid) not in (None, run_id)
            and (stray := observed.find(process.pid))
        ):
            self._strays[stray] = run_id
        return run_id

    def _marked_below(self, pid: int, inherited: RunId | None) -> RunId | None:
        """Return the same, but only what is proven: a guess may stop a process, but gives it no
        rights."""
        owned = self._orphans.owned.get(pid)
        if owned or inherited is None:
            return owned or self._stray(pid) or self._by_mark(pid)
        number = self._runs.by_tag(pid)
        return number if number is not None and self._runs.within(number, inherited) else inherited

    def _stray(self, pid: int) -> RunId | None:
        process = observed.find(pid) if self._strays else None
        return self._strays.get(process) if process else None

    def _by_mark(self, pid: int) -> RunId | None:
        return self._runs.by_tag(pid) or (
            self._runs.by_cookie(pid) if kernel.is_alive(pid) else None
        )

    def _sole(self, pid: int) -> RunId | None:
        """Return the run of an orphan that has removed its marks, where only one tree can be
        meant."""
        process = kernel.stat(pid)
        return self._runs.sole_tree(process.started) if process and process.alive else None

    def forget_strays(self) -> None:
        """Forget those that have ended, or whose run was released."""
        kept = (
            stray
            for stray, run_id in self._strays.items()
            if run_id in self._runs and stray.is_running()
        )
        self._strays = {stray: self._strays[stray] for stray in kept}


# ---- The processes of runs, by descent and marks


_LISTINGS = 3
"""Listings of our children, before children that come and go without pause are taken for live
ones."""


class Census:
    """Finds the processes of runs. Every method may raise `OSError`."""

    def __init__(self, orphans: Orphans, adopted: AdoptedTags, membership: TagsMembership) -> None:
        self._orphans = orphans
        self._adopted = adopted
        self._membership = membership

    def take(self, runs: set[RunId]) -> Iterator[tuple[Stat, RunId]]:
        """Yield what is alive in these runs, from one scan."""
        self._orphans.reap()
        outside = self._adopted.processes() if self._adopted.concerns(runs) else ()
        return (
            (process, run_id)
            for process, run_id in chain(self._below_us(), outside)
            if run_id in runs
        )

    def _below_us(self) -> Iterator[tuple[Stat, RunId | None]]:
        """Yield our live descendants. A zombie has no children any more."""
        table = kernel.scan()
        self._membership.forget_strays()
        families: dict[int, list[Stat]] = defaultdict(list)
        for process in table.values():
            above = table.get(process.parent)
            # an orphan below us is left to us, if its parent has ended meanwhile
            families[
                process.parent if process.parent == 0 or (above and above.alive) else os.getpid()
            ].append(process)
        pending: list[tuple[int, RunId | None]] = [(os.getpid(), None)]
        while pending:
            parent, inherited = pending.pop()
            for process in (one for one in families.pop(parent, ()) if one.alive):
                run_id = self._membership.run_below(process, inherited)
                pending.append((process.pid, run_id))
                yield process, run_id

    def live_children(self, runs: set[RunId]) -> list[int]:
        """Return our live direct children in these runs. While there is none, nothing of the runs
        is alive.

        A child that forked and ended between the listing and the look at it has left its children
        to us: they are in the next listing. So only a listing without a new child says that there
        is none. If each of some listings has a new child, which may be of the run, something is
        alive, and the daemon's other tasks need their turn: looking until one was caught alive took
        eleven seconds and 32 000 zombies, with twenty processes that forked without pause on two
        cores."""
        seen: set[int] = set()
        for _ in range(_LISTINGS):
            self._orphans.reap()
            fresh = [pid for pid in kernel.children() if pid not in seen]
            placed = [(pid, self._membership.run_of_child(pid)) for pid in fresh]
            alive = [pid for pid, run_id in placed if run_id in runs and kernel.is_alive(pid)]
            if alive:
                return alive
            if not fresh:
                return self._live_elsewhere(runs)
            seen.update(fresh)
        return [
            pid for pid, run_id in placed if run_id in runs or run_id is None
        ] or self._live_elsewhere(runs)

    def _live_elsewhere(self, runs: set[RunId]) -> list[int]:
        """Return processes of these runs that are not below us. A process that forks and exits
        without pause cannot escape this below us; elsewhere it may."""
        for _ in range(2 if self._adopted.concerns(runs) else 0):
            found = [process.pid for process, run_id in self._adopted.processes() if run_id in runs]
            if found:
                return found
        return []

    def populated(self, runs: set[RunId]) -> bool:
        """Return whether anything but unreaped main processes is alive in these runs."""
        return any(pid not in self._orphans.owned for pid in self.live_children(runs))


# ---- Containment without cgroups: by descent and by two marks that processes inherit. Best effort,
# as `doctor` tells the operator
#
# This process is a subreaper (prctl(2)), so whatever a run starts stays below it, and `Census`
# tells which run a process is in: by its ancestors, by a soft RLIMIT_MSGQUEUE that only its run has
# (it survives `env -i`, setsid and a double fork, and can be read of every process), or by the
# cookie in its environment.
#
# A live process has a live parent, up to this process, because the orphans of dead processes become
# our children. So a run is empty when none of our *direct* children that are in it is alive: one
# cheap read, and no race with processes that fork.
#
# That is not true of runs that were adopted from a dead daemon, whose processes are elsewhere
# (`AdoptedTags`). Such a run is empty when two looks at all processes of the machine find none of
# it.

# ---- Pausing runs: SIGSTOP to every process, and again to what another process continues


_KEEP_EVERY = 1.0
"""Seconds between two looks whether paused runs stand still."""
_FIRST_LOOK, _LAST_LOOKS = 0.002, 0.1
"""Seconds between two looks whether every process has stopped: at first, and at most, where one
does not stop (uninterruptible sleep). The kernel notifies us only of our own children."""


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
        while run.freezing and (
            awake := [one for one, _ in self._census.take(run_ids([run])) if not _stands(one)]
        ):
            # also one that was stopped before: another process may have continued it
            for process in awake:
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
        still_paused = {
            below.id for below in run.subtree() if self._paused.intersection(below.upwards())
        }
        for process, run_id in self._census.take(run_ids([run])):
            if run_id not in still_paused:
                send(process, signal.SIGCONT)

    def end(self, run: LaunchedRun) -> None:
        """Let no process of the run and its descendants stand still, because they are stopped."""
        self._paused.difference_update(run.subtree())


def _stands(process: Stat) -> bool:
    """Return whether a process runs no more.

    A process that waits in vfork(2) for its child cannot be stopped, and would wait for ever if the
    child is; but it does nothing else, and is stopped before it continues."""
    if process.state in "ZX":  # the main thread has ended, others have not
        return observed.threads_stopped(process.pid)
    return process.state in "Tt" or (process.state == "D" and kernel.will_stop(process.pid))


# ---- Stopping runs: signals to every process of a run until nothing is left


_SIGNAL_SLICE = 0.01
"""Seconds of signalling before the daemon's other tasks get their turn."""
_MIN_SCANS = 2
"""Scans of a SIGTERM at least: the second finds what was forked during the first."""
_PURSUED_FOR = 0.1
"""Seconds after which a SIGTERM is not followed further: processes that fork faster are left to the
SIGKILL after the grace. Nothing is reaped meanwhile: ten scans of twenty processes that forked
without pause left 32 000 zombies, and the machine no pid."""
_PIDFDS_AT_ONCE = 32
"""Pidfds waited on at a time; the next are looked for when these are gone."""
_KILL_EVERY = 0.5
"""Seconds between two kills of what does not go."""
_LOOK_EVERY = 0.002
"""Seconds between two looks whether a main process that has ended was reaped."""


class TagsStops(RunStops):
    def __init__(
        self, parts: LauncherParts, census: Census, membership: TagsMembership, pauses: TagsPauses
    ) -> None:
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
            # one scan for all that are stopped at the same time
            self._reactor.soon(self._signal_all)
        self._terminating[run] = (number, run.stop_count)

    def _signal_all(self) -> None:
        asked = {
            run: number for run, (number, stop) in self._terminating.items() if run.in_stop(stop)
        }
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

        Against processes that fork and exit this is the race to win: each of their processes is our
        child as soon as the one before it is gone. A look costs microseconds, and the pid of an
        unreaped child is no other process's."""
        fresh = False
        for pid in kernel.children():
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
        fresh = [
            process
            for process, _ in self._census.take(runs)
            if (process.pid, process.started) not in signalled
        ]
        sandboxes = (
            set()
            if signal.SIGKILL in numbers
            else {pid for run in runs if run in self._runs for pid in self._runs[run].sandboxes}
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
                    # a main process that has ended is reaped meanwhile; another process may need
                    # seconds, and that is reported
                    await trio.sleep(
                        _KILL_EVERY if any(not main.ours for main in run.mains) else _LOOK_EVERY
                    )
        finally:
            self._draining.discard(run)


# ---- The containment, put together


class TagsContainment(RunContainment):
    """Contains runs by descent and marks. `why` tells the reason for not using cgroups."""

    kind: Literal["cgroup", "tags"] = "tags"
    adopted: AdoptedTags
    pauses: TagsPauses
    stops: TagsStops

    def __init__(self, parts: LauncherParts, *, why: str = "") -> None:
        self.detail = why or "asked for"
        self._runs = parts.runs
        self.limits = KernelLimits()
        self.adopted = AdoptedTags(parts.runs)
        self._membership = TagsMembership(parts.runs, parts.orphans, self.adopted)
        self._census = Census(parts.orphans, self.adopted, self._membership)
        self.pauses = TagsPauses(parts, self._census)
        self.stops = TagsStops(parts, self._census, self._membership, self.pauses)

    def make(self, run: LaunchedRun) -> Door:
        # an earlier attempt's processes are gone, or the run would not start again
        self.adopted.forget(run)
        return Door(msgqueue=self._runs.tag_of(run))

    def remove(self, run: LaunchedRun) -> None:
        self.adopted.forget(run)
        self.pauses.forget(run)

    def populated(self, run: LaunchedRun, poll: int | None = None) -> bool:  # noqa: ARG002 - it looks at all processes anyway
        return self._census.populated(run_ids([run]))

    def members(self, *tops: LaunchedRun) -> Iterator[tuple[int, RunId]]:
        return ((process.pid, run_id) for process, run_id in self._census.take(run_ids(tops)))

    def run_of(self, pid: int, pidfd: int | None) -> RunId | None:
        return self._membership.run_of(pid, pidfd)
