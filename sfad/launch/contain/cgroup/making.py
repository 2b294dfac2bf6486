"""Making and removing the cgroups of runs."""

import os
from contextlib import suppress

import trio

from ...launched_runs import LaunchedRun
from ...watch.reactor import Reactor
from . import cgroupfs
from .cgroups import LEAF, RunCgroup, RunCgroups
from .controllers import Controllers

_REMOVE_TRIES, _REMOVE_EVERY = 100, 0.02
"""A cgroup whose last process has just gone can be busy for some milliseconds."""


class CgroupMaker:
    def __init__(self, cgroups: RunCgroups, controllers: Controllers, reactor: Reactor) -> None:
        self._base = cgroups.base.directory
        self._cgroups = cgroups
        self._controllers = controllers
        self._reactor = reactor

    def make(self, run: LaunchedRun) -> RunCgroup:
        """Make the run's cgroup, and those above it if they are gone. Raises `OSError`."""
        directory = self._cgroups.directory(run)
        try:
            self._mkdir(directory)
        except FileNotFoundError:
            self._restore(run)
            self._mkdir(directory)
        metered = run.bounds.memory is not None and self._controllers.enable("memory", os.path.dirname(directory))
        self._mkdir(f"{directory}/{LEAF}")
        cgroupfs.limit_descendants(f"{directory}/{LEAF}")
        return self._cgroups.add(run, RunCgroup(directory, _inode(directory), metered=metered))

    def _mkdir(self, path: str) -> None:
        try:
            os.mkdir(path)
        except FileExistsError:  # an earlier try got this far; or an agent made it, frozen, to stop what attaches itself
            cgroupfs.write(f"{path}/cgroup.freeze", b"0")
        except BlockingIOError:  # an agent has lowered `cgroup.max.descendants` or `cgroup.max.depth` of the base
            cgroupfs.limit_descendants(self._base, None, None)
            os.mkdir(path)

    def _restore(self, run: LaunchedRun) -> None:
        """Make what is above a run again: any process that may write there can remove an empty cgroup."""
        if not os.path.isdir(self._base):
            os.makedirs(self._base, exist_ok=True)
            self._controllers.forget(self._base)
            self._controllers.prepare()
        for above in reversed(list(run.upwards())[1:]):
            if not os.path.isdir(f"{self._cgroups.directory(above)}/{LEAF}"):
                self.forget(above)
                self.make(above)

    def adopt(self, run: LaunchedRun) -> bool:
        """Adopt the run's cgroup from an earlier daemon; return whether it is there. Raises `OSError`."""
        directory = self._cgroups.directory(run)
        if not os.path.isdir(directory):
            return False
        with suppress(FileExistsError):
            os.mkdir(f"{directory}/{LEAF}")  # the daemon may have died before it made the leaf
        halted = cgroupfs.read(f"{directory}/cgroup.freeze").startswith(b"1")
        metered = run.bounds.memory is not None and os.path.exists(f"{directory}/memory.stat")
        self._cgroups.add(run, RunCgroup(directory, _inode(directory), halted, killed=True, metered=metered))
        return True

    def forget(self, run: LaunchedRun) -> None:
        """Forget the run's cgroup, and leave it as it is."""
        group = self._cgroups.forget(run)
        if group is not None:
            self._controllers.forget(group.directory)

    def remove(self, run: LaunchedRun) -> None:
        """Forget the run's cgroup, and remove it soon: that takes the kernel 0.05 ms, while clients wait for the end of the run."""
        group = self._cgroups.forget(run)
        if group is not None:
            self._controllers.forget(group.directory)
            self._reactor.when_idle(self._remove, group)

    def _remove(self, group: RunCgroup) -> None:
        try:
            # its child runs were released before it, and few agents make cgroups of their own
            os.rmdir(group.leaf)
            os.rmdir(group.directory)
        except OSError:
            self._reactor.task(_remove_later, group.directory)

    def close(self) -> None:
        """Close everything and remove the base, unless something is alive in it: a sweep ends that."""
        self._reactor.finish_idle()
        self._cgroups.unwatch_all()
        with suppress(OSError):
            cgroupfs.remove_tree(self._base)
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
