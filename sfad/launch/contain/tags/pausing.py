"""Pausing runs: SIGSTOP to every process, and again to what another process continues."""

import signal

import trio

from ... import procfs
from ...launched_runs import LaunchedRun, run_ids
from ...pidfd import send
from ...procfs import Stat
from ..interface import LauncherParts, RunPauses
from .census import Census

_KEEP_EVERY = 1.0
"""Seconds between two looks whether paused runs stand still."""
_FIRST_LOOK, _LAST_LOOKS = 0.002, 0.1
"""Seconds between two looks whether every process has stopped: at first, and at most, where one does not stop (uninterruptible
sleep). The kernel notifies us only of our own children."""


class TagsPauses(RunPauses):
    def __init__(self, parts: LauncherParts, census: Census) -> None:
        self._reactor = parts.reactor
        self._owed = parts.owed
        self._census = census
        self._paused: set[LaunchedRun] = set()
        self.forget = self._paused.discard  # for each run that ends
        self._keeping = False
        """Whether `_keep_still` runs."""

    def freeze(self, run: LaunchedRun) -> None:
        self._paused.add(run)
        self._reactor.task(self._stop_all, run)

    async def _stop_all(self, run: LaunchedRun) -> None:
        pause = _FIRST_LOOK
        while run.freezing and (awake := [one for one, _ in self._census.take(run_ids([run])) if not _stands(one)]):
            for process in awake:  # also one that was stopped before: another process may have continued it
                send(process, signal.SIGSTOP)
            await trio.sleep(pause)
            pause = min(2 * pause, _LAST_LOOKS)
        self._owed.report_frozen(run)
        if not self._keeping:
            self._keeping = True
            self._reactor.task(self._keep_still)

    async def _keep_still(self) -> None:
        """Stop again what another process has continued: the clocks of these runs stand."""
        while self._paused:
            await trio.sleep(_KEEP_EVERY)
            for process, _ in self._census.take(run_ids(self._paused)):
                if not _stands(process):
                    send(process, signal.SIGSTOP)
        self._keeping = False

    def thaw(self, run: LaunchedRun) -> None:
        self._paused.discard(run)
        still_paused = {below.id for below in run.subtree() if self._paused.intersection(below.upwards())}
        for process, run_id in self._census.take(run_ids([run])):
            if run_id not in still_paused:
                send(process, signal.SIGCONT)

    def end(self, run: LaunchedRun) -> None:
        """Let no process of the run and its descendants stand still, because they are stopped."""
        self._paused.difference_update(run.subtree())


def _stands(process: Stat) -> bool:
    """Return whether a process runs no more.

    A process that waits in vfork(2) for its child cannot be stopped, and would wait for ever if the child is; but it does
    nothing else, and is stopped before it continues."""
    if process.state in "ZX":  # the main thread has ended, others have not
        return procfs.threads_stopped(process.pid)
    return process.stopped or (process.state == "D" and procfs.will_stop(process.pid))
