"""Runs of an earlier daemon: their cgroups, and their processes outside of these.

A process that left its cgroup under an earlier daemon is not below this process, where `Escapes` looks. The same is true of
every process of a run that the earlier daemon contained by tags. Both are found by their marks and moved into the cgroup.
"""

from contextlib import suppress

from ....protocol.types import RunId
from ... import procfs
from ...launched_runs import LaunchedRun, LaunchedRuns
from ...marks import cookie
from ..interface import AdoptedRuns
from ..mark_scan import RecentScan, scan_marks
from . import cgroupfs
from .cgroups import RunCgroups
from .limits import KernelLimits
from .making import CgroupMaker

_MOVE_PASSES = 10
"""Looks for processes that are forked while others are being moved."""


class AdoptedCgroups(AdoptedRuns):
    def __init__(self, runs: LaunchedRuns, cgroups: RunCgroups, maker: CgroupMaker, limits: KernelLimits) -> None:
        self._runs = runs
        self._cgroups = cgroups
        self._maker = maker
        self._limits = limits
        self._scan = RecentScan()
        self._elsewhere: set[RunId] = set()
        """Runs whose processes may not be below this process."""

    def rejoin(self, run: LaunchedRun) -> None:
        self._runs.tag_of(run)
        if self._maker.adopt(run):
            self._limits.limit(run)  # writes what is written there already, and counts from now on
        self._gather(run)

    def finish(self, run: LaunchedRun) -> bool:
        if run.main is None or not run.main.ours:
            self._elsewhere.add(run.id)
        # not `Escapes`: to look at orphans is to reap them, and main processes of runs that are adopted next would be among them
        return self._cgroups.populated(run)

    def gather_all(self, runs: set[RunId]) -> bool:
        """Gather the processes of those of these runs that were adopted. Return whether there are such runs. Raises `OSError`."""
        adopted = runs & self._elsewhere
        for run_id in adopted:
            self._gather(self._runs[run_id])
        return bool(adopted)

    def _gather(self, run: LaunchedRun) -> None:
        """Move into its cgroup whatever carries the marks of the run."""
        carriers = set(self._scan.recent().carriers(run.cookie, self._runs.tag_of(run)))
        if any(map(procfs.is_alive, carriers.difference(self._cgroups.own_members(run)))):
            self._move_in(run)

    def _move_in(self, run: LaunchedRun) -> None:
        tag = self._runs.tag_of(run)
        for _ in range(_MOVE_PASSES):
            outside = [one for one in scan_marks().members(run.cookie, tag) if not self._cgroups.contains(run, one.pid)]
            if not outside:
                return
            group = self._cgroups.of(run)
            if group is None:
                group = self._maker.make(run)
                self._limits.limit(run)
            for process in outside:
                now = procfs.stat(process.pid)
                if now is not None and now.started == process.started:
                    with suppress(ProcessLookupError):
                        cgroupfs.write(f"{group.leaf}/cgroup.procs", b"%d" % process.pid)

    def is_of(self, run: LaunchedRun, pid: int) -> bool:
        return self._cgroups.contains(run, pid) or cookie(pid, self._runs.instance) == run.cookie

    def forget(self, run: LaunchedRun) -> None:
        self.leave(run)
        self._maker.forget(run)

    def leave(self, run: LaunchedRun) -> None:
        self._elsewhere.discard(run.id)
