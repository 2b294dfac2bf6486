"""What the launcher tells the log: what failed and is tried again, and what the kernel refused."""

import traceback
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from ..protocol.types import RunId
from .launcher import Complain

_COMPLAIN_EVERY = 10.0
"""Seconds between two complaints about something that is tried again."""


class Complaints:
    """`remedy` is called with each error first, and may remove its cause."""

    def __init__(self, complain: Complain, remedy: Callable[[Exception], object] = lambda _error: None) -> None:
        self._complain = complain
        self._complained = -_COMPLAIN_EVERY
        self._remedy = remedy

    def failed(self, error: Exception) -> None:
        """Complain, every few seconds at most, that something failed and is tried again."""
        self._remedy(error)
        if monotonic() - self._complained >= _COMPLAIN_EVERY:
            self._complained = monotonic()
            internal = "" if isinstance(error, OSError) else f"internal error: {''.join(traceback.format_exception(error))}"
            self._say(f"containment, to be tried again: {internal or error}")

    def unenforced(self, run_id: RunId, error: OSError) -> None:
        """Complain that the kernel cannot be told a limit of a run."""
        where = f"{error.filename}: " if error.filename else ""
        self._say(f"a limit of run {run_id} is only watched, not enforced: {where}{error.strerror}")

    def _say(self, text: str) -> None:
        with suppress(OSError):  # a log that cannot be written
            self._complain(text)
