"""The processes of runs, by descent and marks."""

import os
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain

from ....protocol.types import RunId
from ... import procfs
from ...procfs import Stat
from ...watch.reaper import Orphans
from .adopted import AdoptedTags
from .placing import TagsPlacing

_LISTINGS = 3
"""Listings of our children, before children that come and go without pause are taken for live ones."""


class Census:
    """Finds the processes of runs. Every method may raise `OSError`."""

    def __init__(self, orphans: Orphans, adopted: AdoptedTags, placing: TagsPlacing) -> None:
        self._orphans = orphans
        self._adopted = adopted
        self._placing = placing

    def take(self, runs: set[RunId]) -> Iterator[tuple[Stat, RunId]]:
        """Yield what is alive in these runs, from one scan."""
        self._orphans.reap()
        outside = self._adopted.processes() if self._adopted.concerns(runs) else ()
        return ((process, run_id) for process, run_id in chain(self._below_us(), outside) if run_id in runs)

    def _below_us(self) -> Iterator[tuple[Stat, RunId | None]]:
        """Yield our live descendants. A zombie has no children any more."""
        table = procfs.scan()
        self._placing.forget_strays(table)
        families: dict[int, list[Stat]] = defaultdict(list)
        for process in table.values():
            above = table.get(process.parent)
            # an orphan below us is left to us, if its parent has ended meanwhile
            families[process.parent if process.parent == 0 or (above and above.alive) else os.getpid()].append(process)
        pending: list[tuple[int, RunId | None]] = [(os.getpid(), None)]
        while pending:
            parent, inherited = pending.pop()
            for process in (one for one in families.pop(parent, ()) if one.alive):
                run_id = self._placing.run_below(process, inherited)
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
            placed = [(pid, self._placing.run_of_child(pid)) for pid in fresh]
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
