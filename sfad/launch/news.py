"""What the launcher says: events to the loop, complaints to the log.

Two events are answers that it owes after a verb: `Emptied` after a stop, `Frozen` after a freeze. A run is empty when no main
process of its subtree is unreaped and its containment is unpopulated. That order puts every `MainExited` before the `Emptied`
of the run and of its ancestors.
"""

import traceback
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from ..core.events import Emptied, Event, Frozen, LaunchFailed
from ..protocol.types import RunId
from .base import Complain, Emit, LaunchError
from .runs import HeldRun
from .watch.reactor import Reactor

_COMPLAIN_EVERY = 10.0
"""Seconds between two complaints about something that is tried again."""


class News:
    """Sends events and complaints. `remedy` is called with each error first, and may remove its cause."""

    def __init__(
        self,
        emit: Emit,
        clock: Callable[[], float],
        complain: Complain,
        remedy: Callable[[Exception], object] = lambda _error: None,
    ) -> None:
        self._emit = emit
        self._clock = clock
        self._complain = complain
        self._complained = -_COMPLAIN_EVERY
        self._remedy = remedy

    def answer(self, kind: Callable[..., Event], *fields: object) -> None:
        """Send an event of that kind, with the current time before its fields."""
        try:
            self._emit(kind(self._clock(), *fields))
        except Exception as error:  # noqa: BLE001 - the receiver has the event, whatever it failed with: do not send it twice
            self.failed(error)

    def launch_failed(self, run: RunId, error: LaunchError) -> None:
        self.answer(LaunchFailed, run, error.errno, error.text, error.kind, error.about)

    def failed(self, error: Exception) -> None:
        """Complain, every few seconds at most, that something failed and is tried again."""
        self._remedy(error)
        if monotonic() - self._complained >= _COMPLAIN_EVERY:
            self._complained = monotonic()
            internal = "" if isinstance(error, OSError) else f"internal error: {''.join(traceback.format_exception(error))}"
            self._say(f"containment, to be tried again: {internal or error}")

    def unenforced(self, run: RunId, error: OSError) -> None:
        """Complain that the kernel cannot be told a limit of a run."""
        where = f"{error.filename}: " if error.filename else ""
        self._say(f"a limit of run {run} is only watched, not enforced: {where}{error.strerror}")

    def _say(self, text: str) -> None:
        with suppress(OSError):  # a log that cannot be written
            self._complain(text)


class Answers:
    """Reports that a run is empty or stands still. `populated` asks the containment whether anything lives in a run."""

    def __init__(self, news: News, reactor: Reactor, populated: Callable[[HeldRun], bool]) -> None:
        self._news = news
        self._reactor = reactor
        self._populated = populated

    def owe_emptied(self, held: HeldRun, number: int) -> None:
        """From now on report when the run, which gets this signal, is empty; it may be already."""
        held.begin_stop(number)
        self._reactor.soon(self.consider, held)

    def consider(self, held: HeldRun) -> None:
        """Look whether the run and its ancestors are empty, because something has gone that may have been the last."""
        try:
            for above in tuple(held.chain()):
                if above.emptying and self._empty(above):
                    above.emptying = False
                    self._news.answer(Emptied, above.id)
        except Exception as error:  # noqa: BLE001 - a bug in what is done for one run must not end the others
            self._news.failed(error)
            self._reactor.later(self.consider, held)

    def surely_empty(self, held: HeldRun) -> bool:
        """Return whether the run is known to be empty. If that cannot be told it is stopped, and the stop waits until it is."""
        try:
            return self._empty(held)
        except Exception as error:  # noqa: BLE001 - any failure means that it cannot be told
            self._news.failed(error)
            return False

    def _empty(self, held: HeldRun) -> bool:
        return not held.mains and not self._populated(held)

    def stands_still(self, held: HeldRun) -> None:
        """Report `Frozen`, if it is owed."""
        if held.freezing:
            held.freezing = False
            self._news.answer(Frozen, held.id)
