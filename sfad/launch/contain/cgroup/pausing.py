"""Pausing runs: the freezer for their cgroups, and signals to processes that have left these."""

from signal import SIGCONT, SIGSTOP

from ...launched_runs import LaunchedRun
from ..interface import LauncherParts, RunPauses
from .cgroups import RunCgroups
from .escapes import Escapes
from .events import CgroupEvents
from .freeze_and_kill import CgroupControl


class CgroupPauses(RunPauses):
    def __init__(
        self, parts: LauncherParts, cgroups: RunCgroups, control: CgroupControl, events: CgroupEvents, escapes: Escapes
    ) -> None:
        self._reactor = parts.reactor
        self._owed = parts.owed
        self._cgroups = cgroups
        self._control = control
        self._events = events
        self._escapes = escapes

    def freeze(self, run: LaunchedRun) -> None:
        self._escapes.signal(run, SIGSTOP)
        group = self._cgroups.of(run)
        if group:
            self._control.write(group, "cgroup.freeze", b"1")
            self._events.watch(run, group)
        else:
            self._reactor.soon(self._owed.report_frozen, run)

    def thaw(self, run: LaunchedRun) -> None:
        group = self._cgroups.of(run)
        if group:
            self._control.write(group, "cgroup.freeze", b"0")
        self._escapes.signal(run, SIGCONT)
