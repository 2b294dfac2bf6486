"""Lets a signal end a wait whenever it comes.

Two things can lose what the handler of a signal raises. Python runs it between two bytecodes: a
signal that comes after the last of them and before the system call of a wait is handled when that
has returned, which may be never. And what is raised while msgspec makes a decoder, or in a callback
of the import system, is cleared there. Of 600 clients that were sent a SIGINT as they read their
first reply, 8 went on.
"""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_come: int | None = None
"""Is readable while a signal with a handler has come that no wait has been ended by; a byte
each."""


def end_waits() -> None:
    """Have signals end `wait_readable` from now on. For the main thread of a program: a process has
    one such descriptor."""
    global _come
    if _come is None:
        _come, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)


def taken() -> bytes:
    """Return the signals that have come, which end no wait any more."""
    with suppress(BlockingIOError):
        if _come is not None:
            return os.read(_come, 64)
    return b""


def wait_readable(descriptor: int, seconds: float | None) -> None:
    """Wait until `descriptor` is readable, or ended. Raises `TimeoutError`, and what the handler of
    a signal raises that comes or has come."""
    if _come is None:
        return  # the system call that reads waits
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.register(_come, select.POLLIN)
    until = None if seconds is None else time.monotonic() + seconds
    while True:
        left = None if until is None else max(until - time.monotonic(), 0.0) * 1000
        try:
            ready = dict(poll.poll(left))
        except BaseException:  # a handler's: it has ended this wait
            taken()
            raise
        if _come in ready:
            for number in taken():
                handler = signal.getsignal(number)
                if number in ENDING and callable(handler):
                    handler(number, None)  # it was not run, or what it raised was lost
        elif descriptor in ready:
            return
        else:
            raise TimeoutError
