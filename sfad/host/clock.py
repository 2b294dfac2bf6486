"""The two clocks of the daemon: one that decisions use, one that people read."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import trio


def wall_clock() -> datetime:
    """Return the present time in UTC. It is for people only: nothing is decided by it, so setting the clock cannot end a run."""
    return datetime.now(UTC)


class MonotonicClock(trio.abc.Clock):
    """Trio's time is CLOCK_MONOTONIC itself. Trio's own clock adds a random number to it, a different one in each process: what
    one daemon remembers of times, the next could not read."""

    def start_clock(self) -> None:
        """It has started with the machine."""

    def current_time(self) -> float:
        """Seconds."""
        return time.monotonic()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Seconds until then."""
        return deadline - time.monotonic()
