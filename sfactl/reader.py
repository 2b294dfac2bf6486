"""Ends a verb that follows when the reader of its output has gone: at once, and not with the next
line, which may never come."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from .exits import ReaderGone


@contextmanager
def while_read() -> Iterator[None]:
    """Raise `ReaderGone` in the main thread when no process reads stdout any more."""
    main = threading.main_thread()
    if threading.current_thread() is not main:
        yield  # the main thread waits for this one
        return
    assert main.ident is not None  # it runs

    def gone(_number: int, _frame: object) -> None:
        raise ReaderGone

    # Not SIGPIPE, which a write to the daemon may cause too. Python's own thread would wait for a
    # lock or a system call of the main thread, which a signal interrupts. One that comes too late
    # is ignored.
    before = signal.signal(signal.SIGURG, gone)
    over, end = os.pipe2(os.O_CLOEXEC)
    thread = threading.Thread(target=_watch, args=(over, main.ident), daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.signal(signal.SIGURG, before)
        os.close(end)
        thread.join()
        os.close(over)


def _watch(over: int, main: int) -> None:
    """Send the signal, unless the other end of `over` is closed first."""
    poll = select.poll()
    poll.register(over, select.POLLIN)
    poll.register(1, 0)  # reports errors only: a pipe has no reader, a terminal has hung up
    if not any(descriptor == over for descriptor, _ in poll.poll()):
        signal.pthread_kill(main, signal.SIGURG)
