"""Copy a run's text instead of its stdout. The daemon, which knows the agent's events, finds the text in them."""

import os
from collections.abc import Callable

from sfad.protocol.messages import TextPart

from .follow import Follower


class TextFollower(Follower):
    """Ask for text when the file has grown, and write it: one request at a time, and none while text is left to write."""

    def __init__(self, source: int, target: int, note: Callable[[str], None], ask: Callable[[bytes], None]) -> None:
        """`ask` sends a request with a cursor; pass its reply to `take_in`."""
        super().__init__(source, target, note)
        self._ask = ask
        self._cursor = b""
        self._waiting = False
        self._more = True
        self._size = 0
        self.finished = False
        """Whether no more text will come."""

    def fill(self) -> bool:
        """Ask for the next text, unless some is still to be written. Return whether there is something to write."""
        size = os.fstat(self.source).st_size
        if not (self._pending or self._waiting or self.finished) and (self._more or size != self._size):
            self._size, self._waiting = size, True
            self._ask(self._cursor)
        return bool(self._pending)

    def take_in(self, part: TextPart) -> None:
        """Take the next text to write."""
        for note in part.notes:
            self._note(note)
        self._pending, self._cursor = memoryview(part.text), part.cursor
        self._waiting, self._more = False, part.more
        self.finished = part.ended and not part.more

    def run_ended(self) -> None:
        """Note that the run has ended: the next answers bring the rest of its text."""
        self._more = True

    def give_up(self) -> None:
        """Stop asking, because no answer will come."""
        self.finished = True
