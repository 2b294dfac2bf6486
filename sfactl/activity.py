"""What moves bytes while this process waits, and one poll over all of it."""

from __future__ import annotations

import select
import time

from sfad.protocol.structs import Protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class Activity(Protocol):
    """An object that moves bytes while this process waits."""

    @property
    def timeout(self) -> float | None:
        """Seconds after which to advance even if nothing is ready."""

    def interests(self) -> dict[int, int]:
        """Return the descriptors to poll, with their events."""

    def advance(self, ready: dict[int, int]) -> None:
        """Move bytes without blocking."""

    def drained(self) -> bool:
        """Whether nothing is left to move once the run has ended."""

    def close(self) -> None:
        """Close its descriptors."""


def wait(fixed: Iterable[int], activities: Sequence[Activity], timeout: float | None = None) -> dict[int, int]:
    """Wait until one of `fixed` is readable, an activity can advance, or `timeout` seconds are over. Return the poll events
    by descriptor."""
    poll = select.poll()
    masks = dict.fromkeys(fixed, select.POLLIN)
    for activity in activities:
        for descriptor, mask in activity.interests().items():
            masks[descriptor] = masks.get(descriptor, 0) | mask
    for descriptor, mask in masks.items():
        poll.register(descriptor, mask)
    timeouts = [t for t in (timeout, *(activity.timeout for activity in activities)) if t is not None]
    return dict(poll.poll(min(timeouts) * 1000 if timeouts else None))


def carry_on(turn: Callable[[float], object], seconds: float) -> None:
    """Take turns for some seconds; `turn` waits for at most the seconds that are left."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        turn(left)
