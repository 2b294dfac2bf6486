"""The core's clock."""

from __future__ import annotations

import time

import trio


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
