"""Numbers of runs and events that the next daemon must not use, though the ledger may not know of them."""

from ..core.ids import number_or_zero
from .retrying import RetryingStore
from .snapshots import RUN

RUNS_SKIPPED = 256
"""Run numbers that a crash skips at most. A write for each refusal would use up the spare room of a full disk sooner."""

_EVENTS = "events"
_NUMBERS = "numbers"


class ReservedNumbers:
    def __init__(self, store: RetryingStore) -> None:
        self._store = store

    @property
    def highest_run(self) -> int:
        """The highest number that a run may have had; 0 for none."""
        return max([self._skipped, *(number_or_zero(key.removeprefix(RUN)) for key in self._store.items if key.startswith(RUN))])

    def skip_run(self, number: int) -> None:
        """Have no other run bear this number: a client was told of a run that may never be on record. Some of the next numbers are
        skipped as well, because the client will ask again."""
        if number > self._skipped:
            self._store.write_soon({_NUMBERS: str(number + RUNS_SKIPPED).encode()})

    @property
    def _skipped(self) -> int:
        return self._store.whole(_NUMBERS)

    @property
    def highest_event(self) -> int:
        return self._store.whole(_EVENTS)

    def reserve_events(self, number: int) -> None:
        """Let events bear numbers up to this one. They are pushed before they are on record, and the next daemon must not give
        their numbers to other events."""
        self._store.write_soon({_EVENTS: str(number).encode()})
