"""Processes that have left their run's cgroup and are still ours: a main process, whose pidfd is open, or an orphan, our child.

Processes below one of these come to us as orphans when it has ended.
"""

import os
import select
import signal
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from time import monotonic

from ....host.descriptors import lifted
from ....protocol.types import RunId
from ... import procfs
from ...launched_runs import LaunchedRun, run_ids
from ...watch.reactor import Complaints, Reactor, wait_ended
from ..interface import LauncherParts
from . import cgroupfs
from .cgroups import RunCgroup, RunCgroups

KILL_EVERY = 1.0
"""Seconds between two kills of what does not go: something may have been moved into the cgroup after the first."""
_SIGNAL_SLICE = 0.01
"""Seconds of signalling before the daemon's other tasks get their turn."""
_LOOKS = 20
"""Looks at orphans in a row. A process that forks and exits without pause may have gone at each, but hardly at all of them."""
_PIDFDS_AT_ONCE = 32
"""Pidfds of escaped processes waited on at a time."""


class Escapes:
    def __init__(self, parts: LauncherParts, cgroups: RunCgroups) -> None:
        self._runs = parts.runs
        self._reactor = parts.reactor
        self._orphans = parts.orphans
        self._owed = parts.owed
        self._cgroups = cgroups
        self._stopping: set[LaunchedRun] = set()
        """Runs whose escaped processes are being stopped."""

    def of(self, run: LaunchedRun) -> Iterator[tuple[int, RunId]]:
        """Yield the escaped processes of a run and its descendants, with the run each is of. Raises `OSError`."""
        runs = run_ids([run])
        for below in run.subtree():
            main = below.main
            if main is None or main.report is not None:  # a trampoline may not be in yet
                continue
            if self._cgroups.run_of(main.pid) not in runs and procfs.is_alive(main.pid, main.started):
                yield main.pid, below.id
        yield from self.orphaned(runs)

    def orphaned(self, runs: Container[RunId], poll: int | None = None) -> Iterator[tuple[int, RunId]]:
        """Yield those that have no parent in their run any more. `poll`: that of the reactor which told that a main process has
        ended: of many that have ended together, one look tells. Raises `OSError`."""
        if poll is not None and self._orphans.none_since == poll:
            return
        found: set[int] = set()
        for look in range(_LOOKS):
            alive = vanished = False
            for pid in self._orphans.unreaped():
                known = self._orphans.homes.get(pid)
                if known is not None and known in self._runs and known not in runs:
                    alive = True
                    continue  # it is looked at again when that run ends
                if look == 0 and self._orphans.reap_one(pid):
                    vanished = True  # they may be thousands: where one was is asked only of those that the next look finds
                    continue
                process, inside = procfs.stat(pid), self._cgroups.run_of(pid)
                if process is None or not process.alive:
                    # it may have left a child since the look began; within a cgroup, that keeps the cgroup populated
                    vanished |= self._orphans.reap_one(pid) and inside is None
                    continue
                alive = True
                home = self._home(process, inside)
                if home is not None and home in runs and inside not in runs and pid not in found:
                    found.add(pid)
                    yield pid, home
            if not vanished:
                if poll is not None and not alive:
                    self._orphans.none_since = poll
                return

    def know(self, members: Iterable[tuple[int, RunId]]) -> None:
        """Note of which runs the orphans among these frozen processes are: they may leave the cgroup, and shed their marks, when
        they get the signal. Raises `OSError`."""
        orphans = set(self._orphans.unreaped())
        self._orphans.homes |= {pid: run for pid, run in members if pid in orphans}

    def _home(self, process: procfs.Stat, inside: RunId | None) -> RunId | None:
        """Return the run of a live orphan, as it was found the first time: it may shed its marks. A run that was released has not
        found it."""
        home = self._orphans.homes.get(process.pid)
        if home is None or home not in self._runs:
            home = self._runs.by_cookie(process.pid) or self._runs.by_tag(process.pid) or inside
            home = home or self._runs.sole_tree(process.started)
            if home is not None:
                self._orphans.homes[process.pid] = home
        return home

    def signal(self, run: LaunchedRun, *numbers: int) -> None:
        self._signal(run, [pid for pid, _ in self.of(run)], *numbers)

    def _signal(self, run: LaunchedRun, pids: Iterable[int], *numbers: int) -> None:
        mains = {main.pid: main for main in run.mains}
        for pid in pids:
            for number in numbers:
                with suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(mains[pid].pidfd, number) if pid in mains else os.kill(pid, number)

    def stop_soon(self, run: LaunchedRun) -> None:
        """While the run is being emptied, stop its escaped processes. Raises `OSError`."""
        if run not in self._stopping and run.emptying and any(self.of(run)):
            self._stopping.add(run)
            self._reactor.task(self._stop_escaped, run)

    async def _stop_escaped(self, run: LaunchedRun) -> None:
        """Signal the escaped processes with the last signal of the stop, until there are none."""
        signalled: set[tuple[int, int]] = set()
        while run.emptying and (left := self._signal_new(run, signalled)):
            await wait_ended(self._reactor, left[:_PIDFDS_AT_ONCE], KILL_EVERY)
        self._stopping.discard(run)
        self._owed.report_if_empty(run)

    def _signal_new(self, run: LaunchedRun, signalled: set[tuple[int, int]]) -> list[int]:
        """Signal each process once; return those of the last look. A process that forks and exits without pause has a new pid
        at each look."""
        until = monotonic() + _SIGNAL_SLICE
        with lifted():
            while True:
                found = [pid for pid, _ in self.of(run)]
                fresh = [pid for pid in found if (pid, run.stop_signal) not in signalled]
                if not fresh or monotonic() > until:
                    return found
                self._signal(run, fresh, run.stop_signal, signal.SIGCONT)
                signalled.update((pid, run.stop_signal) for pid in found)


