"""Binding runs to CPUs, where no `cpu` controller can throttle them. Best effort: a process may choose other CPUs itself.

A run that may use 1.5 cores is bound to two of the CPUs that its parent run may use. So it cannot use more than two; nothing
limits it to one and a half. Runs are spread: each begins where the last one ended.
"""

import math
import os
from contextlib import suppress

from .. import procfs
from ..launched_runs import LaunchedRun, LaunchedRuns
from ..launcher import Bounds
from .interface import RunContainment

Cpus = frozenset[int]


class Affinity:
    """Chooses CPUs among those that this process has now, or among `cpus`."""

    def __init__(self, cpus: Cpus | None = None) -> None:
        self.all: Cpus = frozenset(os.sched_getaffinity(0)) if cpus is None else cpus
        self._turn = 0

    def choose(self, cores: float, within: Cpus) -> Cpus:
        """Return as many of `within` as `cores` takes."""
        count = math.ceil(cores)
        if count >= len(within):
            return within
        ordered = sorted(within)
        first, self._turn = self._turn, self._turn + count
        return frozenset(ordered[(first + offset) % len(ordered)] for offset in range(count))


class RunCpus:
    def __init__(self, runs: LaunchedRuns, containment: RunContainment) -> None:
        self._runs = runs
        self._containment = containment
        self._affinity = Affinity()

    @property
    def several(self) -> bool:
        """Whether there is more than one CPU. With one there is nothing to bind a run to."""
        return len(self._affinity.all) > 1

    @property
    def _binding(self) -> bool:
        return self.several and not self._containment.limits.enforces("cpu")

    def set_bounds(self, run: LaunchedRun, bounds: Bounds) -> None:
        """Give a run its bounds, and choose CPUs for it and for the runs below it."""
        again = bounds.cpu != run.bounds.cpu
        run.bounds = bounds
        for below in run.subtree() if again and self._binding else ():  # each after the run above it
            below.cpus = self._choose(below)

    def _choose(self, run: LaunchedRun) -> Cpus | None:
        if run.bounds.cpu is None:
            return None
        within = self.of(run.parent) if run.parent else None
        return self._affinity.choose(run.bounds.cpu, within or self._affinity.all)

    def of(self, run: LaunchedRun) -> Cpus | None:
        """Return those of the nearest run that is bound. The daemon starts every run, so a child run inherits none."""
        return next((above.cpus for above in run.upwards() if above.cpus is not None), None)

    def rebind(self, run: LaunchedRun) -> None:
        """Bind the live processes of a run and its descendants. Raises `OSError`."""
        for _ in range(2 if self._binding else 0):  # a process that was forked during the first pass inherited the old CPUs
            for pid, run_id in tuple(self._containment.members(run)):
                bind(pid, self.of(self._runs[run_id]) or self._affinity.all)

    def recall(self, run: LaunchedRun) -> None:
        """Find out what an earlier daemon bound the run to, else choose. Raises `OSError`."""
        if run.bounds.cpu is not None and self._binding:
            with suppress(ProcessLookupError):
                run.cpus = frozenset(os.sched_getaffinity(run.main.pid)) if run.main else None
            run.cpus = run.cpus or self._choose(run)


def bind(pid: int, cpus: Cpus) -> None:
    """Bind every thread of a process; what it starts later inherits that. Raises `OSError`, but not if the process is gone."""
    with suppress(FileNotFoundError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            try:
                os.sched_setaffinity(int(thread), cpus)
            except OSError as error:
                if error.errno not in procfs.GONE | procfs.HIDDEN:
                    raise
