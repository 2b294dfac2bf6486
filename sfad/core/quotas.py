"""Bounds on users and on the daemon rather than on runs (SPEC section 5): spawn rates and the queue of waiting trees."""

from __future__ import annotations

import heapq
from collections import deque

from ..protocol.types import RunId


class SlidingWindow:
    """How often something happened within the last `span` seconds; holds at most `limit` times."""

    __slots__ = ("_times", "limit", "span")

    def __init__(self, limit: int, span: float) -> None:
        self.limit = limit
        self.span = span
        self._times: deque[float] = deque()

    def used(self, at: float) -> int:
        """Times within the window that ends at `at`."""
        times = self._times
        while times and times[0] <= at - self.span:
            times.popleft()
        return len(times)

    def full(self, at: float) -> bool:
        """Whether one more would be too many."""
        return self.used(at) >= self.limit

    def take(self, at: float) -> None:
        """Counts one."""
        self._times.append(at)

    def give_back(self, at: float) -> None:
        """Forgets the one counted at `at`: it came to nothing."""
        if at in self._times:
            self._times.remove(at)

    def room_in(self, at: float) -> float:
        """Seconds until one more fits; 0 if it does now."""
        return max(0.0, self._times[0] + self.span - at) if self.full(at) and self._times else 0.0


class Slots:
    """Trees at once, for each user and for the daemon, and who waits for a place: higher priority first, then first come."""

    def __init__(self, *, per_user: int, total: int) -> None:
        self.per_user = per_user
        self.total = total
        self._held: dict[RunId, str] = {}
        self._by_user: dict[str, int] = {}
        # a queue for each user: one who is at their own bound neither holds up the others nor costs a scan
        self._queues: dict[str, list[tuple[int, int, RunId]]] = {}
        self._waiting: dict[RunId, str] = {}
        self._order = 0

    def resize(self, *, per_user: int, total: int) -> None:
        """Follow a changed policy. Trees that have a slot keep it."""
        self.per_user, self.total = per_user, total

    def user_count(self, user: str) -> int:
        """Slots that a user holds."""
        return self._by_user.get(user, 0)

    @property
    def count(self) -> int:
        """Slots held in all."""
        return len(self._held)

    @property
    def queued(self) -> int:
        """Trees that wait."""
        return len(self._waiting)

    def free_for(self, user: str) -> bool:
        """Whether a tree of this user could start now."""
        return self.count < self.total and self.user_count(user) < self.per_user

    def take(self, root: RunId, user: str) -> None:
        """Gives the root a slot; the caller has asked `free_for`."""
        self._held[root] = user
        self._by_user[user] = self.user_count(user) + 1

    def enqueue(self, root: RunId, user: str, priority: int) -> None:
        """Lets the root wait."""
        self._order += 1
        heapq.heappush(self._queues.setdefault(user, []), (-priority, self._order, root))
        self._waiting[root] = user

    def waits(self, root: RunId) -> bool:
        """Whether the root is still in the queue."""
        return root in self._waiting

    def leave(self, root: RunId) -> None:
        """The root ended: its slot, or its place in the queue, is free."""
        self._waiting.pop(root, None)
        user = self._held.pop(root, None)
        if user is not None:
            self._by_user[user] -= 1
            if not self._by_user[user]:
                del self._by_user[user]

    def next_waiting(self) -> RunId | None:
        """Takes the next root that can start now out of the queue and gives it a slot; `None` if none can."""
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
