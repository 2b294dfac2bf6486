"""Which run a process is in, where runs are contained in cgroups."""

from ....protocol.types import RunId
from ... import procfs
from ...launched_runs import HeldRuns
from ...launcher import Unplaceable
from ...pidfd import cgroup_id
from ...watch.reaper import Orphans
from ..placing import by_ancestry, by_cookie, left, shown, still
from .cgroups import RunCgroups


class CgroupPlacing:
    def __init__(self, runs: HeldRuns, cgroups: RunCgroups, orphans: Orphans) -> None:
        self._runs = runs
        self._cgroups = cgroups
        self._orphans = orphans

    def place(self, pid: int, pidfd: int | None) -> RunId | None:
        """Return the run whose cgroup the process is in. A process that was moved to another cgroup, by `systemd-run --scope` for
        example, is still in its run: that of its nearest ancestor that is in one, else that whose cookie it carries. Raises
        `Unplaceable`, `OSError`."""
        run = self._cgroups.run_with_inode(cgroup_id(pidfd)) if pidfd is not None else None
        if run is not None:
            self._refuse_moved(pid, run)
            return run
        path = procfs.cgroup(pid) if pid > 0 else None
        run, ours = (self._at(path), False) if path is not None else (None, False)
        if run is None and path is not None:
            run, ours = by_ancestry(pid, self._run_of)
            run = run or by_cookie(pid, self._runs)
        if path is None or not still(pidfd):
            raise Unplaceable(f"process {pid} ended before it could be placed")
        if run is None and ours:
            raise left(pid)
        if run is not None:
            self._refuse_moved(pid, run)
        return run

    def _refuse_moved(self, pid: int, run: RunId) -> None:
        """Raise `Unplaceable` for a process in the cgroup of a run that it was not started in: it would have that run's rights."""
        line = (self._orphans.owned.get(each) for each in procfs.ancestry(pid))
        began = next((each for each in line if each is not None), None) or self._runs.by_cookie(pid)
        if began is not None and not self._runs.within(run, began):
            raise Unplaceable(f"process {pid} was started in run {began} and has moved itself into the cgroup of run {run}")

    def _run_of(self, pid: int) -> RunId | None:
        owned = self._orphans.owned.get(pid)
        path = None if owned else procfs.cgroup(pid)
        return owned or (self._at(path) if path is not None else None)

    def _at(self, path: str) -> RunId | None:
        directory = self._cgroups.inside(path)
        if directory is None:
            return None
        run = self._cgroups.nearest(directory)
        if run is None:
            raise Unplaceable(f"its cgroup {shown(path)} belongs to no run that is known")
        return run
