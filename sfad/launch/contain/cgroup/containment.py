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
from typing import Literal

from ....protocol.types import RunId
from ... import procfs
from ...launched_runs import LaunchedRun, run_ids
from ...launcher import Complain
from ...trampoline.spawner import Door
from ..interface import LauncherParts, RunContainment
from . import cgroupfs, location, probing
from .adopted import AdoptedCgroups
from .cgroups import RunCgroup, RunCgroups
from .controllers import Controllers
from .escapes import Escapes
from .events import CgroupEvents
from .freeze_and_kill import CgroupControl, thaw_all
from .limits import KernelLimits
from .making import CgroupMaker
from .membership import CgroupMembership
from .pausing import CgroupPauses
from .stopping import CgroupStops


class CgroupContainment(RunContainment):
    """Contains runs in cgroups below `base`, which was probed."""

    kind: Literal["cgroup", "tags"] = "cgroup"
    adopted: AdoptedCgroups
    pauses: CgroupPauses
    stops: CgroupStops

    def __init__(self, parts: LauncherParts, *, base: location.BaseCgroup, complain: Complain = lambda _text: None) -> None:
        self.detail = base.directory
        self._runs = parts.runs
        self._owed = parts.owed
        self._base = base
        self._controllers = Controllers(base, complain)
        self._controllers.prepare()
        self._begins = probing.begins(base)
        self._control = CgroupControl(base)
        self._cgroups = RunCgroups(base, parts.reactor)
        self._maker = CgroupMaker(self._cgroups, self._controllers, parts.reactor)
        self._events = CgroupEvents(self._cgroups, parts.reactor, parts.complaints, self._learn)
        self.limits = KernelLimits(self._cgroups, self._controllers, parts.complaints)
        self._escapes = Escapes(parts, self._cgroups)
        self.adopted = AdoptedCgroups(parts.runs, self._cgroups, self._maker, self.limits)
        self.pauses = CgroupPauses(parts, self._cgroups, self._control, self._events, self._escapes)
        self.stops = CgroupStops(parts, self._cgroups, self._control, self._events, self._escapes)
        self._membership = CgroupMembership(parts.runs, self._cgroups, parts.orphans)

    def enter(self, run: LaunchedRun) -> Door:
        try:
            return self._enter(run)
        except PermissionError as error:
            cgroupfs.regain(os.fsdecode(error.filename or self._base.directory), self._base.directory)
            return self._enter(run)

    def _enter(self, run: LaunchedRun) -> Door:
        group = self._cgroups.of(run) or self._maker.make(run)
        try:
            return self._open(run, group)
        except OSError as error:  # another process removed the cgroup, because it was empty
            if error.errno not in procfs.GONE:
                raise
            self._maker.forget(run)
            return self._open(run, self._maker.make(run))

    def _open(self, run: LaunchedRun, group: RunCgroup) -> Door:
        if group.bounds != run.bounds:
            self.limits.limit(run)
        if group.halted:  # the attempt before ended in its stop's freeze
            thaw_all(group)
        directory = os.open(group.leaf, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return Door(directory, not self._begins or any(map(self._attaches, run.upwards())), self._runs.tag_of(run))

    def _attaches(self, run: LaunchedRun) -> bool:
        group = self._cgroups.of(run)
        return run.paused or (group is not None and (group.halted or group.killed))

    def leave(self, run: LaunchedRun) -> None:
        self.adopted.leave(run)
        self._maker.remove(run)

    def close(self) -> None:
        self._maker.close()

    def _learn(self, run: LaunchedRun, group: RunCgroup, events: bytes) -> None:
        if b"frozen 1" in events:
            group.frozen.set()
            self._owed.report_frozen(run)
        elif run.paused and not run.freezing:  # another process has thawed it
            self._control.write(group, "cgroup.freeze", b"1")
        if b"populated 0" in events:
            self._escapes.stop_soon(run)
            self._owed.report_if_empty(run)

    def populated(self, run: LaunchedRun, poll: int | None = None) -> bool:
        if self._cgroups.populated(run):
            return True
        runs = run_ids([run])
        gathered = self.adopted.gather_all(runs)
        return (gathered and self._cgroups.populated(run)) or any(self._escapes.orphaned(runs, poll))

    def members(self, *tops: LaunchedRun) -> Iterable[tuple[int, RunId]]:
        return self._cgroups.members(*tops)

    def outside(self, run: LaunchedRun) -> Iterable[tuple[int, RunId]]:
        return self._escapes.of(run)

    def run_of(self, pid: int, pidfd: int | None) -> RunId | None:
        return self._membership.run_of(pid, pidfd)

    def run_of_cgroup(self, inode: int) -> RunId | None:
        return self._cgroups.run_of_cgroup(inode)
