"""Adopting runs that an earlier daemon launched.

The earlier daemon is a dead process, or this very process before an execve(2). In the second case main processes are still
unreaped children of ours. In the first they are not our children: another process reaps them, and their pidfds tell how
they ended.
"""

import fcntl
import os
import signal
from time import monotonic, sleep

from ..protocol.types import RunId
from . import procfs
from .contain.cpu_binding import RunCpus
from .contain.interface import AdoptedRuns
from .launched_runs import LaunchedRun, LaunchedRuns, MainProcess
from .launcher import Adopted, Remains
from .procfs import Stat
from .trampoline.contract import REPORT, reported
from .trampoline.executable import is_one
from .watch.mains import Mains

_TRAMPOLINES_DONE_WITHIN, _LOOK_EVERY = 0.5, 0.002
"""Seconds that the trampolines of a dead daemon get, and between two looks: attaching takes 6 ms, and starting Python 20."""


class Adopter:
    def __init__(self, runs: LaunchedRuns, adopted: AdoptedRuns, cpus: RunCpus, mains: Mains) -> None:
        self._runs = runs
        self._adopted = adopted
        self._cpus = cpus
        self._mains = mains
        self._trampolines_done_by = 0.0
        """When every trampoline of the dead daemon has become its command, or hangs; set when the first is met."""

    def adopt(self, run_id: RunId, parent: RunId | None, remains: Remains) -> Adopted:
        assert run_id not in self._runs
        run = self._runs.add(run_id, parent, remains.nonce, remains.bounds, remains.started or 0)
        try:
            self._adopted.rejoin(run)
            if remains.report is None:
                self._find_main(run, remains)
            elif remains.pid:  # a launch in flight, of a child of ours; one that could not be spawned has only the report
                again = fcntl.fcntl(remains.report, fcntl.F_DUPFD_CLOEXEC, 0)
                self._mains.own(run, MainProcess(remains.pid, again, started=remains.started, isolated=remains.isolated))
            alive = self._adopted.finish(run)
            self._cpus.recall(run)
        except BaseException:
            self._mains.disown(run)
            self._runs.drop(run)
            self._adopted.forget(run)
            raise
        if remains.report is not None:
            if run.main is None:
                self._mains.fail_soon(run, reported(os.read(remains.report, REPORT.size)))
            os.close(remains.report)
        return Adopted(run.main.pid if run.main else None, run.main is None and not alive, remains.report is not None)

    def _find_main(self, run: LaunchedRun, remains: Remains) -> None:
        """Own the main process, if it lives or waits to be reaped by us."""
        process = self._main_process(run, remains)
        if process is None:
            return
        ours = process.parent == os.getpid()
        main = MainProcess(process.pid, None, started=process.started, ours=ours, isolated=remains.isolated)
        try:
            self._mains.own(run, main)
        except ProcessLookupError:
            return
        now = procfs.stat(main.pid)
        if now is None or now.started != main.started:  # it is gone, and the pid may be another's by now
            self._mains.disown(run)
        elif not remains.executed and self._hangs(main.pid):
            # the daemon that would hear its report has died, and how far it has come is not known
            main.signal(signal.SIGKILL)
            self._mains.disown(run)

    def _main_process(self, run: LaunchedRun, remains: Remains) -> Stat | None:
        process = procfs.stat(remains.pid) if remains.pid else None
        if process is None or remains.started not in (None, process.started):
            return None
        if process.parent == os.getpid() and remains.started is not None:  # unreaped, perhaps ended: no other process has its pid
            return process
        return process if process.alive and self._adopted.is_of(run, process.pid) else None

    def _hangs(self, pid: int) -> bool:
        """Return whether a process is still a trampoline, when all of them have had the time that they need."""
        while is_one(pid):
            self._trampolines_done_by = self._trampolines_done_by or monotonic() + _TRAMPOLINES_DONE_WITHIN
            if monotonic() > self._trampolines_done_by:
                return True
            sleep(_LOOK_EVERY)
        return False