# ---- What the kernel tells of a cgroup in `cgroup.events`: whether it is populated, and whether it is frozen


_EMPTY = b"populated 0\nfrozen 1\n"
"""What `cgroup.events` would say of a cgroup that is gone."""


class CgroupEvents:
    """Watches the cgroups of runs, and calls `learn` with the content of `cgroup.events`."""

    def __init__(
        self,
        cgroups: RunCgroups,
        reactor: Reactor,
        complaints: Complaints,
        learn: Callable[[LaunchedRun, RunCgroup, bytes], object],
    ) -> None:
        self._cgroups = cgroups
        self._reactor = reactor
        self._complaints = complaints
        self._learn = learn

    def watch(self, run: LaunchedRun, group: RunCgroup) -> None:
        """From now on learn of every change, and soon of the present content."""
        if group.events is not None:
            self._reactor.soon(self._look, run, group)
            return
        try:
            events = os.open(f"{group.directory}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # another process removed the cgroup, so it is empty
            self._reactor.soon(self._learn, run, group, _EMPTY)
            return
        except OSError as error:
            self._poll_later(run, group, error)
            return
        try:
            self._reactor.add(events, lambda: self._look(run, group), select.EPOLLPRI)
        except OSError as error:
            os.close(events)
            self._poll_later(run, group, error)
            return
        group.events = events
        self._reactor.soon(self._look, run, group)  # what changed before

    def _poll_later(self, run: LaunchedRun, group: RunCgroup, error: OSError) -> None:
        """Read the file now and then, until there is a descriptor to watch it with."""
        self._complaints.failed(error)
        self._reactor.later(self._poll, run, group)

    def _poll(self, run: LaunchedRun, group: RunCgroup) -> None:
        if group.events is None and (run.emptying or run.freezing):
            self._learn(run, group, cgroupfs.read(f"{group.directory}/cgroup.events") or _EMPTY)
        if group.events is None and (run.emptying or run.freezing):
            self.watch(run, group)

    def _look(self, run: LaunchedRun, group: RunCgroup) -> None:
        if group.events is None:
            return
        try:
            events = os.pread(group.events, 256, 0)  # reading ends the EPOLLPRI
        except OSError as error:
            if error.errno not in procfs.GONE:
                raise
            self._cgroups.unwatch(group)
            events = _EMPTY
        self._learn(run, group, events)
