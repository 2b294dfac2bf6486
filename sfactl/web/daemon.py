"""Single requests to the daemon, each in a worker thread and on a connection of its own."""

from functools import partial
from typing import TypeVar

import trio

from sfad.protocol import messages as m

from ..connection import call

R = TypeVar("R", bound=m.Reply)

AT_ONCE = trio.CapacityLimiter(32)
"""Requests at once. A stop waits for the last process; it must not keep other requests waiting."""


async def ask(socket: str | None, request: m.Request, expected: type[R]) -> R:
    """Return the daemon's reply. Raise `Quit`, `OSError`. Once it is cancelled, nobody waits for the
    answer, and the daemon goes on."""
    return await trio.to_thread.run_sync(partial(call, socket, request, expected), abandon_on_cancel=True, limiter=AT_ONCE)
