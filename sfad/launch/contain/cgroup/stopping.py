"""Stopping runs: signals to every process in a run's cgroup, and to those that have left it."""

import os
from contextlib import suppress
from signal import SIGKILL, pidfd_send_signal

import trio

from ....host.descriptors import lifted
from ...launched_runs import LaunchedRun
from ...watch.mains import signal_mains
from ..interface import LauncherParts, RunStops
from .cgroups import RunCgroup, RunCgroups
from .escapes import KILL_EVERY, Escapes
from .events import CgroupEvents
from .freeze_and_kill import CgroupControl, thaw_all

_FROZEN_WITHIN = 0.1
"""Seconds that a stop waits for the freezer."""


class CgroupStops(RunStops):
    def __init__(
        self, parts: LauncherParts, cgroups: RunCgroups, control: CgroupControl, events: CgroupEvents, escapes: Escapes
    ) -> None:
        self._reactor = parts.reactor
        self._cgroups = cgroups
        self._control = control
        self._events = events
        self._escapes = escapes

    def terminate(self, run: LaunchedRun, number: int) -> None:
        """Freeze, signal every process, and thaw: a process that forks meanwhile cannot outrun the signal."""
        group = self._cgroups.of(run)
        if group is None:
            signal_mains(run, number)
            self._escapes.stop_soon(run)
            return
        self._events.watch(run, group)
        group.frozen = trio.Event()
        self._control.write(group, "cgroup.freeze", b"1")
        group.halted = True
        self._reactor.task(self._stop, run, group, number, run.stop_count)

    async def _stop(self, run: LaunchedRun, group: RunCgroup, number: int, stop: int) -> None:
        with trio.move_on_after(_FROZEN_WITHIN):
            await group.frozen.wait()
        await self._reactor.retry(self._signal_all, run, number, stop)
        await self._reactor.retry(self._let_go, run, group, stop)

    async def _signal_all(self, run: LaunchedRun, number: int, stop: int) -> None:
        if not run.in_stop(stop):
            return
        with lifted():
            found = list(self._cgroups.members(run))
            self._escapes.know(found)
            members = [pid for pid, _ in found]
            sandboxes = run.sandboxes
            for pid in members:
                if pid in sandboxes:
                    continue
                with suppress(ProcessLookupError, PermissionError):
                    self._signal(run, pid, number)
            signal_mains(run, number, but=members)

    def _signal(self, run: LaunchedRun, pid: int, number: int) -> None:
        # SIGKILL ends a frozen process too, so the pid that was listed may be another process's by now, and of any user
        held = os.pidfd_open(pid)
        try:
            if self._cgroups.holds(run, pid):
                pidfd_send_signal(held, number)
        finally:
            os.close(held)

    async def _let_go(self, run: LaunchedRun, group: RunCgroup, stop: int) -> None:
        if run.in_stop(stop):
            with lifted():
                thaw_all(group)
                self._escapes.stop_soon(run)

    def kill(self, run: LaunchedRun) -> None:
        group = self._cgroups.of(run)
        if group:
            group.killed = True
            self._control.write(group, "cgroup.kill", b"1")
            self._events.watch(run, group)
            self._reactor.task(self._kill_again, run, group, run.stop_count)
        self._escapes.stop_soon(run)

    async def _kill_again(self, run: LaunchedRun, group: RunCgroup, stop: int) -> None:
        while True:
            await trio.sleep(KILL_EVERY)
            if not run.in_stop(stop):
                return
            signal_mains(run, SIGKILL)
            with lifted():
                self._control.write(group, "cgroup.kill", b"1")
