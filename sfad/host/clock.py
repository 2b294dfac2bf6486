"""The daemon's clocks, and deadlines that call back."""

import heapq
import math
import time
from collections.abc import Callable, Hashable
from datetime import UTC, datetime
from functools import partial

import trio

from .linux.time_namespace import offset_ns
from .probe import current_boot

wall_clock: Callable[[], datetime] = partial(datetime.now, UTC)
"""Returns the present time in UTC, for people. It decides nothing about live runs, so setting the
clock cannot end one. A function of C: a run asks for it nine times."""


def _monotonic() -> Callable[[], float]:
    ahead = offset_ns("monotonic") / 1e9
    # a function of C where it can be, because a run asks for the time twenty times
    return (lambda: time.monotonic() - ahead) if ahead else time.monotonic


class MonotonicClock(trio.abc.Clock):
    """Makes trio's time CLOCK_MONOTONIC, as it is outside any time namespace. Trio's own clock adds
    a random number to it, different in each process, so that a daemon could not read the times that
    an earlier one saved."""

    def start_clock(self) -> None:
        """The kernel has started it."""

    current_time = staticmethod(_monotonic())

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return deadline - self.current_time()


def stamp() -> str:
    """Return what this machine's clock says, for another machine to send back. It begins again at
    each boot."""
    return f"{current_boot()}:{trio.current_time():.3f}"


def after_stamp(stamped: str, seconds: float) -> float | None:
    """Return the time so many seconds after a stamp; `None` if that was before the machine was
    booted."""
    boot, _, at = stamped.rpartition(":")
    try:
        return float(at) + seconds if boot == current_boot() else None
    except ValueError:
        return None


class Timers:
    """Calls back at a time of `trio.current_time()`, in the trio thread."""

    def __init__(self, failed: Callable[[Exception], object]) -> None:
        """`failed` is told of a call that raised. It does not stop other timers."""
        self._failed = failed
        self._armed: dict[Hashable, tuple[float, int, Callable[[], None]]] = {}
        self._heap: list[tuple[float, int, Hashable]] = []
        self._order = 0
        self._wait = trio.CancelScope()
        self._wakes = math.inf
        """Its deadline: when `serve` looks. What was due then may be disarmed by now."""

    def __len__(self) -> int:
        return len(self._armed)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._armed

    def arm(self, key: Hashable, at: float, call: Callable[[], None]) -> None:
        """Call `call` once at time `at`, instead of what `key` was armed with before."""
        self._order += 1
        self._armed[key] = (at, self._order, call)
        heapq.heappush(self._heap, (at, self._order, key))
        if at < self._wakes:  # the task is not woken for that: a run arms two timers
            self._wakes = self._wait.deadline = at
        if len(self._heap) > 64 + 4 * len(self._armed):
            # disarmed entries stay in the heap: each run of a burst of short ones would leave its
            # deadline there for two minutes
            self._heap = [entry for entry in self._heap if self._current(entry)]
            heapq.heapify(self._heap)

    def disarm(self, key: Hashable) -> None:
        self._armed.pop(key, None)

    async def serve(self) -> None:
        while True:
            self._wakes = self._earliest()
            with trio.CancelScope(deadline=self._wakes) as self._wait:
                await trio.sleep_forever()
            self._fire(trio.current_time())

    def _earliest(self) -> float:
        heap = self._heap
        while heap and not self._current(heap[0]):
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def _fire(self, now: float) -> None:
        while self._earliest() <= now:
            _, _, key = heapq.heappop(self._heap)
            _, _, call = self._armed.pop(key)
            try:
                call()
            except Exception as error:  # noqa: BLE001 - see `failed`
                self._failed(error)

    def _current(self, entry: tuple[float, int, Hashable]) -> bool:
        armed = self._armed.get(entry[2])
        return armed is not None and armed[1] == entry[1]
