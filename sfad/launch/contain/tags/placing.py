"""Which run a process is in, by descent and marks.

A process is in the run of its nearest ancestor that is known. If it lost that ancestor it became our child; then its tag tells
its run, else its cookie. Both can be copied, so below a known ancestor a tag counts only if it names a run of its subtree.
"""

from collections.abc import Mapping

from ....protocol.types import RunId
from ... import procfs
from ...launched_runs import LaunchedRuns
from ...launcher import Unplaceable
from ...procfs import Stat
from ...watch.reaper import Orphans
from .. import mark_scan
from ..placing import descends, run_by_cookie, still_there, unmarked, with_steady_ancestors
from .adopted import AdoptedTags


class TagsPlacing:
    """Finds the run of a process. Every method may raise `OSError`."""

    def __init__(self, runs: LaunchedRuns, orphans: Orphans, adopted: AdoptedTags) -> None:
        self._runs = runs
        self._orphans = orphans
        self._adopted = adopted
        self._strays: dict[tuple[int, int], RunId] = {}
        """Processes, by pid and start, that have the tag of a run which they are not in, and the run that they are in. They may
        lose the ancestor that tells it."""

    def place(self, pid: int, pidfd: int | None) -> RunId | None:
        """Return the run of a descendant by its nearest ancestor that is known; of an orphan by tag, else by cookie; of any other
        process by cookie. Raises `Unplaceable`, `OSError`."""
        if pid <= 0:
            raise Unplaceable("the process is in another pid namespace")
        run_id, ours = with_steady_ancestors(pid, self._by_descent)
        run_id = run_id or run_by_cookie(pid, self._runs)
        if procfs.stat(pid) is None or not still_there(pidfd):
            raise Unplaceable(f"process {pid} ended before it could be placed")
        if run_id is None and ours:
            raise unmarked(pid)
        return run_id

    def _by_descent(self, line: tuple[Stat, ...]) -> tuple[RunId | None, bool]:
        """Return the run, and whether the process descends from this one."""
        found: RunId | None = None
        ours = descends(line)
        for ancestor in reversed(line[:-1] if ours else line if self._adopted else ()):
            found = self._marked_below(ancestor.pid, found) if ours else self._adopted.run_of(mark_scan.with_marks(ancestor), found)
        return found or None, ours

    def run_of_child(self, pid: int) -> RunId | None:
        """Return the run of a direct child of this process. Nothing tells that of a zombie without a tag."""
        return self._orphans.owned.get(pid) or self._stray(pid) or self._by_mark(pid) or self._sole(pid)

    def run_below(self, process: Stat, inherited: RunId | None) -> RunId | None:
        """Return the run of a process whose parent is in `inherited`."""
        run_id = self._marked_below(process.pid, inherited) or (self._sole(process.pid) if inherited is None else None)
        if run_id is not None and self._runs.by_tag(process.pid) not in (None, run_id):
            self._strays[(process.pid, process.started)] = run_id
        return run_id

    def _marked_below(self, pid: int, inherited: RunId | None) -> RunId | None:
        """Return the same, but only what is proven: a guess may stop a process, but gives it no rights."""
        owned = self._orphans.owned.get(pid)
        if owned or inherited is None:
            return owned or self._stray(pid) or self._by_mark(pid)
        number = self._runs.by_tag(pid)
        return number if number is not None and self._runs.within(number, inherited) else inherited

    def _stray(self, pid: int) -> RunId | None:
        process = procfs.stat(pid) if self._strays else None
        return self._strays.get((pid, process.started)) if process else None

    def _by_mark(self, pid: int) -> RunId | None:
        return self._runs.by_tag(pid) or (self._runs.by_cookie(pid) if procfs.is_alive(pid) else None)

    def _sole(self, pid: int) -> RunId | None:
        """Return the run of an orphan that has removed its marks, where only one tree can be meant."""
        process = procfs.stat(pid)
        return self._runs.sole_tree(process.started) if process and process.alive else None

    def forget_strays(self, table: Mapping[int, Stat]) -> None:
        """Forget those that have ended, as `table` shows, or whose run was released."""
        self._strays = {
            (pid, started): run_id
            for (pid, started), run_id in self._strays.items()
            if run_id in self._runs and pid in table and table[pid].started == started
        }
