"""Containment in cgroup v2: one cgroup a run, nested like the runs, with the processes in its leaf `self`.

    PARENT/sfad-INSTANCE/RUN/self        the run's processes, and cgroups that they make themselves
                         RUN/CHILD/self  a child run's

So whatever is done to a run's cgroup is done to its descendants too. This rests on facts of the kernel (cgroups(7),
Documentation/admin-guide/cgroup-v2.rst, and measured on 6.18): a frozen process cannot fork; it takes SIGKILL at once, and
other signals when it is thawed; `populated` is 0 before the first process has attached, and does not count zombies;
`cgroup.events` is always readable, and signals a change by EPOLLPRI; `cgroup.kill` catches processes that are being forked,
and leaves `cgroup.freeze` as it was.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Literal

import trio

from ....host.descriptors import lifted
from ....protocol.types import RunId
from ... import procfs
from ...launched_runs import LaunchedRun, run_ids
from ...launcher import Complain
from ...watch.mains import signal_mains
from ..interface import Door, Ground, RunContainment
from . import cgroupfs
from .adopted import AdoptedCgroups
from .cgroups import RunCgroup, RunCgroups
from .controllers import Controllers
from .escapes import INSIST, Escapes
from .events import CgroupEvents
from .limits import KernelLimits
from .placing import CgroupPlacing

FREEZE_BOUND = 0.1
"""Seconds that a stop waits for the freezer."""


class CgroupContainment(RunContainment):
    """Contains runs in cgroups below `base`, which was probed."""

    kind: Literal["cgroup", "tags"] = "cgroup"
    adopted: AdoptedCgroups

    def __init__(self, ground: Ground, *, base: cgroupfs.Base, complain: Complain = lambda _text: None) -> None:
        self.detail = base.directory
        self._runs = ground.runs
        self._reactor = ground.reactor
        self._owed = ground.owed
        self._base = base
        self._controllers = Controllers(base, complain)
        self._controllers.prepare()
        self._own_cgroup = procfs.cgroup(os.getpid())
        """Where this process belongs, now that `prepare` has moved it if necessary."""
        self._cgroups = RunCgroups(base, self._controllers, ground.reactor)
        self._events = CgroupEvents(self._cgroups, ground.reactor, ground.complaints, self._learn)
        self.limits = KernelLimits(self._cgroups, self._controllers, ground.complaints)
        self._escapes = Escapes(ground, self._cgroups)
        self.adopted = AdoptedCgroups(ground.runs, self._cgroups, self.limits)
        self._placing = CgroupPlacing(ground.runs, self._cgroups, ground.orphans)

    # Entering and leaving.

    def enter(self, run: LaunchedRun) -> Door:
        try:
            return self._enter(run)
        except PermissionError as error:
            cgroupfs.regain(os.fsdecode(error.filename or self._base.directory), self._base.directory)
            return self._enter(run)

    def _enter(self, run: LaunchedRun) -> Door:
        group = self._cgroups.of(run) or self._cgroups.make(run)
        try:
            return self._open(run, group)
        except OSError as error:  # another process removed the cgroup, because it was empty
            if error.errno not in procfs.GONE:
                raise
            self._cgroups.forget(run)
            return self._open(run, self._cgroups.make(run))

    def _open(self, run: LaunchedRun, group: RunCgroup) -> Door:
        if group.bounds != run.bounds:
            self.limits.limit(run)
        if group.halted:  # the attempt before ended in its stop's freeze
            self._unfreeze(group)
        tag = self._runs.tag_of(run)
        return Door(os.open(f"{group.leaf}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC), tag)

    def leave(self, run: LaunchedRun) -> None:
        self.adopted.own(run)
        self._cgroups.remove(run)

    def close(self) -> None:
        self._cgroups.close()

    # Stopping.

    def terminate(self, run: LaunchedRun, number: int) -> None:
        """Freeze, signal every process, and thaw: a process that forks meanwhile cannot outrun the signal."""
        group = self._cgroups.of(run)
        if group is None:
            signal_mains(run, number)
            self._escapes.stop_soon(run)
            return
        self._events.watch(run, group)
        group.frozen = trio.Event()
        self._write(group, "cgroup.freeze", b"1")
        group.halted = True
        self._reactor.task(self._stop, run, group, number, run.ladder)

    async def _stop(self, run: LaunchedRun, group: RunCgroup, number: int, ladder: int) -> None:
        with trio.move_on_after(FREEZE_BOUND):
            await group.frozen.wait()
        await self._reactor.lasting(self._signal_all, run, number, ladder)
        await self._reactor.lasting(self._let_go, run, group, ladder)

    async def _signal_all(self, run: LaunchedRun, number: int, ladder: int) -> None:
        if not run.in_stop(ladder):
            return
        with lifted():
            members = [pid for pid, _ in self.members(run)]
            for pid in members:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)  # no frozen process can end, so no pid was used again
            signal_mains(run, number, but=members)

    async def _let_go(self, run: LaunchedRun, group: RunCgroup, ladder: int) -> None:
        if run.in_stop(ladder):
            with lifted():
                self._unfreeze(group)
                self._escapes.stop_soon(run)

    def _unfreeze(self, group: RunCgroup) -> None:
        for directory in cgroupfs.nested(group.directory):
            try:
                cgroupfs.write(f"{directory}/cgroup.freeze", b"0")
            except OSError as error:
                if error.errno not in procfs.GONE:
                    raise
        group.halted = False

    def kill(self, run: LaunchedRun) -> None:
        group = self._cgroups.of(run)
        if group:
            self._write(group, "cgroup.kill", b"1")
            self._events.watch(run, group)
            self._reactor.task(self._insist, run, group, run.ladder)
        self._escapes.stop_soon(run)

    async def _insist(self, run: LaunchedRun, group: RunCgroup, ladder: int) -> None:
        while True:
            await trio.sleep(INSIST)
            if not run.in_stop(ladder):
                return
            signal_mains(run, SIGKILL)
            with lifted():
                self._write(group, "cgroup.kill", b"1")

    # Pausing.

    def freeze(self, run: LaunchedRun) -> None:
        self._escapes.signal(run, SIGSTOP)
        group = self._cgroups.of(run)
        if group:
            self._write(group, "cgroup.freeze", b"1")
            self._events.watch(run, group)
        else:
            self._reactor.soon(self._owed.stands_still, run)

    def thaw(self, run: LaunchedRun) -> None:
        group = self._cgroups.of(run)
        if group:
            self._write(group, "cgroup.freeze", b"0")
        self._escapes.signal(run, SIGCONT)

    def _write(self, group: RunCgroup, name: str, content: bytes) -> None:
        self._step_out()
        try:
            cgroupfs.write(f"{group.directory}/{name}", content)
        except OSError as error:
            if error.errno not in procfs.GONE:
                raise

    def _step_out(self) -> None:
        """Go back to where this process belongs: an agent with its uid can move it into a run that is to be frozen."""
        path = procfs.cgroup(os.getpid())
        if path is None or path == self._own_cgroup or cgroupfs.below(path, self._base.path) is None:
            return
        parent = os.path.dirname(self._base.directory)
        cgroupfs.write(f"{cgroupfs.seen(self._own_cgroup) or parent}/cgroup.procs", b"0")

    # Looking.

    def _learn(self, run: LaunchedRun, group: RunCgroup, events: bytes) -> None:
        if b"frozen 1" in events:
            group.frozen.set()
            self._owed.stands_still(run)
        elif run.paused and not run.freezing:  # another process has thawed it
            self._write(group, "cgroup.freeze", b"1")
        if b"populated 0" in events:
            self._escapes.stop_soon(run)
            self._owed.consider(run)

    def populated(self, run: LaunchedRun) -> bool:
        if self._cgroups.populated(run):
            return True
        runs = run_ids([run])
        self.adopted.gather_all(runs)
        return self._cgroups.populated(run) or any(self._escapes.orphaned(runs))

    def members(self, *tops: LaunchedRun) -> Iterable[tuple[int, RunId]]:
        return self._cgroups.members(*tops)

    def outside(self, run: LaunchedRun) -> Iterable[tuple[int, RunId]]:
        return self._escapes.of(run)

    def place(self, pid: int, pidfd: int | None) -> RunId | None:
        return self._placing.place(pid, pidfd)
