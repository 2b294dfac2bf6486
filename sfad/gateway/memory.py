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

    def __init__(self, *, several_users: bool = False) -> None:
        """`several_users`: a user may take half of what other users leave, so that no user's runs together take all."""
        self._several_users = several_users
        self.held = 0
        self.held_by: Counter[str] = Counter()
        """By run."""
        self._of_users: Counter[int | None] = Counter()

    @contextmanager
    def space(self, run: str, user: int | None) -> Iterator["Space"]:
        """Give room for the bodies of one request of a user's run."""
        space = Space(self, run, user)
        try:
            yield space
        finally:
            self.count(space, -space.size)

    def count(self, space: "Space", more: int) -> None:
        """Count bytes that a request takes, or gives up."""
        self.held += more
        self.held_by[space.run] += more
        self._of_users[space.user] += more
        if not self.held_by[space.run]:
            del self.held_by[space.run]

    def left(self, user: int | None) -> int:
        """Return the bytes that the runs of a user may take beside what they have."""
        own = self._of_users[user]
        return (MAX_BODIES - (self.held - own)) // (2 if self._several_users else 1) - own


class Space:
    """What the bodies of one request take."""

    def __init__(self, memory: Memory, run: str, user: int | None) -> None:
        self._memory = memory
        self.run = run
        self.user = user
        self.size = 0

    def grow(self, more: int) -> None:
        """Take so many bytes more. Raises `NoMemoryError`."""
        free = self._memory.left(self.user) - more
        own = self._memory.held_by[self.run] + more
        if own > free:
            raise NoMemoryError(
                f"the gateway has no memory for this call: run {self.run} would hold {own >> 20} MiB, and {max(0, free) >> 20} "
                f"of {MAX_BODIES >> 20} MiB would be left for other runs; try again"
            )
        self._memory.count(self, more)
        self.size += more
