"""Writes to the spool, tried again where the disk has no room."""

from collections.abc import Callable

import trio

from ..faults import effect
from ..host.clock import Timers
from ..spool import Store

AGAIN = 1.0
"""Seconds between two tries to write what the disk had no room for."""

Changes = dict[str, bytes | None]
"""Values by key; `None` deletes."""


class RetryingStore:
    """The spool's file of values by key. `trouble` is told of the first failure of several, and of what opening had to fix. `again`
    is called a second after a failure, until a write has succeeded."""

    def __init__(self, store: Store, timers: Timers, trouble: Callable[[str], None], again: Callable[[], None]) -> None:
        self._store = store
        self._timers = timers
        self._trouble = trouble
        self._again = again
        self._next: Changes = {}
        self._failing = False
        self._closed = False
        self._displaced = False

    def add_to_next(self, changes: Changes) -> None:
        """Write these together with the next change."""
        self._next |= changes

    def write(self, changes: Changes) -> None:
        """Write all of these, or none. Raises `OSError`."""
        effect("remember")
        self._store.write(self._next | changes)
        effect("remembered")
        self._next = {}
        self._tell_notes()

    def try_write(self, changes: Changes) -> bool:
        """Write all of these, or none and try again later. Return whether they are written."""
        if self._closed:
            return False
        if not changes and not self._next:
            return True
        try:
            self.write(changes)
        except OSError as error:
            if not self._failing:
                self._trouble(f"what happens to runs cannot be saved in the spool for now: {error}")
            self._failing = True
            self._timers.arm("remember", trio.current_time() + AGAIN, self._again)
            return False
        self._failing = False
        return True

    def put_back(self, restore: Callable[[], None]) -> None:
        """Write the file again if another process has removed or replaced it. If so, now or at a write, call `restore`, because the
        spool's other files may be gone as well. Raises `OSError`."""
        if self._closed:
            return
        self._store.stay()
        self._tell_notes()
        if self._displaced:
            restore()
            self._displaced = False

    def _tell_notes(self) -> None:
        for note in self._store.take_notes():
            self._displaced = True
            self._trouble(note)

    def close(self) -> None:
        """Close the file. Nothing is written after that."""
        self._closed = True
        self._store.close()
