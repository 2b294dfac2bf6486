"""What the pages ask: a daemon. Each request is made in a worker thread, on a connection of its own."""

from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

import trio

from sfad.protocol import messages as m

from ..connection import Client, call, connect

T = TypeVar("T")
R = TypeVar("R", bound=m.Reply)

AT_ONCE = trio.CapacityLimiter(32)
"""Requests at once. A stop waits for the last process; it must not keep other requests waiting."""


async def in_thread(work: Callable[[], T]) -> T:
    """Return what `work` returns. If this is cancelled, the thread goes on, and its result is dropped."""
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=AT_ONCE)


class Source(Protocol):
    """Where runs come from."""

    async def ask(self, request: m.Request, expected: type[R]) -> R:
        """Return the daemon's reply. Raise `Quit`, `OSError`. If the call is cancelled, the request is not withdrawn."""

    def connect(self) -> Client:
        """Return a connection. It may block. Raise `Quit`."""


class Daemon(Source):
    """One daemon."""

    def __init__(self, socket: str | None) -> None:
        """`socket`: as `--socket`."""
        self._socket = socket

    async def ask(self, request: m.Request, expected: type[R]) -> R:
        return await in_thread(partial(call, self._socket, request, expected))

    def connect(self) -> Client:
        return connect(self._socket)
