"""The processes and memory of runs, from one pass over the machine."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache

from ..protocol.types import RunId
from . import procfs
from .complaints import Complaints
from .contain.interface import RunContainment
from .launched_runs import LaunchedRun, LaunchedRuns
from .launcher import Footprint


class Footprints:
    """Counts the processes and the memory of runs. What cannot be told now is left out of an answer."""

    def __init__(self, runs: LaunchedRuns, containment: RunContainment, complaints: Complaints) -> None:
        self._runs = runs
        self._containment = containment
        self._complaints = complaints

    def of(self, runs: Iterable[RunId], *, cpu: bool) -> dict[RunId, Footprint]:
        """See `Launcher.footprints`."""
        asked = self._launched(runs)
        resident, burnt = procfs.resident, procfs.cpu_seconds
        if len(asked) > 1:  # one may be within another
            resident, burnt = cache(resident), cache(burnt)
        try:
            return {
                run_id: Footprint(
                    len(pids),
                    self._memory(asked[run_id], pids, resident),
                    self._cpu(asked[run_id], pids, burnt) if cpu else None,
                )
                for run_id, pids in self._pids(asked).items()
            }
        except OSError as error:
            self._complaints.failed(error)
            return {}

    def amounts(self, kind: str, exact_from: Mapping[RunId, float]) -> dict[RunId, int]:
        """See `Launcher.amounts`.

        For `pids`: processes and threads where the kernel enforces the limit, else processes. For `memory`: what the kernel
        charges (`Footprint`); else resident memory where that is below `exact_from`, else each process's share of it."""
        asked = self._launched(exact_from)
        try:
            told = {
                run_id: figure for run_id, run in asked.items() if (figure := self._containment.limits.used(run, kind)) is not None
            }
            pids = self._pids({run_id: run for run_id, run in asked.items() if run_id not in told})
            return told | {run_id: _amount(kind, found, exact_from[run_id]) for run_id, found in pids.items()}
        except OSError as error:
            self._complaints.failed(error)
            return {}

    def _launched(self, runs: Iterable[RunId]) -> dict[RunId, LaunchedRun]:
        return {run_id: run for run_id in runs if (run := self._runs.get(run_id))}

    def _memory(self, run: LaunchedRun, pids: Iterable[int], resident: Callable[[int], int]) -> int:
        charged = self._containment.limits.used(run, "memory")
        return charged if charged is not None else sum(map(resident, pids))

    def _cpu(self, run: LaunchedRun, pids: Iterable[int], burnt: Callable[[int], float]) -> float:
        counted = self._containment.limits.cpu_seconds(run)
        return counted if counted is not None else sum(map(burnt, pids))

    def _pids(self, asked: Mapping[RunId, LaunchedRun]) -> dict[RunId, list[int]]:
        found: dict[RunId, list[int]] = {run_id: [] for run_id in asked}
        everyone = set(asked.values())
        tops = [run for run in asked.values() if not any(above in everyone for above in run.upwards() if above is not run)]
        for pid, run_id in self._containment.members(*tops) if tops else ():
            for above in self._runs[run_id].upwards():
                if above.id in found:
                    found[above.id].append(pid)
        return found


def _amount(kind: str, pids: list[int], exact_from: float) -> int:
    if kind == "pids":
        return len(pids)
    resident = sum(map(procfs.resident, pids))  # never less than the shares
    return resident if resident < exact_from else sum(map(procfs.proportional, pids))
