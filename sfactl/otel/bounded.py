"""Bounds what a library does that has a timeout for each read only: a server may send a byte at a time."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_AGAIN = 1.0
"""Seconds until the error is raised again, should the library have swallowed it."""


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` in what takes longer. For the main thread of a process that uses SIGALRM for nothing else."""

    def over(*_: object) -> None:
        raise TimeoutError(f"no whole answer within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, over)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
