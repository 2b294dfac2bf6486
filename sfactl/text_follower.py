"""Copying a run's text instead of its stdout: the daemon, which knows the agent's events, finds the text in them."""

from __future__ import annotations

import os
from collections.abc import Callable

from sfad.protocol.messages import TextPart

from .follow import Follower


class TextFollower(Follower):
    """Asks for more text when the file has grown, and writes it. One question at a time, and none while text is left to write."""

    def __init__(self, source: int, target: int, note: Callable[[str], None], ask: Callable[[bytes], None]) -> None:
        """`ask` sends a request with a cursor; its answer is to be given to `take_in`."""
        super().__init__(source, target, note)
        self._ask = ask
        self._cursor = b""
        self._waiting = False
        self._more = True
        self._size = 0
        self.finished = False
        """No more text will come."""

    def fill(self) -> bool:
        """Asks what is next, unless something still waits to be written. Says whether there is something to write."""
        size = os.fstat(self.source).st_size
        if not (self._pending or self._waiting or self.finished) and (self._more or size != self._size):
            self._size, self._waiting = size, True
            self._ask(self._cursor)
        return bool(self._pending)

    def take_in(self, part: TextPart) -> None:
        """Writes this from now on."""
        for note in part.notes:
            self._note(note)
        self._pending, self._cursor = memoryview(part.text), part.cursor
        self._waiting, self._more = False, part.more
        self.finished = part.ended and not part.more

    def run_ended(self) -> None:
        """The run has ended: what is left comes with the next answers."""
        self._more = True

    def give_up(self) -> None:
        """Nothing can be asked any more."""
        self.finished = True
