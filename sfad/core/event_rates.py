"""How many events may come of what an agent does at will: each is a row of the ledger, which it must not fill."""

from collections.abc import Hashable

MOST = 10
WINDOW = 60.0
"""Seconds."""
MAX_CAUSES = 1000
"""Causes that are remembered before those are forgotten that have caused nothing within the window."""


class EventRate:
    """Admits `MOST` events in a `WINDOW` for each cause."""

    def __init__(self) -> None:
        self._told: dict[Hashable, list[float]] = {}
        self._forget_at = MAX_CAUSES

    def admits(self, cause: Hashable, at: float) -> bool:
        """Return whether one more event may be published, and count it."""
        told = self._told.get(cause)
        if told is None:
            self._forget_old(at)
            told = self._told[cause] = []
        if len(told) == MOST:
            if at - told[0] < WINDOW:
                return False
            del told[0]
        told.append(at)
        return True

    def _forget_old(self, at: float) -> None:
        if len(self._told) >= self._forget_at:
            self._told = {cause: told for cause, told in self._told.items() if at - told[-1] < WINDOW}
            self._forget_at = max(MAX_CAUSES, 2 * len(self._told))  # so that each is looked at a few times only
