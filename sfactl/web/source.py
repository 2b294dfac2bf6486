"""What the pages ask: a daemon, which answers for all nodes of its fleet if it is to.

Each request is made in a worker thread, on a connection of its own.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import trio

from sfad.protocol import messages as m
from sfad.protocol.types import RunId

from ..connecting.connection import FLEET, Client, call, connect

T = TypeVar("T")
R = TypeVar("R", bound=m.Reply)

AT_ONCE = trio.CapacityLimiter(32)
"""Requests at once. A stop waits for the last process; it must not keep other requests waiting."""


async def in_thread(work: Callable[[], T]) -> T:
    """Return what `work` returns. If this is cancelled, the thread goes on, and its result is
    dropped."""
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=AT_ONCE)


class Source:
    def __init__(self, place: str | None) -> None:
        """`place`: as `connect` takes it. Raise `Quit`."""
        self._place = place
        with connect(place) as client:
            self.own = client.fleet.node if client.fleet is not None else ""
        """The node of this console: it answers for what is about no run. Empty without a fleet."""

    async def ask(self, request: m.Request, expected: type[R]) -> R:
        """Return the daemon's reply. Raise `Quit`, `OSError`. If the call is cancelled, the request
        is not withdrawn."""
        return await in_thread(partial(call, self._place, request, expected))

    async def ask_here(self, request: m.Request, expected: type[R]) -> R:
        """Return what the daemon says of this node alone, with its own names."""
        return await in_thread(partial(call, self._here, request, expected))

    @property
    def _here(self) -> str | None:
        return (self._place or "").removeprefix(FLEET) or None

    def connect(self) -> Client:
        """Return a connection. It may block. Raise `Quit`."""
        return connect(self._place)

    def connect_here(self) -> Client:
        """Return one that is about this node alone."""
        return connect(self._here)

    def of_path(self, text: str) -> RunId:
        """Return the run that a path names. Of a fleet, its path has NODE~ID."""
        return text.replace("~", "/", 1) if self.own else text

    def name(self, run: RunId) -> RunId:
        """Return how pages name a run, by its id on this node."""
        return f"{self.own}/{run}" if self.own else run
