"""Runs of an earlier daemon, without cgroups: their processes are not below this one.

While there are such runs, all processes of the machine are looked at for their marks.
"""

import os
from collections.abc import Iterator

from ....protocol.types import RunId
from ... import procfs
from ...launched_runs import LaunchedRun, LaunchedRuns
from ...procfs import Stat
from ..interface import AdoptedRuns
from ..mark_scan import MarkedProcess, RecentScan, run_by_marks, scan_marks, with_marks


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
        process = procfs.stat(pid)
        tag = self._runs.tag_of(run)
        tags = {tag: run.id} if tag is not None else {}
        return process is not None and run_by_marks(with_marks(process), None, {run.cookie: run.id}, tags) == run.id

    def finish(self, run: LaunchedRun) -> bool:
        if run.main is not None:
            if not run.main.ours:
                self._elsewhere.add(run.id)
            return True
        recent = self._scan.recent()
        found = {process.pid for process in recent.members(run.cookie, self._runs.tag_of(run))}
        if not found <= recent.ours:
            self._elsewhere.add(run.id)
        return any(map(procfs.is_alive, found))

    def processes(self) -> Iterator[tuple[Stat, RunId]]:
        """Yield what is alive in adopted runs and not below this process. Raises `OSError`."""
        if self._elsewhere:
            for one, run_id in scan_marks().with_runs(self.run_of, but=os.getpid()):
                if run_id:
                    yield one.process, run_id

    def run_of(self, one: MarkedProcess, inherited: RunId | None) -> RunId | None:
        """Return the run of a process that is not below this one, by its parent's run and its marks."""
        if inherited:
            tagged = self._runs.tags.get(one.tag) if one.tag is not None else None
            return tagged if tagged is not None and self._runs.within(tagged, inherited) else inherited
        cookies = {self._runs[run_id].cookie: run_id for run_id in self._elsewhere}
        tags = {tag: run_id for tag, run_id in self._runs.tags.items() if run_id in self._elsewhere}
        return run_by_marks(one, inherited, cookies, tags)
