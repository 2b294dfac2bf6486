"""The two events that the launcher owes after a request: `Emptied` after a stop, `Frozen` after a freeze.

A run is empty when no main process of its subtree is unreaped and its containment is unpopulated. That order puts every
`MainExited` before the `Emptied` of the run and of its ancestors.
"""

from collections.abc import Callable

from ...core.events import Emptied, Frozen
from ..complaints import Complaints
from ..emitter import Emitter
from ..launched_runs import LaunchedRun
from .reactor import Reactor


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
