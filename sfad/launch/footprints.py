"""What runs hold now: their processes and memory, from one pass over the machine."""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache

from ..protocol.types import RunId
from . import procfs
from .complaints import Complaints
from .contain.interface import RunContainment
from .launched_runs import HeldRun, HeldRuns
from .launcher import RunLoad


class Loads:
    """Counts the processes and the memory of runs. What cannot be told now is left out of an answer."""

    def __init__(self, runs: HeldRuns, containment: RunContainment, complaints: Complaints) -> None:
        self._runs = runs
        self._containment = containment
        self._complaints = complaints

    def loads(self, runs: Iterable[RunId]) -> dict[RunId, RunLoad]:
        asked = self._held(runs)
        try:
            resident = cache(procfs.resident)
            return {run: RunLoad(len(pids), self._memory(asked[run], pids, resident)) for run, pids in self._pids(asked).items()}
        except OSError as error:
            self._complaints.failed(error)
            return {}

    def uses(self, kind: str, worth: Mapping[RunId, float]) -> dict[RunId, int]:
        """See `Launcher.uses`.

        For `pids`: processes and threads where the kernel enforces the limit, else processes. For `memory`: what the kernel
        charges (`RunLoad`); else resident memory where that is below `worth`, else each process's share of it."""
        asked = self._held(worth)
        try:
            told = {run: figure for run, held in asked.items() if (figure := self._containment.limits.used(held, kind)) is not None}
            pids = self._pids({run: held for run, held in asked.items() if run not in told})
            return told | {run: _use(kind, found, worth[run]) for run, found in pids.items()}
        except OSError as error:
            self._complaints.failed(error)
            return {}

    def _held(self, runs: Iterable[RunId]) -> dict[RunId, HeldRun]:
        return {run: held for run in runs if (held := self._runs.get(run))}

    def _memory(self, held: HeldRun, pids: Iterable[int], resident: Callable[[int], int]) -> int:
        charged = self._containment.limits.used(held, "memory")
        return charged if charged is not None else sum(map(resident, pids))

    def _pids(self, asked: Mapping[RunId, HeldRun]) -> dict[RunId, list[int]]:
        found: dict[RunId, list[int]] = {run: [] for run in asked}
        for pid, run in self._containment.members(*_tops(asked.values())) if asked else ():
            for above in self._runs[run].chain():
                if above.id in found:
                    found[above.id].append(pid)
        return found


def _tops(asked: Collection[HeldRun]) -> list[HeldRun]:
    everyone = set(asked)
    return [held for held in asked if not any(above in everyone for above in held.chain() if above is not held)]


def _use(kind: str, pids: list[int], worth: float) -> int:
    if kind == "pids":
        return len(pids)
    resident = sum(map(procfs.resident, pids))  # never less than the shares
    return resident if resident < worth else sum(map(procfs.proportional, pids))
