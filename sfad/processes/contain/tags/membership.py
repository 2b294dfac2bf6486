"""Which run a process is in, by descent and marks.

A process is in the run of its nearest ancestor that is known. If it lost that ancestor it became our child; then its tag tells
its run, else its cookie. Both can be copied, so below a known ancestor a tag counts only if it names a run of its subtree.
"""

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import chain

from ....protocol.types import RunId
from ... import procfs
from ...launched_runs import LaunchedRun, LaunchedRuns
from ...launcher import Unplaceable
from ...procfs import Stat
from ...watch.reaper import Orphans
from .. import mark_scan
from ..interface import AdoptedRuns
from ..mark_scan import MarkedProcess, RecentScan, run_by_marks, scan_marks, with_marks
from ..membership import descends, run_by_cookie, still_there, unmarked, with_steady_ancestors

# ---- Runs of an earlier daemon, without cgroups: their processes are not below this one
#
# While there are such runs, all processes of the machine are looked at for their marks.


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


# ---- membership


class TagsMembership:
    """Finds the run of a process. Every method may raise `OSError`."""

    def __init__(self, runs: LaunchedRuns, orphans: Orphans, adopted: AdoptedTags) -> None:
        self._runs = runs
        self._orphans = orphans
        self._adopted = adopted
        self._strays: dict[tuple[int, int], RunId] = {}
        """Processes, by pid and start, that have the tag of a run which they are not in, and the run that they are in. They may
        lose the ancestor that tells it."""

    def run_of(self, pid: int, pidfd: int | None) -> RunId | None:
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


# ---- The processes of runs, by descent and marks


_LISTINGS = 3
"""Listings of our children, before children that come and go without pause are taken for live ones."""


class Census:
    """Finds the processes of runs. Every method may raise `OSError`."""

    def __init__(self, orphans: Orphans, adopted: AdoptedTags, membership: TagsMembership) -> None:
        self._orphans = orphans
        self._adopted = adopted
        self._membership = membership

    def take(self, runs: set[RunId]) -> Iterator[tuple[Stat, RunId]]:
        """Yield what is alive in these runs, from one scan."""
        self._orphans.reap()
        outside = self._adopted.processes() if self._adopted.concerns(runs) else ()
        return ((process, run_id) for process, run_id in chain(self._below_us(), outside) if run_id in runs)

    def _below_us(self) -> Iterator[tuple[Stat, RunId | None]]:
        """Yield our live descendants. A zombie has no children any more."""
        table = procfs.scan()
        self._membership.forget_strays(table)
        families: dict[int, list[Stat]] = defaultdict(list)
        for process in table.values():
            above = table.get(process.parent)
            # an orphan below us is left to us, if its parent has ended meanwhile
            families[process.parent if process.parent == 0 or (above and above.alive) else os.getpid()].append(process)
        pending: list[tuple[int, RunId | None]] = [(os.getpid(), None)]
        while pending:
            parent, inherited = pending.pop()
            for process in (one for one in families.pop(parent, ()) if one.alive):
                run_id = self._membership.run_below(process, inherited)
                pending.append((process.pid, run_id))
                yield process, run_id

    def live_children(self, runs: set[RunId]) -> list[int]:
        """Return our live direct children in these runs. While there is none, nothing of the runs is alive.

        A child that forked and ended between the listing and the look at it has left its children to us: they are in
        the next listing. So only a listing without a new child says that there is none. If each of some listings has a
        new child, which may be of the run, something is alive, and the daemon's other tasks need their turn: looking until
        one was caught alive took eleven seconds and 32 000 zombies, with twenty processes that forked without pause on two
        cores."""
        seen: set[int] = set()
        for _ in range(_LISTINGS):
            self._orphans.reap()
            fresh = [pid for pid in procfs.children() if pid not in seen]
            placed = [(pid, self._membership.run_of_child(pid)) for pid in fresh]
            alive = [pid for pid, run_id in placed if run_id in runs and procfs.is_alive(pid)]
            if alive:
                return alive
            if not fresh:
                return self._live_elsewhere(runs)
            seen.update(fresh)
        return [pid for pid, run_id in placed if run_id in runs or run_id is None] or self._live_elsewhere(runs)

    def _live_elsewhere(self, runs: set[RunId]) -> list[int]:
        """Return processes of these runs that are not below us. A process that forks and exits without pause cannot escape this
        below us; elsewhere it may."""
        for _ in range(2 if self._adopted.concerns(runs) else 0):
            found = [process.pid for process, run_id in self._adopted.processes() if run_id in runs]
            if found:
                return found
        return []

    def populated(self, runs: set[RunId]) -> bool:
        """Return whether anything but unreaped main processes is alive in these runs."""
        return any(pid not in self._orphans.owned for pid in self.live_children(runs))
