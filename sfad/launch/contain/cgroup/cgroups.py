"""The cgroups of runs: made, found by run, path or inode, and removed."""

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
from .controllers import Controllers

LEAF = "self"
"""The cgroup in a run's cgroup that holds its processes."""
_REMOVE_TRIES, _REMOVE_EVERY = 100, 0.02
"""A cgroup whose last process has just gone can be busy for some milliseconds."""


@dataclass(slots=True, eq=False)
class RunCgroup:
    directory: str
    inode: int
    """Of the leaf: the cgroup id that PIDFD_GET_INFO tells."""
    halted: bool = False
    """Whether a stop has frozen it, and nothing has thawed it since."""
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
    """Makes and removes the cgroups of runs below `base`, and knows which run a cgroup belongs to."""

    def __init__(self, base: location.BaseCgroup, controllers: Controllers, reactor: Reactor) -> None:
        self.base = base
        self._controllers = controllers
        self._reactor = reactor
        self._by_run: dict[RunId, RunCgroup] = {}
        self._by_inode: dict[int, RunId] = {}
        self._by_directory: dict[str, RunId] = {}

    def of(self, run: LaunchedRun) -> RunCgroup | None:
        """Return the run's cgroup, if it was made or adopted."""
        return self._by_run.get(run.id)

    def directory(self, run: LaunchedRun) -> str:
        """Return where the run's cgroup is, or would be."""
        return "/".join([self.base.directory, *(above.id for above in reversed(list(run.chain())))])

    # Which run is in a cgroup.

    def run_with_inode(self, inode: int) -> RunId | None:
        return self._by_inode.get(inode)

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

    def members(self, *tops: LaunchedRun) -> Iterator[tuple[int, RunId]]:
        """Yield every process in the cgroups of these runs, with the run it is in. Raises `OSError`."""
        for run in tops:
            group = self.of(run)
            for directory in cgroupfs.nested(group.directory) if group else ():
                for pid in cgroupfs.pids(directory):
                    yield pid, self.nearest(directory) or run.id

    def populated(self, run: LaunchedRun) -> bool:
        group = self.of(run)
        return group is not None and b"populated 1" in cgroupfs.read(f"{group.directory}/cgroup.events")

    # Making.

    def make(self, run: LaunchedRun) -> RunCgroup:
        """Make the run's cgroup, and those above it if they are gone. Raises `OSError`."""
        directory = self.directory(run)
        above = os.path.dirname(directory)
        if not os.path.isdir(above):
            self._restore(run)
        metered = run.bounds.memory is not None and self._controllers.enable("memory", above)
        for path in (directory, f"{directory}/{LEAF}"):
            self._make_one(path)
        cgroupfs.limit_descendants(f"{directory}/{LEAF}")
        return self._add(run, RunCgroup(directory, _inode(directory), metered=metered))

    def _make_one(self, path: str) -> None:
        try:
            os.mkdir(path)
        except FileExistsError:  # an earlier try got this far; or an agent made it, frozen, to hold what attaches itself
            cgroupfs.write(f"{path}/cgroup.freeze", b"0")
        except BlockingIOError:  # an agent has lowered `cgroup.max.descendants` or `cgroup.max.depth` of the base
            cgroupfs.limit_descendants(self.base.directory, None, None)
            os.mkdir(path)

    def _restore(self, run: LaunchedRun) -> None:
        """Make what is above a run again: any process that may write there can remove an empty cgroup."""
        if not os.path.isdir(self.base.directory):
            os.makedirs(self.base.directory, exist_ok=True)
            self._controllers.forget(self.base.directory)
            self._controllers.prepare()
        for above in reversed(list(run.chain())[1:]):
            if not os.path.isdir(f"{self.directory(above)}/{LEAF}"):
                self.forget(above)
                self.make(above)

    def adopt(self, run: LaunchedRun) -> bool:
        """Adopt the run's cgroup from an earlier daemon; return whether it is there. Raises `OSError`."""
        directory = self.directory(run)
        if not os.path.isdir(directory):
            return False
        with suppress(FileExistsError):
            os.mkdir(f"{directory}/{LEAF}")  # the daemon may have died before it made the leaf
        halted = cgroupfs.read(f"{directory}/cgroup.freeze").startswith(b"1")
        metered = run.bounds.memory is not None and os.path.exists(f"{directory}/memory.stat")
        self._add(run, RunCgroup(directory, _inode(directory), halted, metered))
        return True

    def _add(self, run: LaunchedRun, group: RunCgroup) -> RunCgroup:
        self._by_run[run.id] = group
        self._by_inode[group.inode] = run.id
        self._by_directory[group.directory] = run.id
        return group

    # Removing.

    def forget(self, run: LaunchedRun) -> RunCgroup | None:
        """Forget the run's cgroup, and leave it as it is."""
        group = self._by_run.pop(run.id, None)
        if group is not None:
            self.unwatch(group)
            self._controllers.forget(group.directory)
            del self._by_inode[group.inode], self._by_directory[group.directory]
        return group

    def remove(self, run: LaunchedRun) -> None:
        """Forget the run's cgroup and remove it, now or in a task."""
        group = self.forget(run)
        if group is None:
            return
        try:
            # its child runs were released before it, and few agents make cgroups of their own
            os.rmdir(group.leaf)
            os.rmdir(group.directory)
        except OSError:
            self._reactor.task(_remove_later, group.directory)

    def unwatch(self, group: RunCgroup) -> None:
        if group.events is not None:
            self._reactor.discard(group.events)
            os.close(group.events)
            group.events = None

    def close(self) -> None:
        """Close everything and remove the base, unless something is alive in it: a sweep ends that."""
        for group in self._by_run.values():
            self.unwatch(group)
        with suppress(OSError):
            cgroupfs.remove_tree(self.base.directory)
        with suppress(OSError):
            self._controllers.close()


async def _remove_later(directory: str) -> None:
    for _ in range(_REMOVE_TRIES):
        await trio.sleep(_REMOVE_EVERY)
        with suppress(OSError):  # in a thread: an agent may have made a hundred thousand
            await trio.to_thread.run_sync(cgroupfs.remove_tree, directory)
            return


def _inode(directory: str) -> int:
    return os.stat(f"{directory}/{LEAF}").st_ino
