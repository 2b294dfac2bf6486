"""Tells followers which runs have changed, several times a second at most, with what the kernel counts of live ones.

Without a follower nothing is noted or measured: a change costs one look at an empty set.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import trio

from ...core.state.access import Scope
from ...host.clock import Timers
from ...processes.launcher import Footprint, Launcher
from ...protocol.types import RunId
from ...runs.catalogue import KnownRun, RunCatalogue

INTERVAL = 0.25
"""Seconds between two pushes at least. A run that changes more often is pushed as it is then."""
LOOKS = 2.0
"""Seconds in which each live run is looked at once, if that takes little."""
SLICE = 64
"""Runs that are looked at in one go, 5 ms where each has a cgroup: everything else of the daemon waits meanwhile."""
SHARE = 9
"""A pause is at least so many times as long as the work before it, so pushes, and looks, take at most a tenth of a CPU each."""
_MEMORY_STEP, _LEAST_STEP = 0.02, 1 << 20
"""The change of memory that is worth a push, as a share and in bytes. Sizes are shown with two or three digits."""
_CPU_STEP = 0.05
_HEARD_STEP = 5.0
"""Seconds. A run that prints all the time must not be pushed for that more often."""

Follower = Callable[[list[KnownRun] | None], None]
"""Takes runs in its scope that have changed, each as it is now; `None` if it must read all of them again: some have left the
daemon's memory meanwhile."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a run and its descendants have."""

    footprint: Footprint
    cpu: float | None = None
    """Cores that they used on average between the last two looks; `None` after the first."""
    at: float = 0.0
    heard: float | None = None
    """When they gave a sign of life last."""

    def after(self, footprint: Footprint, now: float, heard: float | None) -> "Load":
        """Return the load at the next look."""
        before, used = self.footprint.cpu_s, footprint.cpu_s
        # without cgroups the sum is of the processes that are alive, so it falls when one ends
        cpu = max(0.0, used - before) / (now - self.at) if used is not None and before is not None and now > self.at else None
        return Load(footprint, cpu, now, heard)

    def differs(self, before: "Load") -> bool:
        """Return whether a person would see another figure."""
        new, old = self.footprint, before.footprint
        step = max(_LEAST_STEP, _MEMORY_STEP * old.memory_bytes)
        unlike = new.processes != old.processes or abs(new.memory_bytes - old.memory_bytes) >= step
        unlike = unlike or abs((self.heard or 0) - (before.heard or 0)) >= _HEARD_STEP
        return unlike or (self.cpu is None) != (before.cpu is None) or abs((self.cpu or 0) - (before.cpu or 0)) >= _CPU_STEP


class RunFeed:
    def __init__(self, catalogue: RunCatalogue, launcher: Launcher, timers: Timers) -> None:
        self._catalogue, self._launcher, self._timers = catalogue, launcher, timers
        self._followers: dict[Follower, Callable[[], Scope]] = {}
        self._changed: set[RunId] = set()
        self._earliest = 0.0
        """When the next push may be."""
        self._looked: dict[RunId, Load] = {}
        """Of live runs, at the last look."""
        self._told: dict[RunId, Load] = {}
        """Of live runs, as followers were told last."""
        self._followed = trio.Event()

    @property
    def followed(self) -> bool:
        return bool(self._followers)

    def follow(self, scope: Callable[[], Scope], follower: Follower) -> Callable[[], None]:
        """Call `follower` with runs in the scope that change from now on. The scope is asked for each push: a reload may change who
        is in the admin group. Return how to stop it."""
        self._followers[follower] = scope
        self._followed.set()

        def forget() -> None:
            self._followers.pop(follower, None)
            if not self._followers:
                self._followed = trio.Event()
                self._timers.disarm("run feed")
                for known in (self._changed, self._looked, self._told):
                    known.clear()

        return forget

    def changed(self, runs: Iterable[RunId]) -> None:
        """Note that these runs are not as they were told."""
        if not self._followers:
            return
        if not self._changed:
            self._timers.arm("run feed", max(self._earliest, trio.current_time()), self._push)
        for run in runs:
            live = self._catalogue.live.get(run)  # sums of its ancestors may have changed with it
            self._changed.update(live.lineage_ids if live is not None else (run,))

    def _push(self) -> None:
        now = trio.current_time()
        changed, self._changed = sorted(self._changed), set()
        found = [self.known(run) for run in changed]
        runs = [run for run in found if run is not None]
        for follower, scope_now in list(self._followers.items()):
            scope = scope_now()
            admitted = [run for run in runs if scope.admits(run.uid, run.lineage_ids)]
            if len(runs) < len(found):
                follower(None)
            elif admitted:
                follower(admitted)
        took = trio.current_time() - now
        self._earliest = now + max(INTERVAL, SHARE * took)

    def known(self, run: RunId) -> KnownRun | None:
        """Return a run that is in memory, with its load if there are followers."""
        load = self._told.get(run)
        return self._catalogue.in_memory(run, load.footprint, load.cpu) if load is not None else self._catalogue.in_memory(run)

    async def serve(self) -> None:
        """Look at live runs again and again while there are followers."""
        while True:
            await self._followed.wait()
            for gone in self._looked.keys() - self._catalogue.live.keys():
                self._looked.pop(gone)
                self._told.pop(gone, None)
            runs = list(self._catalogue.live)
            # one look at many runs takes as long as at one where processes are found by their tags
            size = SLICE if self._launcher.containment == "cgroup" else max(1, len(runs))
            parts = [runs[at : at + size] for at in range(0, len(runs), size)] or [[]]
            for part in parts:
                began = trio.current_time()
                self._look(part, began)
                await trio.sleep(max(LOOKS / len(parts), SHARE * (trio.current_time() - began)))
                if not self._followers:
                    break

    def _look(self, runs: list[RunId], now: float) -> None:
        news = []
        for run, footprint in self._launcher.footprints(runs, cpu=True).items():
            before, live = self._looked.get(run), self._catalogue.live.get(run)
            heard = self._catalogue.heard(live, now) if live is not None else None
            load = before.after(footprint, now, heard) if before is not None else Load(footprint, at=now, heard=heard)
            self._looked[run] = load
            told = self._told.get(run)
            if told is None or load.differs(told):
                self._told[run] = load
                news.append(run)
        if news:
            self.changed(news)
