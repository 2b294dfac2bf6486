"""Turns of the trio loop: what its tasks do between two waits for I/O.

A burst of requests is handled in one turn. What its parts have in common is done once, at the turn's end.
"""

from collections.abc import Callable

import trio


class LoopTurns(trio.abc.Instrument):
    """Counts the turns of the loop that it instruments, and calls back at the end of one: a task would cost another turn."""

    def __init__(self) -> None:
        self.number = 0
        self._calls: list[Callable[[], object]] = []

    def at_end(self, call: Callable[[], object]) -> None:
        """Call `call` once, before the loop waits for I/O. It must not raise, nor wake a task: the loop knows already how long it
        waits."""
        self._calls.append(call)

    def before_io_wait(self, _timeout: float) -> None:
        """Called by trio."""
        self.number += 1
        if self._calls:
            calls, self._calls = self._calls, []
            for call in calls:
                call()
