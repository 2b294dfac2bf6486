"""One poll over the daemon, signals, growing files and terminals."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable, Sequence
from types import FrameType, TracebackType
from typing import Protocol


class Activity(Protocol):
    """An object that moves bytes while this process waits."""

    @property
    def timeout(self) -> float | None:
        """Seconds after which to advance even if nothing is ready."""

    def interests(self) -> dict[int, int]:
        """Return the descriptors to poll, with their events."""

    def advance(self, ready: dict[int, int]) -> None:
        """Move bytes without blocking."""

    def drained(self) -> bool:
        """Whether nothing is left to move once the run has ended."""

    def close(self) -> None:
        """Close its descriptors."""


class Signals:
    """Signals as bytes on a pipe, which can be polled and never interrupt a write. Signals that are already ignored (nohup, a
    background job of a shell) stay ignored."""

    def __init__(self, wanted: Iterable[signal.Signals]) -> None:
        self._wanted = [s for s in wanted if signal.getsignal(s) is not signal.SIG_IGN]
        self._previous = {s: signal.getsignal(s) for s in self._wanted}
        self.descriptor, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> Signals:
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for wanted in self._wanted:
            signal.signal(wanted, _noticed)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for wanted, previous in self._previous.items():
            signal.signal(wanted, previous)
        signal.set_wakeup_fd(-1)
        os.close(self.descriptor)
        os.close(self._write_end)

    def taken(self) -> Sequence[int]:
        """Return the signals since the last call, in order."""
        try:
            return os.read(self.descriptor, 64)
        except BlockingIOError:
            return b""


def stop_self(*, group: bool) -> None:
    """Stop this process, or its process group, as Ctrl-Z does; return when it is continued. In an orphaned process group, which
    no shell would continue, the kernel does not stop it."""
    if signal.getsignal(signal.SIGTSTP) is signal.SIG_IGN:
        return
    before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.kill(0 if group else os.getpid(), signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, before)


def await_foreground() -> None:
    """Wait until this process is in the foreground of its terminal, descriptor 0: the kernel stops it while it is not. Raise
    `InterruptedError` for a signal."""
    import termios

    try:
        termios.tcsetattr(0, termios.TCSANOW, termios.tcgetattr(0))  # changes nothing; a change from the background is SIGTTOU
    except termios.error as error:
        raise OSError(*error.args) from None


def _noticed(_number: int, _frame: FrameType | None) -> None:
    # The interpreter writes the number to the pipe, but only if a handler exists.
    return


def wait(fixed: Iterable[int], activities: Sequence[Activity], timeout: float | None = None) -> dict[int, int]:
    """Wait until one of `fixed` is readable, an activity can advance, or `timeout` seconds are over. Return the poll events
    by descriptor."""
    poll = select.poll()
    masks = dict.fromkeys(fixed, select.POLLIN)
    for activity in activities:
        for descriptor, mask in activity.interests().items():
            masks[descriptor] = masks.get(descriptor, 0) | mask
    for descriptor, mask in masks.items():
        poll.register(descriptor, mask)
    timeouts = [t for t in (timeout, *(activity.timeout for activity in activities)) if t is not None]
    return dict(poll.poll(min(timeouts) * 1000 if timeouts else None))


def carry_on(activities: Sequence[Activity], seconds: float) -> None:
    """Advance the activities for some seconds."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        ready = wait([], activities, left)
        for activity in activities:
            activity.advance(ready)
