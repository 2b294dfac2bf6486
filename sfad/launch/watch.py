"""One epoll for everything that the launcher waits for, nested in trio's.

Nested, because trio waits for EPOLLIN alone and a `cgroup.events` is always readable: what tells is EPOLLPRI. Pidfds
and pipes ride along, so that the launcher is one task and what it reports has one order.
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import trio

Call = Callable[[], object]

_BATCH = 64
"""Calls between two looks at the rest of the daemon."""


class Watch:
    """Calls back when a descriptor is ready. A call may be spurious: it looks again and does nothing if nothing is there."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._calls: dict[int, Call] = {}
        self._soon: deque[Call] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.add(self._wake, self._run_soon)

    def add(self, fd: int, call: Call, events: int = select.EPOLLIN) -> None:
        """Calls `call` while `fd` has one of `events`. Raises `OSError`."""
        self._epoll.register(fd, events)
        self._calls[fd] = call

    def discard(self, fd: int) -> None:
        """Forgets `fd`. Before it is closed: a duplicate elsewhere would keep reporting under the old number."""
        if self._calls.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def soon(self, call: Callable[..., object], *arguments: object) -> None:
        """Calls `call` from the serving task: never from within whoever asks."""
        self._soon.append(partial(call, *arguments))
        os.eventfd_write(self._wake, 1)

    async def run(self) -> None:
        """Serves until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            self.dispatch()

    def dispatch(self) -> None:
        """One batch of what is ready, without waiting."""
        for fd, _ in self._epoll.poll(0, _BATCH):
            call = self._calls.get(fd)
            if call is not None:
                call()

    def _run_soon(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        for _ in range(len(self._soon)):
            self._soon.popleft()()

    def close(self) -> None:
        """Closes the descriptors of the watch itself."""
        self._epoll.close()
        os.close(self._wake)
