"""Making and removing the cgroups of runs."""

import os
from contextlib import suppress

import trio

from ....protocol.types import RunId
from ... import kernel
from ...launched_runs import LaunchedRun, LaunchedRuns, cookie
from ...watch import Complaints, Reactor
from ..interface import AdoptedRuns, KernelLimits
from ..membership import RecentScan, scan_marks
from . import cgroupfs
from .cgroupfs import LEAF, RunCgroup, RunCgroups
from .controllers import KINDS, Controllers, move

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
        metered = run.bounds.memory is not None and self.enable("memory", run)
        return self._cgroups.add(run, RunCgroup(directory, metered=metered))

    def make_leaf(self, run: LaunchedRun, group: RunCgroup) -> None:
        """Have the run's processes begin in a leaf from now on. Raises `OSError`."""
        if not group.has_leaf:
            self._mkdir(group.leaf)
            self._cgroups.add_leaf(run, group)

    def enable(self, kind: str, run: LaunchedRun) -> bool:
        """Enable a controller for the run's cgroup; return whether that worked."""
        above = self._cgroups.directory(run.parent) if run.parent else self._base
        if run.parent and not self._controllers.enabled(kind, above):
            if kind not in self._controllers.available:
                return False
            try:
                for each in reversed(list(run.parent.upwards())):
                    self.vacate(each)
            except OSError as error:
                self._controllers.not_enabled(kind, error)
                return False
        return self._controllers.enable(kind, above)

    def vacate(self, run: LaunchedRun) -> None:
        """Move all processes of a run into its leaf. Raises `OSError`.

        They are frozen meanwhile: a tree that forks without pause could stay ahead of the moves. A
        daemon that dies here leaves them frozen, and the next one thaws every run that is not
        paused."""
        group = self._cgroups.of(run)
        if group is None or group.vacated:
            return
        self.make_leaf(run, group)
        control = f"{group.directory}/cgroup.freeze"
        still = run.paused or group.halted
        try:
            if not still:
                cgroupfs.write(control, b"1")
            move(group.directory, group.leaf)
        finally:
            if not still:
                self._reactor.retry_while(
                    lambda: self._cgroups.of(run) is group and not (run.paused or group.halted),
                    _thaw,
                    control,
                )
        group.vacated = True

    def _mkdir(self, path: str) -> None:
        try:
            os.mkdir(path)
        except FileExistsError:
            # an earlier try got this far; or an agent made it, frozen, to stop what attaches itself
            cgroupfs.write(f"{path}/cgroup.freeze", b"0")
        except BlockingIOError:
            # agents have made many, or lowered the limits
            cgroupfs.make_room(self._base, path.count("/") - self._base.count("/"))
            os.mkdir(path)

    def _restore(self, run: LaunchedRun) -> None:
        """Make what is above a run again: any process that may write there can remove an empty
        cgroup."""
        if not os.path.isdir(self._base):
            os.makedirs(self._base, exist_ok=True)
            cgroupfs.make_room(self._base)
            self._controllers.enabled_in.pop(self._base, None)
            self._controllers.set_up()
        for above in reversed(list(run.upwards())[1:]):
            if not os.path.isdir(self._cgroups.directory(above)):
                self.forget(above)
                self.make(above)

    def adopt(self, run: LaunchedRun) -> bool:
        """Adopt the run's cgroup from an earlier daemon; return whether it is there. Raises
        `OSError`."""
        directory = self._cgroups.directory(run)
        if not os.path.isdir(directory):
            return False
        halted = cgroupfs.read(f"{directory}/cgroup.freeze").startswith(b"1")
        metered = run.bounds.memory is not None and os.path.exists(f"{directory}/memory.stat")
        leaf = os.path.isdir(f"{directory}/{LEAF}")
        self._cgroups.add(
            run, RunCgroup(directory, leaf, halted=halted, killed=True, metered=metered)
        )
        return True

    def forget(self, run: LaunchedRun) -> None:
        """Forget the run's cgroup, and leave it as it is."""
        group = self._cgroups.forget(run)
        if group is not None:
            self._controllers.enabled_in.pop(group.directory, None)

    def remove(self, run: LaunchedRun) -> None:
        """Forget the run's cgroup, and remove it soon: that takes the kernel 0.05 ms, while clients
        wait for the end of the run."""
        group = self._cgroups.forget(run)
        if group is not None:
            self._controllers.enabled_in.pop(group.directory, None)
            self._reactor.when_idle(self._remove, group)

    def _remove(self, group: RunCgroup) -> None:
        try:
            # its child runs were released before it, and few agents make cgroups of their own
            if group.has_leaf:
                os.rmdir(group.leaf)
            os.rmdir(group.directory)
        except OSError:
            self._reactor.task(_remove_later, group.directory)

    def close(self) -> None:
        """Close everything and remove the base, unless something is alive in it: a sweep ends
        that."""
        self._reactor.finish_idle()
        self._cgroups.unwatch_all()
        with suppress(OSError):
            cgroupfs.remove_tree(self._base)
        with suppress(OSError):
            self._controllers.close()


