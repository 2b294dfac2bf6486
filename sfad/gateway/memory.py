"""The memory that the bodies of requests and what is kept of replies may take."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

MAX_BODIES = 512 << 20
"""Bytes of all requests and replies together. A run may take as much as it leaves to the others."""


class NoMemoryError(Exception):
    """Other calls take all memory that they may."""


class Memory:
    """The bodies that are held in memory."""

    def __init__(self) -> None:
        self.held = 0
        self.held_by: Counter[str] = Counter()
        """By run."""

    @contextmanager
    def space(self, run: str) -> Iterator["Space"]:
        """Give room for the bodies of one request of a run."""
        space = Space(self, run)
        try:
            yield space
        finally:
            self.held -= space.size
            self.held_by[run] -= space.size
            if not self.held_by[run]:
                del self.held_by[run]


class Space:
    """What the bodies of one request take."""

    def __init__(self, memory: Memory, run: str) -> None:
        self._memory = memory
        self._run = run
        self.size = 0

    def grow(self, more: int) -> None:
        memory = self._memory
        free = MAX_BODIES - memory.held - more
        own = memory.held_by[self._run] + more
        if own > free:
            raise NoMemoryError(
                f"the gateway has no memory for this call: run {self._run} would hold {own >> 20} MiB, and {max(0, free) >> 20} "
                f"of {MAX_BODIES >> 20} MiB would be left for other runs; try again"
            )
        memory.held += more
        memory.held_by[self._run] = own
        self.size += more
