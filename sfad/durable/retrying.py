"""Writes to the spool, tried again while the disk has no room."""

from collections.abc import Callable
from typing import TypeVar

import msgspec
import trio

from ..host.clock import Timers
from ..host.faults import crash_point
from ..host.files import UNDECODABLE, keep_damaged
from ..host.tasks import LoopTurns
from ..storage.spool import Store

RETRY_EVERY = 1.0
"""Seconds between two tries to write what the disk had no room for."""

T = TypeVar("T")

Changes = dict[str, bytes | None]
"""Values by key; `None` deletes."""


class RetryingStore:
    """The spool's file of values by key. `trouble` is told of the first failure of several, and of what another process did to the
    file; `damaged` of each value that cannot be decoded. Such a value is set aside in a file beside the store's."""

    def __init__(
        self, store: Store, timers: Timers, turns: LoopTurns, trouble: Callable[[str], None], damaged: Callable[[str], None]
    ) -> None:
        self.items = store.items
        self.unwritten: Changes = {}
        """The next write has these as well."""
        self._store = store
        self._timers = timers
        self._turns = turns
        self._looked = -1
        """The turn of the last look whether the file is in its place."""
        self._trouble = trouble
        self._damaged = damaged
        self.failing = False
        """Whether the last write has failed."""
        self._closed = False
        self._displaced = False

    def decoded(self, key: str, type_: type[T]) -> T | None:
        """Return a value; `None` if there is none, or if it is damaged."""
        saved = self.items.get(key)
        try:
            return msgspec.msgpack.decode(saved, type=type_) if saved is not None else None
        except UNDECODABLE as error:
            self._tell_damaged(key, error)
            return None

    def whole(self, key: str) -> int:
        """Return a whole number; 0 if there is none, or if it is damaged."""
        try:
            return max(0, int(self.items.get(key, b"0")))
        except ValueError as error:
            self._tell_damaged(key, error)
            return 0

    def _tell_damaged(self, key: str, error: Exception) -> None:
        self._damaged(f"the record {key} in the spool cannot be read: {error}; {self.set_aside(key)}")

    def set_aside(self, key: str) -> str:
        """Move a damaged value to a file of its own. Return where it is, as the end of a sentence."""
        kept = keep_damaged(self._store.path.with_name(key.replace("/", ".")), self.items[key])
        self.write_soon({key: None})
        return kept

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
