"""Bounds on users and on the daemon rather than on runs: spawn rates and the queue of waiting trees (docs/limits.md)."""

import heapq
from collections import deque

from ..protocol.types import RunId

HOUR = 3600.0
"""Seconds in which spawns are counted."""


class SlidingWindow:
    """How often something happened within the last `span` seconds, up to `limit` times."""

    __slots__ = ("_times", "limit", "span")

    def __init__(self, limit: int, span: float) -> None:
        self.limit = limit
        self.span = span
        self._times: deque[float] = deque()

    def used(self, at: float) -> int:
        """Return how often it happened within the window that ends at `at`."""
        times = self._times
        while times and times[0] + self.span <= at:
            times.popleft()
        return len(times)

    def full(self, at: float) -> bool:
        return self.used(at) >= self.limit

    def take(self, at: float) -> None:
        self._times.append(at)

    def give_back(self, at: float) -> None:
        """Undo the count made at `at`."""
        if at in self._times:
            self._times.remove(at)

    def room_in(self, at: float) -> float:
        """Return the seconds until once more fits; 0 if it does now."""
        return max(0.0, self.free_at(at) - at)

    def free_at(self, at: float, ahead: int = 0) -> float:
        """Return when once more fits, from `at` on, after `ahead` others that wait for the same."""
        used, rounds = self.used(at), 0
        place = used + ahead - self.limit  # in the order of all times: when this one leaves the window, the next fits
        while place >= used:
            place, rounds = place - self.limit, rounds + 1
        return (at if place < 0 else self._times[place] + self.span) + rounds * self.span


class Slots:
    """Slots for trees at once, of each user and of the daemon, and the queue for them: higher priority first, then first come."""

    def __init__(self, *, per_user: int, total: int) -> None:
        self.per_user = per_user
        self.total = total
        self._taken: dict[RunId, str] = {}
        self._by_user: dict[str, int] = {}
        # a queue for each user: a user at the bound neither holds up the others nor costs a scan
        self._queues: dict[str, list[tuple[int, int, RunId]]] = {}
        self._waiting: dict[RunId, str] = {}
        self._order = 0

    def resize(self, *, per_user: int, total: int) -> None:
        """Follow a changed policy. Trees that have a slot keep it."""
        self.per_user, self.total = per_user, total

    def user_count(self, user: str) -> int:
        return self._by_user.get(user, 0)

    @property
    def count(self) -> int:
        return len(self._taken)

    @property
    def queued(self) -> int:
        return len(self._waiting)

    def free_for(self, user: str) -> bool:
        return self.count < self.total and self.user_count(user) < self.per_user

    def take(self, root: RunId, user: str) -> None:
        """Give the root a slot; the caller has asked `free_for`."""
        self._taken[root] = user
        self._by_user[user] = self.user_count(user) + 1

    def enqueue(self, root: RunId, user: str, priority: int) -> None:
        self._order += 1
        heapq.heappush(self._queues.setdefault(user, []), (-priority, self._order, root))
        self._waiting[root] = user

    def waits(self, root: RunId) -> bool:
        return root in self._waiting

    def leave(self, root: RunId) -> None:
        """Free the slot of a root that has ended, or its place in the queue."""
        self._waiting.pop(root, None)
        user = self._taken.pop(root, None)
        if user is not None:
            self._by_user[user] -= 1
            if not self._by_user[user]:
                del self._by_user[user]

    def next_waiting(self) -> RunId | None:
        """Give a slot to the first root in the queue that can be launched now; return `None` if none can."""
        heads = [(queue[0], user) for user in list(self._queues) if (queue := self._live_queue(user)) and self.free_for(user)]
        if not heads:
            return None
        (_, _, root), user = min(heads)
        heapq.heappop(self._queues[user])
        del self._waiting[root]
        self.take(root, user)
        return root

    def _live_queue(self, user: str) -> list[tuple[int, int, RunId]]:
        queue = self._queues[user]
        while queue and queue[0][2] not in self._waiting:
            heapq.heappop(queue)
        if not queue:
            del self._queues[user]
        return queue
