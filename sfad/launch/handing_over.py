"""Handing runs over to the process that this one becomes by execve(2)."""

import os
from dataclasses import replace

from ..protocol.types import RunId
from .launched_runs import LaunchedRun, LaunchedRuns
from .launcher import LaunchError, Remains
from .trampoline.contract import EXEC, REPORT


class LaunchHandover:
    """Keeps the reports of launches in flight open across execve(2)."""

    def __init__(self, runs: LaunchedRuns) -> None:
        self._runs = runs
        self._pipes: list[int] = []
        """Those that were made for the next process."""

    def hand_over(self) -> dict[RunId, Remains]:
        try:
            return {run_id: self._remains_of(run) for run_id, run in self._runs.items()}
        except OSError:
            self.take_back()
            raise

    def _remains_of(self, run: LaunchedRun) -> Remains:
        remains = run.remains()
        failure = run.main.failure if run.main else run.launch_error
        if failure:
            self._pipes.append(_report_again(failure))
            return replace(remains, report=self._pipes[-1])
        if run.main and run.main.report is not None:
            os.set_inheritable(run.main.report, True)
            return replace(remains, report=run.main.report)
        return remains

    def take_back(self) -> None:
        while self._pipes:
            os.close(self._pipes.pop())
        for run in self._runs.values():
            if run.main and run.main.report is not None:
                os.set_inheritable(run.main.report, False)


def _report_again(error: LaunchError) -> int:
    """Return a pipe with this error as a trampoline would report it. It is inherited across execve(2)."""
    near, far = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.write(far, REPORT.pack(EXEC, -error.errno))
        os.set_inheritable(near, True)
    finally:
        os.close(far)
    return near
