"""Main processes: what their trampolines report, and how they end."""

import os
from collections.abc import Callable
from time import monotonic, sleep

from ...core.events import Emptied, Frozen, LaunchFailed, LaunchSucceeded, MainExited
from ...host.faults import crash_point
from .. import procfs
from ..launched_runs import LaunchedRun, MainProcess
from ..launcher import LaunchError
from ..pidfd import ended, exit_status, reaped, tells_exits
from ..trampoline.clone import free, is_waiting
from ..trampoline.executable import REPORT, reported
from .reactor import Complaints, Emitter, Reactor
from .reaper import Orphans

# ---- The two events that the launcher owes after a request: `Emptied` after a stop, `Frozen` after a freeze
#
# A run is empty when no main process of its subtree is unreaped and its containment is unpopulated. That order puts every
# `MainExited` before the `Emptied` of the run and of its ancestors.


class OwedEvents:
    """Reports that a run is empty or stands still. `populated` asks the containment whether anything lives in a run."""

    def __init__(
        self, emitter: Emitter, complaints: Complaints, reactor: Reactor, populated: Callable[[LaunchedRun, int | None], bool]
    ) -> None:
        self._emitter = emitter
        self._complaints = complaints
        self._reactor = reactor
        self._populated = populated

    def owe_emptied(self, run: LaunchedRun, number: int) -> None:
        """From now on report when the run, which gets this signal, is empty; it may be already."""
        run.begin_stop(number)
        self._reactor.soon(self.report_if_empty, run)

    def report_if_empty(self, run: LaunchedRun) -> None:
        """Look whether the run and its ancestors are empty, because something has gone that may have been the last."""
        try:
            for above in tuple(run.upwards()):
                if above.emptying and self._empty(above):
                    above.emptying = False
                    self._emitter.emit(Emptied, above.id)
        except Exception as error:  # noqa: BLE001 - a bug in what is done for one run must not end the others
            self._complaints.failed(error)
            self._reactor.later(self.report_if_empty, run)

    def known_empty(self, run: LaunchedRun, poll: int | None) -> bool:
        """Return whether the run is known to be empty. If that cannot be told it is stopped, and the stop waits until it is.
        `poll`: see `RunContainment.populated`."""
        try:
            return self._empty(run, poll)
        except Exception as error:  # noqa: BLE001 - any failure means that it cannot be told
            self._complaints.failed(error)
            return False

    def _empty(self, run: LaunchedRun, poll: int | None = None) -> bool:
        return not run.mains and not self._populated(run, poll)

    def report_frozen(self, run: LaunchedRun) -> None:
        """Report `Frozen`, if it is owed."""
        if run.freezing:
            run.freezing = False
            self._emitter.emit(Frozen, run.id)


# ---- mains


_REAPED_WITHIN = 3.0
"""Seconds within which the parent of an ended main process is expected to reap it, if we are not the parent. In some
containers pid 1 looks for zombies every two seconds, in others never."""


_EXECUTES_WITHIN, _LOOK_EVERY = 0.05, 0.0001
"""Seconds within which a new child executes its trampoline (it takes 0.2 ms), and between two looks."""


