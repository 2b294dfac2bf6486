"""Which processes are in which run, by descent and marks.

A process is in the run of its nearest ancestor that is known. If it lost that ancestor it became our child; then its tag tells
its run, else its cookie. Both can be copied, so below a known ancestor a tag counts only if it names a run of its subtree.
"""

import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain

from ....protocol.types import RunId
from ... import procfs
from ...launched_runs import LaunchedRuns
from ...launcher import Unplaceable
from ...procfs import Stat
from ...watch.reaper import Orphans, reap_orphan
from .. import mark_scan
from ..placing import by_cookie, descends, left, settled, still
from .adopted import Abroad

_LOOKS = 3
"""Looks at our children, before children that come and go without pause are taken for live ones."""


class Census:
    """Finds the processes of runs, and the run of a process. Every method may raise `OSError`."""

    def __init__(self, runs: LaunchedRuns, orphans: Orphans, abroad: Abroad) -> None:
        self._runs = runs
        self._orphans = orphans
        self._abroad = abroad
        self._strays: dict[tuple[int, int], RunId] = {}
        """Processes, by pid and start, that have the tag of a run which they are not in, and the run that they are in. They may
        lose the ancestor that tells it."""

    # All processes of runs.

    def take(self, runs: set[RunId]) -> Iterator[tuple[Stat, RunId]]:
        """Yield what is alive in these runs, from one scan."""
        self._orphans.reap()
        outside = self._abroad.processes() if self._abroad.concerns(runs) else ()
        return ((process, run_id) for process, run_id in chain(self._below_us(), outside) if run_id in runs)

    def _below_us(self) -> Iterator[tuple[Stat, RunId | None]]:
        """Yield our live descendants. A zombie has no children any more."""
        table = procfs.scan()
        self._strays = {
            key: run_id for key, run_id in self._strays.items() if run_id in self._runs and _started(key[0], table) == key[1]
        }
        families: dict[int, list[Stat]] = defaultdict(list)
        for process in table.values():
            families[_parent(process, table)].append(process)
        pending: list[tuple[int, RunId | None]] = [(os.getpid(), None)]
        while pending:
            parent, inherited = pending.pop()
            for process in (one for one in families.pop(parent, ()) if one.alive):
                run_id = self._run_below(process.pid, inherited)
                if run_id is not None and self._runs.by_tag(process.pid) not in (None, run_id):
                    self._strays[(process.pid, process.started)] = run_id
                pending.append((process.pid, run_id))
                yield process, run_id

    # The direct children of this process.

    def tops(self, runs: set[RunId]) -> list[int]:
        """Return our live direct children in these runs. While there is none, nothing of the runs is alive.

        A child that forked and ended between the listing and the look at it has left its children to us: they are in
        the next listing. So only a listing without a new child says that there is none. If each of some listings has a
        new child, which may be of the run, something is alive, and the daemon's other tasks need their turn: looking until
        one was caught alive took eleven seconds and 32 000 zombies, with twenty lineages that forked without pause on two
        cores.
        """
        seen: set[int] = set()
        for _ in range(_LOOKS):
            self._orphans.reap()
            fresh = [pid for pid in procfs.children() if pid not in seen]
            placed = [(pid, self._run_of_child(pid)) for pid in fresh]
            alive = [pid for pid, run_id in placed if run_id in runs and procfs.is_alive(pid)]
            if alive:
                return alive
            if not fresh:
                return self._tops_abroad(runs)
            seen.update(fresh)
        return [pid for pid, run_id in placed if run_id in runs or run_id is None] or self._tops_abroad(runs)

    def _tops_abroad(self, runs: set[RunId]) -> list[int]:
        """Return processes of these runs that are not below us. A lineage that forks and exits without pause cannot escape this
        below us; elsewhere it may."""
        for _ in range(2 if self._abroad.concerns(runs) else 0):
            found = [process.pid for process, run_id in self._abroad.processes() if run_id in runs]
            if found:
                return found
        return []

    def populated(self, runs: set[RunId]) -> bool:
        """Return whether anything but unreaped main processes is alive in these runs."""
        return any(pid not in self._orphans.owned for pid in self.tops(runs))

    def kill_children(self, runs: set[RunId], struck: set[tuple[int, int]]) -> bool:
        """Kill the direct children that are not in `struck` yet; return whether there were any.

        Against lineages that fork and exit this is the race to win: each of their processes is our child as soon as the one
        before it is gone. A look costs microseconds, and the pid of an unreaped child is no other process's."""
        fresh = False
        for pid in procfs.children():
            if (pid, 0) not in struck and self._run_of_child(pid) in runs:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
                struck.add((pid, 0))
                fresh = True
            if pid not in self._orphans.owned:
                reap_orphan(pid)
        return fresh

    # The run of one process.

    def place(self, pid: int, pidfd: int | None) -> RunId | None:
        """Return the run of a descendant by its nearest ancestor that is known; of an orphan by tag, else by cookie; of any other
        process by cookie. Raises `Unplaceable`, `OSError`."""
        if pid <= 0:
            raise Unplaceable("the process is in another pid namespace")
        run_id, ours = settled(pid, self._by_descent)
        run_id = run_id or by_cookie(pid, self._runs)
        if procfs.stat(pid) is None or not still(pidfd):
            raise Unplaceable(f"process {pid} ended before it could be placed")
        if run_id is None and ours:
            raise left(pid)
        return run_id

    def _by_descent(self, line: tuple[Stat, ...]) -> tuple[RunId | None, bool]:
        """Return the run, and whether the process descends from this one."""
        found: RunId | None = None
        ours = descends(line)
        for ancestor in reversed(line[:-1] if ours else line if self._abroad else ()):
            found = self._marked_below(ancestor.pid, found) if ours else self._abroad.run_of(mark_scan.trace(ancestor), found)
        return found or None, ours

    def _run_of_child(self, pid: int) -> RunId | None:
        """Return the run of a direct child of this process. Nothing tells that of a zombie without a tag."""
        return self._orphans.owned.get(pid) or self._stray(pid) or self._by_mark(pid) or self._sole(pid)

    def _run_below(self, pid: int, inherited: RunId | None) -> RunId | None:
        """Return the run of a process whose parent is in `inherited`."""
        return self._marked_below(pid, inherited) or (self._sole(pid) if inherited is None else None)

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


def _started(pid: int, table: dict[int, Stat]) -> int | None:
    return table[pid].started if pid in table else None


def _parent(process: Stat, table: dict[int, Stat]) -> int:
    """Return its parent; if that has ended meanwhile, us: an orphan below us is left to us."""
    above = table.get(process.parent)
    return process.parent if process.parent == 0 or (above and above.alive) else os.getpid()
