"""A bound on the time of what is not made to have one."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_AGAIN = 1.0
"""Seconds until the error is raised again, should a library have swallowed it."""


@contextmanager
def bounded(seconds: float, error: Exception) -> Iterator[None]:
    """Raise `error` in what takes longer. For the main thread of a process that uses SIGALRM for
    nothing else."""

    def over(_number: int, _frame: object) -> None:
        raise error

    before = signal.signal(signal.SIGALRM, over)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
