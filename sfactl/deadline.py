"""A bound on the time that a user at a prompt waits for the daemon."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal  # `signal` first makes enums, which takes a third of Python's start


class Late(Exception):
    """The time is over."""


class within:  # noqa: N801 - it reads as a function, as those of contextlib do
    """Raise `Late` in the body of `with` if it takes longer. For the main thread only, because it uses SIGALRM."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        self._previous = signal.signal(signal.SIGALRM, _late)
        signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def __exit__(self, *_error: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._previous)


def _late(_number: int, _frame: object) -> None:
    raise Late
