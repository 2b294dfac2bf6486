"""Which run a process is in, where runs are contained in cgroups."""

from ....protocol.types import RunId
from ... import procfs
from ...launched_runs import LaunchedRuns
from ...launcher import Unplaceable
from ...pidfd import cgroup_id
from ...watch.reaper import Orphans
from ..membership import printable_path, run_by_ancestors, run_by_cookie, still_there, unmarked
from .cgroups import RunCgroups


class CgroupMembership:
    def __init__(self, runs: LaunchedRuns, cgroups: RunCgroups, orphans: Orphans) -> None:
        self._runs = runs
        self._cgroups = cgroups
        self._orphans = orphans

    def run_of(self, pid: int, pidfd: int | None) -> RunId | None:
        """Return the run whose cgroup the process is in. A process that was moved to another cgroup, by `systemd-run --scope` for
        example, is still in its run: that of its nearest ancestor that is in one, else that whose cookie it carries. Raises
        `Unplaceable`, `OSError`."""
        run_id = self._cgroups.run_with_inode(cgroup_id(pidfd)) if pidfd is not None else None
        if run_id is not None:
            self._refuse_moved(pid, run_id)
            return run_id
        path = procfs.cgroup(pid) if pid > 0 else None
        run_id, ours = (self._at(path), False) if path is not None else (None, False)
        if run_id is None and path is not None:
            run_id, ours = run_by_ancestors(pid, self._run_of)
            run_id = run_id or run_by_cookie(pid, self._runs)
        if path is None or not still_there(pidfd):
            raise Unplaceable(f"process {pid} ended before it could be placed")
        if run_id is None and ours:
            raise unmarked(pid)
        if run_id is not None:
            self._refuse_moved(pid, run_id)
        return run_id

    def _refuse_moved(self, pid: int, run_id: RunId) -> None:
        """Raise `Unplaceable` for a process in the cgroup of a run that it was not started in: it would have that run's rights."""
        line = (self._orphans.owned.get(each) for each in procfs.ancestry(pid))
        began = next((each for each in line if each is not None), None) or self._runs.by_cookie(pid)
        if began is not None and not self._runs.within(run_id, began):
            raise Unplaceable(f"process {pid} was started in run {began} and has moved itself into the cgroup of run {run_id}")

    def _run_of(self, pid: int) -> RunId | None:
        owned = self._orphans.owned.get(pid)
        path = None if owned else procfs.cgroup(pid)
        return owned or (self._at(path) if path is not None else None)

    def _at(self, path: str) -> RunId | None:
        directory = self._cgroups.inside(path)
        if directory is None:
            return None
        run_id = self._cgroups.nearest(directory)
        if run_id is None:
            raise Unplaceable(f"its cgroup {printable_path(path)} belongs to no run that is known")
        return run_id
