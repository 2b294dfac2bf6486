"""What the launcher says: events to the loop, complaints to the log."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from ..core.events import Event, LaunchFailed
from ..protocol.types import RunId
from .base import Complain, Emit, LaunchError

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
        """Send `LaunchFailed`."""
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