def _thaw(control: str) -> None:
    try:
        cgroupfs.write(control, b"0")
    except OSError as error:
        if error.errno not in kernel.GONE:
            raise


async def _remove_later(directory: str) -> None:
    for _ in range(_REMOVE_TRIES):
        await trio.sleep(_REMOVE_EVERY)
        with suppress(OSError):  # in a thread: an agent may have made a hundred thousand
            await trio.to_thread.run_sync(cgroupfs.remove_tree, directory)
            return


# ---- The bounds of runs, written to the files of their cgroups and read back


_PERIOD = 100_000
"""Microseconds: the period of `cpu.max`, the kernel's default."""
_LEAST_QUOTA = 1000
"""Microseconds; the kernel refuses less."""


class CgroupLimits(KernelLimits):
    def __init__(
        self,
        cgroups: RunCgroups,
        maker: CgroupMaker,
        controllers: Controllers,
        complaints: Complaints,
    ) -> None:
        self._cgroups = cgroups
        self._maker = maker
        self._controllers = controllers
        self._complaints = complaints

    def enforces(self, kind: str) -> bool:
        return kind in self._controllers.available

    def limit(self, run: LaunchedRun) -> None:
        """Write the bounds that have changed. A run without a cgroup gets them when its cgroup is
        made."""
        group = self._cgroups.of(run)
        if group is None:
            return
        for kind in KINDS if self._controllers.available else ():
            value, before = getattr(run.bounds, kind), getattr(group.bounds, kind)
            if value != before and kind in self._controllers.available:
                self._limit_to(run, group, kind, value)
        group.bounds = run.bounds

    def _limit_to(self, run: LaunchedRun, group: RunCgroup, kind: str, value: float | None) -> None:
        """Write one bound, and from now on count how often the kernel enforces it."""
        group.enforced.pop(kind, None)
        if not self._maker.enable(kind, run):
            return
        try:
            for name, content in settings(kind, value):
                _write_setting(
                    f"{group.directory}/{name}", content, optional=name.endswith(".swap.max")
                )
            if value is not None and kind != "cpu":
                group.enforced[kind] = _enforced(kind, group.directory)
        except OSError as error:
            self._complaints.unenforced(run.id, error)

    def used(self, run: LaunchedRun, kind: str) -> int | None:
        group = self._cgroups.of(run)
        if group is None:
            return None
        if kind == "pids":
            content = (
                cgroupfs.read(f"{group.directory}/pids.current")
                if "pids" in group.enforced
                else b""
            )
            return int(content) if content else None
        return _charged_memory(group.directory) if group.metered else None

    def cpu_seconds(self, run: LaunchedRun) -> float | None:
        # every cgroup but the root's counts this, also without the controller `cpu`
        group = self._cgroups.of(run)
        content = cgroupfs.read(f"{group.directory}/cpu.stat") if group is not None else b""
        return int(content.split(None, 2)[1]) / 1e6 if content.startswith(b"usage_usec") else None

    def breaches(self, run: LaunchedRun) -> frozenset[str]:
        group = self._cgroups.of(run)
        if group is None:
            return frozenset()
        try:
            now = {kind: _enforced(kind, group.directory) for kind in group.enforced}
        except OSError as error:
            self._complaints.failed(error)
            return frozenset()
        return frozenset(kind for kind, count in now.items() if count > group.enforced[kind])


def _write_setting(path: str, content: bytes, *, optional: bool) -> None:
    try:
        cgroupfs.write(path, content)
    except FileNotFoundError:  # a kernel without swap accounting
        if not optional:
            raise


def settings(kind: str, value: float | None) -> list[tuple[str, bytes]]:
    """Return control files and what to write to them for a bound; for `None`, to remove it. Only
    the last file must exist."""
    if kind == "cpu":
        quota = b"max" if value is None else b"%d" % max(_LEAST_QUOTA, round(value * _PERIOD))
        return [("cpu.max", quota + b" %d" % _PERIOD)]
    limit = b"max" if value is None else b"%d" % value
    # else a run that is short of memory would fill the machine's swap first
    swap = [("memory.swap.max", b"max" if value is None else b"0")] if kind == "memory" else []
    return [*swap, (f"{kind}.max", limit)]


