"""The memory that the bodies of requests may take."""

from collections.abc import Iterator
from contextlib import contextmanager

MAX_BODIES = 512 << 20
"""Bytes of the bodies of all requests together."""


class NoMemoryError(Exception):
    """The bodies of other requests take all memory that they may."""


class Memory:
    """The bodies that are held in memory."""

    def __init__(self) -> None:
        self.held = 0

    @contextmanager
    def space(self) -> Iterator["Space"]:
        """Give room for the bodies of one request."""
        space = Space(self)
        try:
            yield space
        finally:
            self.held -= space.size


class Space:
    """What the bodies of one request take."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.size = 0

    def grow(self, more: int) -> None:
        if self._memory.held + more > MAX_BODIES:
            raise NoMemoryError(f"the gateway holds {MAX_BODIES >> 20} MiB of requests already; try again")
        self._memory.held += more
        self.size += more
