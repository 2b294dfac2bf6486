"""A bound on the time that a user at a prompt waits for the daemon."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Late(Exception):
    """The time is over."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise `Late` in the body if it takes longer. For the main thread only, because it uses SIGALRM."""
    previous = signal.signal(signal.SIGALRM, _late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _late(_number: int, _frame: FrameType | None) -> None:
    raise Late
