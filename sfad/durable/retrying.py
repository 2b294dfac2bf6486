"""Writes to the spool, tried again while the disk has no room."""

from collections.abc import Callable

import trio

from ..faults import crash_point
from ..host.clock import Timers
from ..host.loop_turns import LoopTurns
from ..spool import Store

RETRY_EVERY = 1.0
"""Seconds between two tries to write what the disk had no room for."""

Changes = dict[str, bytes | None]
"""Values by key; `None` deletes."""


class RetryingStore:
    """The spool's file of values by key. `trouble` is told of the first failure of several, and of what another process did to the
    file."""

    def __init__(self, store: Store, timers: Timers, turns: LoopTurns, trouble: Callable[[str], None]) -> None:
        self.items = store.items
        self.unwritten: Changes = {}
        """The next write has these as well."""
        self._store = store
        self._timers = timers
        self._turns = turns
        self._looked = -1
        """The turn of the last look whether the file is in its place."""
        self._trouble = trouble
        self.failing = False
        """Whether the last write has failed."""
        self._closed = False
        self._displaced = False

    def add_to_next(self, changes: Changes) -> None:
        self.unwritten |= changes

    def write(self, changes: Changes) -> None:
        """Write all of these, or none. Raises `OSError`."""
        crash_point("remember")
        self._store.write(self.unwritten | changes, look=self._looked != self._turns.number)
        self._looked = self._turns.number
        crash_point("remembered")
        self.unwritten = {}
        self.failing = False
        if self._store.notes:
            self._tell_notes()

    def write_soon(self, changes: Changes) -> None:
        """Write these now, or as soon as the disk has room."""
        self.unwritten |= changes
        if self._closed or not self.unwritten:
            return
        try:
            self.write({})
        except OSError as error:
            if not self.failing:
                self._trouble(f"what happens to runs cannot be saved in the spool for now: {error}")
            self.failing = True
            self._timers.arm("remember", trio.current_time() + RETRY_EVERY, lambda: self.write_soon({}))

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
