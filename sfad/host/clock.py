"""The two clocks of the daemon: one that decisions use, one that people read."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import trio


def wall_clock() -> datetime:
    """Return the present time in UTC, for people. It decides nothing about live runs, so setting the clock cannot end one."""
    return datetime.now(UTC)


class MonotonicClock(trio.abc.Clock):
    """Makes trio's time CLOCK_MONOTONIC. Trio's own clock adds a random number to it, different in each process, so that a daemon
    could not read the times that an earlier one saved."""

    def start_clock(self) -> None:
        """The kernel has started it."""

    def current_time(self) -> float:
        """Return seconds since boot."""
        return time.monotonic()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Return seconds until `deadline`."""
        return deadline - time.monotonic()
