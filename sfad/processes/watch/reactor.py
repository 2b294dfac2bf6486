"""One epoll for everything that the launcher waits for, nested in trio's, and everything that is tried again.

It is nested because trio waits for EPOLLIN alone, and `cgroup.events` is always readable: a change shows as EPOLLPRI
(cgroups(7), measured). Pidfds and pipes are in the same epoll, so that one task reports everything, in one order.

A call that fails is made again after a pause until it works. It may lack descriptors or memory, which come back; or it has
a bug, which must not touch anything else that is waited for. So a call may be made twice.
"""

import os
import select
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from time import monotonic

import trio

from ...core.events import Event
from ...host.descriptors import lifted
from ...protocol.types import RunId
from ..launcher import Complain, Emit

Call = Callable[[], object]
_CALLS_AT_ONCE = 64
"""Calls before the daemon's other tasks get their turn."""
_RETRY_AFTER = 0.25
"""Seconds until a failed call is made again."""
_IDLE_CALLS, _MOST_IDLE = 4, 256
"""Calls before an idle loop looks again whether something is ready, and calls that may wait for that."""


class Reactor(trio.abc.Instrument):
    """Calls back when a descriptor is ready. A call may be spurious: it looks again, and does nothing if nothing is there."""

    def __init__(self, failed: Callable[[Exception], object] = lambda _error: None) -> None:
        self._failed = failed
        self.polls = 0
        """How often it has asked the kernel what is ready."""
        self._epoll = select.epoll()
        self._calls: dict[int, tuple[Call, int]] = {}
        self._resting: set[int] = set()
        """Descriptors whose call failed: they are out of the epoll until the call has worked."""
        self._soon: deque[Call] = deque()
        self._later: deque[tuple[float, Call]] = deque()
        self._tasks: deque[Callable[[], Awaitable[object]]] = deque()
        self._idle: deque[Call] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.add(self._wake, self._run_soon)

    def add(self, fd: int, call: Call, events: int = select.EPOLLIN) -> None:
        """Call `call` while `fd` has one of `events`. Raises `OSError`."""
        self._epoll.register(fd, events)
        self._calls[fd] = (call, events)

    def discard(self, fd: int) -> None:
        """Forget `fd`. Needed before closing it: a duplicate elsewhere would keep reporting under the old number."""
        if self._calls.pop(fd, None) is not None and fd not in self._resting:
            self._epoll.unregister(fd)
        self._resting.discard(fd)

    def soon(self, call: Callable[..., object], *arguments: object) -> None:
        """Call `call` from the serving task, never from within the caller."""
        self._soon.append(partial(call, *arguments))
        os.eventfd_write(self._wake, 1)

    def later(self, call: Callable[..., object], *arguments: object) -> None:
        """Call `call` from the serving task after a pause."""
        self._later.append((trio.current_time() + _RETRY_AFTER, partial(call, *arguments)))
        os.eventfd_write(self._wake, 1)  # the serving task may be waiting for longer

    def when_idle(self, call: Callable[..., object], *arguments: object) -> None:
        """Call `call` when no task of the daemon has anything to do, for what no client waits for; at once if many calls wait."""
        self._idle.append(partial(call, *arguments))
        if len(self._idle) > _MOST_IDLE:
            self._try(self._idle.popleft())

    def before_io_wait(self, timeout: float) -> None:
        """Called by trio. With a timeout of 0, a task is ready to run."""
        if timeout > 0 and self._idle:
            for _ in range(min(_IDLE_CALLS, len(self._idle))):
                self._try(self._idle.popleft())
            if self._idle:
                os.eventfd_write(self._wake, 1)

    def finish_idle(self) -> None:
        """Make the calls of `when_idle` now."""
        while self._idle:
            self._try(self._idle.popleft())

    def task(self, call: Callable[..., Awaitable[object]], *arguments: object) -> None:
        """Await `call` in a task of its own, again and again until it works."""
        self._tasks.append(partial(call, *arguments))
        os.eventfd_write(self._wake, 1)

    def retry_while(self, wanted: Callable[[], bool], call: Callable[..., object], *arguments: object) -> None:
        """Call `call` now; if it fails, again and again while it is `wanted`."""
        try:
            with lifted():
                call(*arguments)
        except Exception as error:  # noqa: BLE001 - a bug in what is done for one run must not end the others
            self._failed(error)
            self.later(self._again, wanted, call, *arguments)

    def _again(self, wanted: Callable[[], bool], call: Callable[..., object], *arguments: object) -> None:
        if wanted():
            self.retry_while(wanted, call, *arguments)

    async def retry(self, call: Callable[..., Awaitable[object]], *arguments: object) -> None:
        """Await `call`; if it fails, again and again."""
        while True:
            try:
                await call(*arguments)
            except Exception as error:  # noqa: BLE001 - a bug in what is done for one run must not end the others
                self._failed(error)
                await trio.sleep(_RETRY_AFTER)
            else:
                return

    async def run(self) -> None:
        trio.lowlevel.add_instrument(self)
        try:
            await self._run()
        finally:
            trio.lowlevel.remove_instrument(self)

    async def _run(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    while self._tasks:
                        nursery.start_soon(self.retry, self._tasks.popleft())
                    if self._later:
                        with trio.move_on_at(self._later[0][0]):
                            await trio.lowlevel.wait_readable(self._epoll.fileno())
                    else:  # without a scope, which costs more than the wait
                        await trio.lowlevel.wait_readable(self._epoll.fileno())
                    with lifted():
                        self.dispatch()
                except OSError as error:
                    self._failed(error)
                    await trio.sleep(_RETRY_AFTER)

    def dispatch(self) -> None:
        """Make one batch of the calls that are due, without waiting."""
        self.polls += 1
        for fd, _ in self._epoll.poll(0, _CALLS_AT_ONCE):
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
                self._epoll.unregister(fd)  # it stays ready: the epoll would report it without pause
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
        self._epoll.close()
        os.close(self._wake)


async def wait_ended(reactor: Reactor, pids: Iterable[int], bound: float) -> None:
    """Wait until these children have ended, for `bound` seconds at most. Raises `OSError`."""
    await trio.lowlevel.checkpoint()  # children that are gone already are not waited for
    with trio.move_on_after(bound):
        for pid in pids:
            await _wait_ended(reactor, pid)


async def _wait_ended(reactor: Reactor, pid: int) -> None:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = trio.Event()
    try:
        reactor.add(pidfd, ended.set)
        await ended.wait()
    finally:
        reactor.discard(pidfd)
        os.close(pidfd)


# ---- Events to the loop


class Emitter:
    """Sends events with the current time. `failed` is told if the receiver raises."""

    def __init__(self, emit: Emit, clock: Callable[[], float], failed: Callable[[Exception], object]) -> None:
        self._emit = emit
        self._clock = clock
        self._failed = failed

    def emit(self, kind: Callable[..., Event], *fields: object) -> None:
        """Send an event of that kind, with the current time before its fields."""
        try:
            self._emit(kind(self._clock(), *fields))
        except Exception as error:  # noqa: BLE001 - the receiver has the event, whatever it failed with: do not send it twice
            self._failed(error)


# ---- What the launcher tells the log: what failed and is tried again, and what the kernel refused


_COMPLAIN_EVERY = 10.0
"""Seconds between two complaints about something that is tried again."""


class Complaints:
    """`remedy` is called with each error first, and may remove its cause."""

    def __init__(self, complain: Complain, remedy: Callable[[Exception], object] = lambda _error: None) -> None:
        self._complain = complain
        self._complained = -_COMPLAIN_EVERY
        self._remedy = remedy

    def failed(self, error: Exception) -> None:
        """Complain, every few seconds at most, that something failed and is tried again."""
        self._remedy(error)
        if monotonic() - self._complained >= _COMPLAIN_EVERY:
            self._complained = monotonic()
            internal = "" if isinstance(error, OSError) else f"internal error: {''.join(traceback.format_exception(error))}"
            self._say(f"containment, to be tried again: {internal or error}")

    def unenforced(self, run_id: RunId, error: OSError) -> None:
        """Complain that the kernel cannot be told a limit of a run."""
        where = f"{error.filename}: " if error.filename else ""
        self._say(f"a limit of run {run_id} is only watched, not enforced: {where}{error.strerror}")

    def _say(self, text: str) -> None:
        with suppress(OSError):  # a log that cannot be written
            self._complain(text)
