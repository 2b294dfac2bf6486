"""Bounds on users and on the daemon rather than on runs: spawn rates and the queue of waiting trees (docs/limits.md)."""

from bisect import insort
from collections import deque
from typing import NamedTuple

from ..protocol.types import RunId

HOUR = 3600.0
"""Seconds in which spawns are counted."""


class QuotaUse(NamedTuple):
    """What a user, or the daemon, has of a quota."""

    key: str
    """Of the config."""
    used: int
    limit: int
    wait: float | None = None
    """Seconds until one more fits, if that is known; 0 if it does now."""


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


class QueuePlace(NamedTuple):
    key: str
    """The quota that has no room."""
    used: int
    limit: int
    place: int
    """1 is the first."""
    waiting: int
    """Trees of its user that wait."""


_Place = tuple[int, int, RunId]
"""Negative priority, and the order of coming."""


class Slots:
    """Slots for trees at once, of each user and of the daemon, and the queue for them.

    A free slot goes to the waiting user with the fewest live trees; among several to the one who has waited longest since they got
    a slot. So no user keeps another from starting, by number, priority or haste. Priority, then first come, counts within one
    user only (docs/users.md)."""

    def __init__(self, *, per_user: int, total: int) -> None:
        self.per_user = per_user
        self.total = total
        self._taken: dict[RunId, str] = {}
        self._by_user: dict[str, int] = {}
        # a queue for each user, in its order: a user at the bound neither holds up the others nor costs a scan
        self._queues: dict[str, list[_Place]] = {}
        self._since: dict[str, int] = {}
        """When each waiting user began to wait, or got a slot the last time, in the order of events. A user who comes later waits
        from then on: being forgotten while nothing waits must be no way to the front."""
        self._waiting: dict[RunId, tuple[str, _Place]] = {}
        """The user of each waiting root, and its place in the user's queue."""
        self._order = 0

    def resize(self, *, per_user: int, total: int) -> None:
        """Follow a changed policy. Trees that have a slot keep it."""
        self.per_user, self.total = per_user, total

    def user_count(self, user: str) -> int:
        return self._by_user.get(user, 0)

    def queued_of(self, user: str) -> int:
        return len(self._queues.get(user, ()))

    @property
    def count(self) -> int:
        return len(self._taken)

    @property
    def queued(self) -> int:
        return len(self._waiting)

    def full_for(self, user: str) -> bool:
        """Return whether the user has as many trees as one may have."""
        return self.user_count(user) >= self.per_user

    def free_for(self, user: str) -> bool:
        return len(self._taken) < self.total and self._by_user.get(user, 0) < self.per_user

    def take(self, root: RunId, user: str) -> None:
        """Give the root a slot; the caller has asked `free_for`."""
        self._taken[root] = user
        self._by_user[user] = self._by_user.get(user, 0) + 1

    def enqueue(self, root: RunId, user: str, priority: int) -> None:
        self._order += 1
        self._since.setdefault(user, self._order)
        entry = (-priority, self._order, root)
        insort(self._queues.setdefault(user, []), entry)
        self._waiting[root] = user, entry

    def waits(self, root: RunId) -> bool:
        return root in self._waiting

    def place_of(self, root: RunId) -> QueuePlace | None:
        """Return what a waiting root waits for, and its place among those of its user; `None` if it does not wait."""
        if root not in self._waiting:
            return None
        user, entry = self._waiting[root]
        queue = self._queues[user]
        place = queue.index(entry) + 1
        if self.full_for(user):
            return QueuePlace("quotas.trees_per_user", self.user_count(user), self.per_user, place, len(queue))
        return QueuePlace("quotas.trees", self.count, self.total, place, len(queue))

    def leave(self, root: RunId) -> None:
        """Free the slot of a root that has ended, or its place in the queue."""
        if root in self._waiting:
            self._leave_queue(root)
        user = self._taken.pop(root, None)
        if user is not None:
            self._by_user[user] -= 1
            if not self._by_user[user]:
                del self._by_user[user]

    def _leave_queue(self, root: RunId) -> None:
        user, entry = self._waiting.pop(root)
        self._queues[user].remove(entry)
        if not self._queues[user]:
            del self._queues[user], self._since[user]

    def next_waiting(self) -> RunId | None:
        """Give a slot to the waiting root whose turn it is; return `None` if none can have one."""
        if not self._queues or len(self._taken) >= self.total:
            return None
        found = [(taken, self._since[user], user) for user in self._queues if (taken := self.user_count(user)) < self.per_user]
        if not found:
            return None
        user = min(found)[2]
        self._order += 1
        self._since[user] = self._order
        root = self._queues[user][0][2]
        self._leave_queue(root)
        self.take(root, user)
        return root
