"""The bounds of runs, written to the files of their cgroups and read back."""

import os

from ... import procfs
from ...complaints import Complaints
from ...launched_runs import LaunchedRun
from ..interface import RunLimits
from . import cgroupfs
from .cgroups import RunCgroup, RunCgroups
from .controllers import KINDS, Controllers

_PERIOD = 100_000
"""Microseconds: the period of `cpu.max`, the kernel's default."""
_LEAST_QUOTA = 1000
"""Microseconds; the kernel refuses less."""


class KernelLimits(RunLimits):
    def __init__(self, cgroups: RunCgroups, controllers: Controllers, complaints: Complaints) -> None:
        self._cgroups = cgroups
        self._controllers = controllers
        self._complaints = complaints

    def enforces(self, kind: str) -> bool:
        return kind in self._controllers.available

    def limit(self, run: LaunchedRun) -> None:
        """Write the bounds that have changed. A run without a cgroup gets them when its cgroup is made."""
        group = self._cgroups.of(run)
        if group is None:
            return
        for kind in KINDS:
            value, before = getattr(run.bounds, kind), getattr(group.bounds, kind)
            if value != before and kind in self._controllers.available:
                self._limit_to(run, group, kind, value)
        group.bounds = run.bounds

    def _limit_to(self, run: LaunchedRun, group: RunCgroup, kind: str, value: float | None) -> None:
        """Write one bound, and from now on count how often the kernel enforces it."""
        group.enforced.pop(kind, None)
        if not self._controllers.enable(kind, os.path.dirname(group.directory)):
            return
        try:
            for name, content in settings(kind, value):
                _write_setting(f"{group.directory}/{name}", content, optional=name.endswith(".swap.max"))
            if value is not None and kind != "cpu":
                group.enforced[kind] = _enforced(kind, group.directory)
        except OSError as error:
            self._complaints.unenforced(run.id, error)

    def used(self, run: LaunchedRun, kind: str) -> int | None:
        group = self._cgroups.of(run)
        if group is None:
            return None
        if kind == "pids":
            content = cgroupfs.read(f"{group.directory}/pids.current") if "pids" in group.enforced else b""
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
    """Return control files and what to write to them for a bound; for `None`, to remove it. Only the last file must exist."""
    if kind == "cpu":
        quota = b"max" if value is None else b"%d" % max(_LEAST_QUOTA, round(value * _PERIOD))
        return [("cpu.max", quota + b" %d" % _PERIOD)]
    limit = b"max" if value is None else b"%d" % value
    # else a run that is short of memory would fill the machine's swap first
    swap = [("memory.swap.max", b"max" if value is None else b"0")] if kind == "memory" else []
    return [*swap, (f"{kind}.max", limit)]


def _charged_memory(directory: str) -> int | None:
    """Return the bytes of anonymous and shared memory that are charged to a cgroup, to compare with the memory of processes:
    without page cache, which the kernel takes back before it enforces anything, and without the kernel's own memory."""
    fields = dict(line.split() for line in (procfs.read(f"{directory}/memory.stat", whole=True) or b"").splitlines())
    return int(fields[b"anon"]) + int(fields[b"shmem"]) if fields else None


def _enforced(kind: str, directory: str) -> int:
    """Return how often the kernel has enforced a bound of this very cgroup, not of one below it or above."""
    if kind == "memory":
        # not `max`: it also counts when page cache is taken back, which harms no process; not `oom_kill`: it also counts kills
        # because the machine was short of memory. `oom` is counted before the kill.
        return _counter(f"{directory}/memory.events.local", b"oom")
    local = f"{directory}/pids.events.local"
    return _counter(local, b"max") if os.path.exists(local) else _failed_forks(directory)


def _failed_forks(directory: str) -> int:
    """Return the same before Linux 6.11, which counts a failed fork where it was tried, whichever cgroup's bound it met. It can
    only be this cgroup's bound if this cgroup was full at some time (`pids.peak`, 6.1) or is."""
    limit = cgroupfs.read(f"{directory}/pids.max").strip()
    peak = procfs.read(f"{directory}/pids.peak") or cgroupfs.read(f"{directory}/pids.current")
    if not limit.isdigit() or int(peak or 0) < int(limit):
        return 0
    return sum(_counter(f"{inner}/pids.events", b"max") for inner in cgroupfs.nested(directory))


def _counter(path: str, name: bytes) -> int:
    """Return one counter of a file; 0 if the cgroup is gone, or has no such file."""
    words = (procfs.read(path) or b"").split()
    return int(words[words.index(name) + 1]) if name in words else 0
