"""Binding runs to CPUs, where no `cpu` controller can throttle them. Best effort: a process may choose other CPUs itself.

A run that may use 1.5 cores is bound to two of the CPUs that its parent run may use. So it cannot take more than two; that
it takes no more than one and a half is nobody's promise. Runs are spread: each begins where the last one ended.
"""

from __future__ import annotations

import math
import os
from contextlib import suppress

from . import procfs

Cpus = frozenset[int]


class Affinity:
    """Chooses CPUs among those that this process had when it was made."""

    def __init__(self) -> None:
        self.all: Cpus = frozenset(os.sched_getaffinity(0))
        self._turn = 0

    def choose(self, cores: float, within: Cpus) -> Cpus:
        """As many of `within` as `cores` takes."""
        count = math.ceil(cores)
        if count >= len(within):
            return within
        ordered = sorted(within)
        first, self._turn = self._turn, self._turn + count
        return frozenset(ordered[(first + offset) % len(ordered)] for offset in range(count))


def bind(pid: int, cpus: Cpus) -> None:
    """Binds every thread of a process. What it starts later is bound likewise. Raises `OSError`, but not if it is gone."""
    with suppress(FileNotFoundError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            try:
                os.sched_setaffinity(int(thread), cpus)
            except OSError as error:
                if error.errno not in procfs.GONE | procfs.HIDDEN:
                    raise