def _charged_memory(directory: str) -> int | None:
    """Return the bytes of anonymous and shared memory that are charged to a cgroup, to compare with
    the memory of processes: without page cache, which the kernel takes back before it enforces
    anything, and without the kernel's own memory."""
    fields = dict(
        line.split()
        for line in (kernel.read(f"{directory}/memory.stat", whole=True) or b"").splitlines()
    )
    return int(fields[b"anon"]) + int(fields[b"shmem"]) if fields else None


def _enforced(kind: str, directory: str) -> int:
    """Return how often the kernel has enforced a bound of this very cgroup, not of one below it or
    above."""
    if kind == "memory":
        # not `max`: it also counts when page cache is taken back, which harms no process; not
        # `oom_kill`: it also counts kills because the machine was short of memory. `oom` is counted
        # before the kill.
        return _counter(f"{directory}/memory.events.local", b"oom")
    local = f"{directory}/pids.events.local"
    return _counter(local, b"max") if os.path.exists(local) else _failed_forks(directory)


def _failed_forks(directory: str) -> int:
    """Return the same before Linux 6.11, which counts a failed fork where it was tried, whichever
    cgroup's bound it met. It can only be this cgroup's bound if this cgroup was full at some time
    (`pids.peak`, 6.1) or is."""
    limit = cgroupfs.read(f"{directory}/pids.max").strip()
    peak = kernel.read(f"{directory}/pids.peak") or cgroupfs.read(f"{directory}/pids.current")
    if not limit.isdigit() or int(peak or 0) < int(limit):
        return 0
    return sum(_counter(f"{inner}/pids.events", b"max") for inner in cgroupfs.nested(directory))


def _counter(path: str, name: bytes) -> int:
    """Return one counter of a file; 0 if the cgroup is gone, or has no such file."""
    words = (kernel.read(path) or b"").split()
    return int(words[words.index(name) + 1]) if name in words else 0


# ---- Runs of an earlier daemon: their cgroups, and their processes outside of these
#
# A process that left its cgroup under an earlier daemon is not below this process, where `Escapes`
# looks. The same is true of every process of a run that the earlier daemon contained by tags. Both
# are found by their marks and moved into the cgroup.


_MOVE_PASSES = 10
"""Looks for processes that are forked while others are being moved."""


class AdoptedCgroups(AdoptedRuns):
    def __init__(
        self, runs: LaunchedRuns, cgroups: RunCgroups, maker: CgroupMaker, limits: CgroupLimits
    ) -> None:
        self._runs = runs
        self._cgroups = cgroups
        self._maker = maker
        self._limits = limits
        self._scan = RecentScan()
        self._elsewhere: set[RunId] = set()
        """Runs whose processes may not be below this process."""

    def rejoin(self, run: LaunchedRun) -> None:
        self._runs.tag_of(run)
        if self._maker.adopt(run):
            self._limits.limit(run)  # writes what is written there already, and counts from now on
        self._gather(run)

    def finish(self, run: LaunchedRun) -> bool:
        if run.main is None or not run.main.ours:
            self._elsewhere.add(run.id)
        # not `Escapes`: to look at orphans is to reap them, and main processes of runs that are
        # adopted next would be among them
        return self._cgroups.populated(run)

    def gather_all(self, runs: set[RunId]) -> bool:
        """Gather the processes of those of these runs that were adopted. Return whether there are
        such runs. Raises `OSError`."""
        adopted = runs & self._elsewhere
        for run_id in adopted:
            self._gather(self._runs[run_id])
        return bool(adopted)

    def _gather(self, run: LaunchedRun) -> None:
        """Move into its cgroup whatever carries the marks of the run."""
        carriers = set(self._scan.recent().carriers(run.cookie, self._runs.tag_of(run)))
        if any(map(kernel.is_alive, carriers.difference(self._cgroups.own_members(run)))):
            self._move_in(run)

    def _move_in(self, run: LaunchedRun) -> None:
        tag = self._runs.tag_of(run)
        for _ in range(_MOVE_PASSES):
            outside = [
                one
                for one in scan_marks().members(run.cookie, tag)
                if not self._cgroups.contains(run, one.pid)
            ]
            if not outside:
                return
            group = self._cgroups.of(run)
            if group is None:
                group = self._maker.make(run)
                self._limits.limit(run)
            for process in outside:
                if process.is_running():
                    with suppress(ProcessLookupError):
                        cgroupfs.write(f"{group.home}/cgroup.procs", b"%d" % process.pid)

    def is_of(self, run: LaunchedRun, pid: int) -> bool:
        return self._cgroups.contains(run, pid) or cookie(pid, self._runs.instance) == run.cookie

    def forget(self, run: LaunchedRun) -> None:
        self.remove(run)
        self._maker.forget(run)

    def remove(self, run: LaunchedRun) -> None:
        self._elsewhere.discard(run.id)