class Mains:
    """Owns the main process of each run, from its start or adoption until it is reaped."""

    def __init__(self, reactor: Reactor, orphans: Orphans, emitter: Emitter, owed: OwedEvents) -> None:
        self._reactor = reactor
        self._orphans = orphans
        self._emitter = emitter
        self._owed = owed

    def own(self, run: LaunchedRun, main: MainProcess) -> None:
        """Open the process's pidfd, read its report and reap it. Raises `OSError`; then its descriptors are closed, and it has no
        owner."""
        run.main = main
        try:
            if main.pidfd < 0:
                main.pidfd = os.pidfd_open(main.pid)
            if main.report is not None:
                self._reactor.add(main.report, lambda: self._read_report(run, main))
            self._reactor.add(main.pidfd, lambda: self._reap(run, main))
        except OSError:
            self.disown(run)
            raise
        if main.ours:
            self._orphans.owned[main.pid] = run.id

    def disown(self, run: LaunchedRun) -> None:
        """Close the descriptors of a main process, and leave it to the reaper of orphans."""
        main, run.main = run.main, None
        if main is None:
            return
        for fd in (main.report, main.pidfd):
            if fd is not None and fd >= 0:
                self._reactor.discard(fd)
                os.close(fd)
        main.report, main.pidfd = None, -1
        if main.ours:
            self._orphans.owned.pop(main.pid, None)

    def fail_soon(self, run: LaunchedRun, error: LaunchError) -> None:
        """Report that a launch has failed without a main process."""
        run.launch_error = error
        self._reactor.soon(self._fail, run, error)

    def _fail(self, run: LaunchedRun, error: LaunchError) -> None:
        run.launch_error = None
        self._emitter.emit(LaunchFailed, run.id, error.errno, error.text, error.kind, error.about)
        self._owed.report_if_empty(run)

    def _read_report(self, run: LaunchedRun, main: MainProcess) -> None:
        if main.report is None:
            return
        try:
            content = os.read(main.report, REPORT.size)
        except BlockingIOError:
            return
        self._reactor.discard(main.report)
        os.close(main.report)
        main.report = None
        _free(main)
        if main.failure:
            return
        if content:
            main.failure = reported(content, main.name, main.cwd)  # reported to the loop when the trampoline is reaped
        else:
            self._emitter.emit(LaunchSucceeded, run.id, main.pid)

    def _reap(self, run: LaunchedRun, main: MainProcess) -> None:
        self._read_report(run, main)
        if not main.ours:
            if ended(main.pidfd):
                self._find_status(run, main)
            return
        result = os.waitid(os.P_PIDFD, main.pidfd, os.WEXITED | os.WNOHANG)
        if result is not None:
            crash_point("reaped")
            exited = result.si_code == os.CLD_EXITED
            status = (result.si_status, None) if exited else (None, result.si_status)
            self._ended(run, main, *status, poll=self._reactor.polls)
        elif ended(main.pidfd):
            # a process that traces it keeps the zombie, perhaps for ever; the orphans' reaper takes it when the tracer lets go
            self._ended(run, main, *_code_and_signal(procfs.exit_status(main.pid)))

    def _find_status(self, run: LaunchedRun, main: MainProcess) -> None:
        """Find out how another process's child has ended. The kernel tells it when its parent has reaped it, and wakes us then."""
        gone = reaped(main.pidfd)
        status = exit_status(main.pidfd)
        if status is not None:
            self._ended(run, main, *_code_and_signal(status))
        elif gone or not tells_exits() or (main.exit_seen is not None and monotonic() - main.exit_seen > _REAPED_WITHIN):
            self._ended(run, main, None, None)
        elif main.exit_seen is None:
            main.exit_seen = monotonic()
            self._reactor.discard(main.pidfd)
            self._reactor.add(main.pidfd, lambda: self._reap(run, main), 0)  # EPOLLHUP, always reported: it was reaped
            self._look_again(run, main)

    def _look_again(self, run: LaunchedRun, main: MainProcess) -> None:
        """Look again later: EPOLLHUP may not come, because pid 1 may never reap, and kernels before 6.9 do not report it."""
        if run.main is main:
            self._find_status(run, main)
        if run.main is main:
            self._reactor.later(self._look_again, run, main)

    def _ended(self, run: LaunchedRun, main: MainProcess, code: int | None, number: int | None, *, poll: int | None = None) -> None:
        self.disown(run)
        _free(main)
        if main.failure:
            self._fail(run, main.failure)
            return
        self._emitter.emit(MainExited, run.id, code, number, self._owed.known_empty(run, poll))
        self._owed.report_if_empty(run)


def _free(main: MainProcess) -> None:
    """Free what a child reads before it executes: it has executed, or it has ended."""
    if main.memory is not None:
        free(main.memory)
        main.memory = None


def all_executed(run: LaunchedRun) -> None:
    """Wait until the new children of a subtree have executed their trampolines. One that stood still before that would keep the
    daemon's descriptors, and the locks that the next daemon needs."""
    until = monotonic() + _EXECUTES_WITHIN
    for main in run.mains:
        while main.memory is not None and is_waiting(main.memory) and monotonic() < until:
            sleep(_LOOK_EVERY)


def signal_mains(run: LaunchedRun, number: int, *, but: set[int] | list[int] | tuple[()] = ()) -> None:
    for main in run.mains:
        if main.pid not in but:
            main.signal(number)


def _code_and_signal(status: int | None) -> tuple[int | None, int | None]:
    """Split a status of wait(2) into exit code and signal; both are None if it is not known."""
    if status is None:
        return None, None
    code = os.waitstatus_to_exitcode(status)
    return (code, None) if code >= 0 else (None, -code)
