"""What requests may take of the gateway: memory for their bodies, and connections."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

MAX_BODIES = 512 << 20
"""Bytes of the bodies of all requests together. A run may take as much as it leaves to the others."""


class NoMemoryError(Exception):
    """Other requests, or the run's own, take all memory or all connections that they may."""


class Memory:
    """The requests that are being answered, and their bodies, which are held in memory."""

    def __init__(self, *, most: int) -> None:
        """`most`: requests at a time. A run may have as many as it leaves to other runs, so that these can still call."""
        self._most = most
        self._requests: Counter[str] = Counter()
        self.held = 0
        self.held_by: Counter[str] = Counter()
        """By run."""

    @contextmanager
    def space(self, run: str) -> Iterator["Space"]:
        """Give room for one request of a run, and for its bodies."""
        own, free = self._requests[run] + 1, self._most - self._requests.total() - 1
        if own > max(1, free):
            raise NoMemoryError(
                f"the gateway has no room for this request: run {run} would have {own} at a time, and {max(0, free)} of "
                f"{self._most} would be left for other runs; try again"
            )
        self._requests[run] = own
        space = Space(self, run)
        try:
            yield space
        finally:
            self._requests[run] -= 1
            self._requests += Counter()  # forgets runs without any
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
                f"the gateway has no memory for this request: run {self._run} would hold {own >> 20} MiB, and {max(0, free) >> 20} "
                f"of {MAX_BODIES >> 20} MiB would be left for other runs; try again"
            )
        memory.held += more
        memory.held_by[self._run] = own
        self.size += more
