"""The cgroups of runs, found by run, path or inode."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import trio

from ....protocol.types import RunId
from ... import procfs
from ...launched_runs import LaunchedRun
from ...launcher import UNBOUND, Bounds
from ...watch.reactor import Reactor
from . import cgroupfs, location

MAX_SEARCHED = 10_000
"""Cgroups that are searched for one that an agent has made."""
LEAF = "self"
"""The cgroup in a run's cgroup with its processes."""


@dataclass(slots=True, eq=False)
class RunCgroup:
    directory: str
    inode: int
    """Of the leaf: the cgroup id that PIDFD_GET_INFO tells."""
    halted: bool = False
    """Whether a stop has frozen it, and nothing has thawed it since."""
    killed: bool = False
    """Whether `cgroup.kill` may have been written to since it was made: nothing can begin in it."""
    metered: bool = False
    """Whether its memory was charged to it from the start."""
    events: int | None = None
    """`cgroup.events`, open while it is watched."""
    frozen: trio.Event = field(default_factory=trio.Event)
    """Set when a stop's freeze has taken effect."""
    bounds: Bounds = UNBOUND
    """What was written to it."""
    enforced: dict[str, int] = field(default_factory=dict)
    """By kind of bound that the kernel enforces: how often the kernel had enforced that before."""

    @property
    def leaf(self) -> str:
        return f"{self.directory}/{LEAF}"


class RunCgroups:
    """Knows the cgroups of runs below `base`."""

    def __init__(self, base: location.BaseCgroup, reactor: Reactor) -> None:
        self.base = base
        self._reactor = reactor
        self._by_run: dict[RunId, RunCgroup] = {}
        self._by_inode: dict[int, RunId] = {}
        self._by_directory: dict[str, RunId] = {}

    def of(self, run: LaunchedRun) -> RunCgroup | None:
        """Return the run's cgroup, if it was made or adopted."""
        return self._by_run.get(run.id)

    def directory(self, run: LaunchedRun) -> str:
        """Return where the run's cgroup is, or would be."""
        return "/".join([self.base.directory, *(above.id for above in reversed(list(run.upwards())))])

    def run_with_inode(self, inode: int) -> RunId | None:
        return self._by_inode.get(inode)

    def run_of_cgroup(self, inode: int) -> RunId | None:
        """Return the run of a cgroup, or of a cgroup that an agent has made below it."""
        known = self.run_with_inode(inode)
        return known if known is not None else self.nearest(self._directory_with(inode))

    def _directory_with(self, inode: int) -> str | None:
        waiting = [self.base.directory]
        for _ in range(MAX_SEARCHED):
            if not waiting:
                return None
            with suppress(OSError), os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if entry.inode() == inode:
                            return entry.path
                        waiting.append(entry.path)
        return None

    def inside(self, path: str | None) -> str | None:
        """Return the directory of a cgroup by its path in the hierarchy; None if it is not below the base."""
        within = location.below(path, self.base.path) if path is not None else None
        return f"{self.base.directory}/{within}" if within is not None else None

    def nearest(self, directory: str | None) -> RunId | None:
        """Return the run of a cgroup: the deepest run's at or above it."""
        while directory is not None and len(directory) > len(self.base.directory):
            run_id = self._by_directory.get(directory)
            if run_id is not None:
                return run_id
            directory = os.path.dirname(directory)
        return None

    def run_of(self, pid: int) -> RunId | None:
        return self.nearest(self.inside(procfs.cgroup(pid)))

    def contains(self, run: LaunchedRun, pid: int) -> bool:
        """Return whether a process is in the leaf of the run itself, or in a cgroup that the run has made there."""
        directory = self.inside(procfs.cgroup(pid))
        return directory is not None and location.below(directory, f"{self.directory(run)}/{LEAF}") is not None

    def holds(self, run: LaunchedRun, pid: int) -> bool:
        """Return whether a process is in the run's cgroup, or below it."""
        directory = self.inside(procfs.cgroup(pid))
        return directory is not None and location.below(directory, self.directory(run)) is not None

    def members(self, *tops: LaunchedRun) -> Iterator[tuple[int, RunId]]:
        """Yield every process in the cgroups of these runs, with the run it is in. Raises `OSError`."""
        for run in tops:
            group = self.of(run)
            for directory in cgroupfs.nested(group.directory, LEAF) if group else ():
                for pid in cgroupfs.pids(directory):
                    yield pid, self.nearest(directory) or run.id

    def own_members(self, run: LaunchedRun) -> Iterator[int]:
        """Yield the processes that the run `contains`, and no others. Raises `OSError`."""
        group = self.of(run)
        for directory in cgroupfs.nested(group.leaf) if group else ():
            yield from cgroupfs.pids(directory)

    def populated(self, run: LaunchedRun) -> bool:
        group = self.of(run)
        return group is not None and b"populated 1" in cgroupfs.read(f"{group.directory}/cgroup.events")

    def add(self, run: LaunchedRun, group: RunCgroup) -> RunCgroup:
        self._by_run[run.id] = group
        self._by_inode[group.inode] = run.id
        self._by_directory[group.directory] = run.id
        return group

    def forget(self, run: LaunchedRun) -> RunCgroup | None:
        """Forget the run's cgroup, and leave it as it is."""
        group = self._by_run.pop(run.id, None)
        if group is not None:
            self.unwatch(group)
            del self._by_inode[group.inode], self._by_directory[group.directory]
        return group

    def unwatch(self, group: RunCgroup) -> None:
        if group.events is not None:
            self._reactor.discard(group.events)
            os.close(group.events)
            group.events = None

    def unwatch_all(self) -> None:
        for group in self._by_run.values():
            self.unwatch(group)
