"""One epoll for everything that the launcher waits for, nested in trio's.

Nested, because trio waits for EPOLLIN alone and a `cgroup.events` is always readable: what tells is EPOLLPRI. Pidfds
and pipes ride along, so that the launcher is one task and what it reports has one order.

A call that fails is made again after a pause, until it works: for want of descriptors or memory, which pass, or because of a
bug, which must not touch what else is waited for. So a call may be made twice.
"""

from __future__ import annotations

import math
import os
import select
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import trio

from .reserve import lifted

Call = Callable[[], object]

_BATCH = 64
"""Calls between two looks at the rest of the daemon."""
PAUSE = 0.25
"""Seconds until what the system had no room for is tried again."""


class Watch:
    """Calls back when a descriptor is ready. A call may be spurious: it looks again and does nothing if nothing is there."""

    def __init__(self, failed: Callable[[Exception], object] = lambda _error: None) -> None:
        self._failed = failed
        self._epoll = select.epoll()
        self._calls: dict[int, tuple[Call, int]] = {}
        self._resting: set[int] = set()
        """Descriptors that are not listened to until their call, which failed, has worked."""
        self._soon: deque[Call] = deque()
        self._later: deque[tuple[float, Call]] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.add(self._wake, self._run_soon)

    def add(self, fd: int, call: Call, events: int = select.EPOLLIN) -> None:
        """Calls `call` while `fd` has one of `events`. Raises `OSError`."""
        self._epoll.register(fd, events)
        self._calls[fd] = (call, events)

    def discard(self, fd: int) -> None:
        """Forgets `fd`. Before it is closed: a duplicate elsewhere would keep reporting under the old number."""
        if self._calls.pop(fd, None) is not None and fd not in self._resting:
            self._epoll.unregister(fd)
        self._resting.discard(fd)

    def soon(self, call: Callable[..., object], *arguments: object) -> None:
        """Calls `call` from the serving task: never from within whoever asks."""
        self._soon.append(partial(call, *arguments))
        os.eventfd_write(self._wake, 1)

    def later(self, call: Callable[..., object], *arguments: object) -> None:
        """Calls `call` from the serving task after `PAUSE`."""
        self._later.append((trio.current_time() + PAUSE, partial(call, *arguments)))
        os.eventfd_write(self._wake, 1)  # the serving task may be waiting for longer

    async def run(self) -> None:
        """Serves until cancelled."""
        while True:
            try:
                with trio.move_on_at(self._later[0][0] if self._later else math.inf):
                    await trio.lowlevel.wait_readable(self._epoll.fileno())
                with lifted():
                    self.dispatch()
            except OSError as error:
                self._failed(error)
                await trio.sleep(PAUSE)

    def dispatch(self) -> None:
        """One batch of what is ready, without waiting."""
        for fd, _ in self._epoll.poll(0, _BATCH):
            if fd in self._calls and fd not in self._resting:
                self._ready(fd, *self._calls[fd])
        now = trio.current_time()
        while self._later and self._later[0][0] <= now:
            self._try(self._later.popleft()[1])

    def _ready(self, fd: int, call: Call, events: int) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - a bug in what is done for one run must not end the others
            self._failed(error)
            if self._calls.get(fd) == (call, events):  # else it was discarded, and may be another file by now
                self._epoll.unregister(fd)  # it stays ready: to listen on would be to spin
                self._resting.add(fd)
                self.later(self._wake_up, fd, call, events)

    def _wake_up(self, fd: int, call: Call, events: int) -> None:
        if self._calls.get(fd) == (call, events) and fd in self._resting:
            self._epoll.register(fd, events)
            self._resting.discard(fd)
            self._ready(fd, call, events)

    def _try(self, call: Call) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - see `_ready`
            self._failed(error)
            self.later(call)

    def _run_soon(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        for _ in range(len(self._soon)):
            self._try(self._soon.popleft())

    def close(self) -> None:
        """Closes the descriptors of the watch itself."""
        self._epoll.close()
        os.close(self._wake)
