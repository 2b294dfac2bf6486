"""Bounds on users and on the daemon rather than on runs: spawn rates and the queue of waiting trees
(docs/limits.md)."""

from bisect import insort
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from ...protocol.types import RunId

Key = TypeVar("Key")

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


class SlidingRate:
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
        # in the order of all times: when this one leaves the window, the next fits
        place = used + ahead - self.limit
        while place >= used:
            place, rounds = place - self.limit, rounds + 1
        return (at if place < 0 else self._times[place] + self.span) + rounds * self.span


Quota = tuple[str, str]
"""A quota of trees by its key in the config, and the user whose it is; empty: all users'."""


class Part(NamedTuple):
    """What this daemon may use of a quota that it shares with other machines."""

    slots: int
    rival: int | None = None
    """The highest priority of a tree that waits for this quota elsewhere."""


class Wants(NamedTuple):
    """What this daemon uses of a quota, and what the trees that wait here need more of it."""

    used: int
    needs: int = 0
    priority: int = 0
    """Of the first that waits."""


class QueuePlace(NamedTuple):
    key: str
    """The quota that has no room."""
    used: int
    limit: int
    place: int
    """1 is the first."""
    waiting: int
    """Trees of its user, or of its user's group if that has no room, that wait."""


_Place = tuple[int, int, RunId]
"""Negative priority, and the order of coming."""

_Lane = tuple[str, str | None]
"""A user, and the group of the user's trees, if they are in one."""

NO_GROUPS: Mapping[str, int] = {}


PER_USER, ALL_USERS = "quotas.trees_per_user", ("quotas.trees", "")
NO_PART = Part(0)


class Slots:
    """Slots for trees at once, of the daemon, of each user and of each user's groups, and the queue
    for them.

    A free slot goes to the waiting user with the fewest live trees; among several to the one who
    has waited longest since they got a slot. So no user keeps another from starting, by number,
    priority or haste. Priority, then first come, counts within one user only (docs/users.md). A
    tree whose group has no room holds up no tree outside the group."""

    def __init__(self, *, per_user: int, total: int, groups: Mapping[str, int] = NO_GROUPS) -> None:
        self.per_user = per_user
        self.total = total
        self.groups = groups
        """How many trees a user may have at once in each group."""
        self.parts: Mapping[Quota, Part] | None = None
        """What this daemon may use of them; `None`: it shares them with no other machine."""
        self.trouble = ""
        """Why it may not use more, if they are shared and that is known."""
        self._taken: dict[RunId, _Lane] = {}
        self._by_user: dict[str, int] = {}
        self._by_group: dict[_Lane, int] = {}
        # a queue for each lane, in its order: a user or a group at the bound neither holds up the
        # others nor costs a scan
        self._queues: dict[_Lane, list[_Place]] = {}
        self._since: dict[str, int] = {}
        """When each waiting user began to wait, or got a slot the last time, in the order of
        events. A user who comes later waits from then on: being forgotten while nothing waits must
        be no way to the front."""
        self._waiting: dict[RunId, tuple[_Lane, _Place]] = {}
        """The lane of each waiting root, and its place in the lane's queue."""
        self._outside: dict[RunId, str] = {}
        """Roots that are in no queue yet, because they wait for other runs or for a window's
        reset, each with its user."""
        self._order = 0

    def resize(self, *, per_user: int, total: int, groups: Mapping[str, int]) -> None:
        """Follow a changed policy. Trees that have a slot keep it. A group that is not there any
        more has no bound."""
        self.per_user, self.total, self.groups = per_user, total, groups

    def share(self, parts: Mapping[Quota, Part] | None, trouble: str) -> None:
        """Follow what this daemon may use of quotas that it shares with other machines."""
        self.parts, self.trouble = parts, trouble

    def _most(self, quota: Quota, configured: int) -> int:
        return configured if self.parts is None else self.parts.get(quota, NO_PART).slots

    def wants(self) -> dict[Quota, Wants]:
        """Return what is used of each quota, and what is needed. What waits for a group, or for the
        user's own slots, needs none of what all users share."""
        found = {
            (f"groups.{group}.slots", user): Wants(used)
            for (user, group), used in self._by_group.items()
            if group in self.groups
        }
        found |= {(PER_USER, user): Wants(used) for user, used in self._by_user.items()}
        users: dict[str, Wants] = {}
        for (user, group), queue in self._queues.items():
            wants = Wants(self.user_count(user), len(queue), -queue[0][0])
            if group is not None and group in self.groups:
                used, quota = self.group_count(user, group), (f"groups.{group}.slots", user)
                found[quota] = Wants(used, wants.needs, wants.priority)
                room = max(0, self._most(quota, self.groups[group]) - used)
                wants = wants._replace(needs=min(wants.needs, room))
            users[user] = _both(users.get(user), wants)
        total = Wants(self.count)
        for user, wants in users.items():
            found[PER_USER, user] = wants
            room = max(0, self._most((PER_USER, user), self.per_user) - wants.used)
            total = total._replace(needs=total.needs + min(wants.needs, room))
        return found | {ALL_USERS: total}

    def user_count(self, user: str) -> int:
        return self._by_user.get(user, 0)

    def group_count(self, user: str, group: str) -> int:
        """Return how many of the user's live trees in the group have a slot."""
        return self._by_group.get((user, group), 0)

    def queued_of(self, user: str) -> int:
        """Return how many of the user's roots wait to start."""
        in_lanes = sum(len(queue) for (whose, _), queue in self._queues.items() if whose == user)
        return in_lanes + sum(whose == user for whose in self._outside.values())

    @property
    def count(self) -> int:
        return len(self._taken)

    @property
    def queued(self) -> int:
        return len(self._waiting) + len(self._outside)

    def full_for(self, user: str) -> bool:
        """Return whether the user has as many trees as one may have."""
        return self.user_count(user) >= self._most((PER_USER, user), self.per_user)

    def group_full(self, user: str, group: str | None) -> bool:
        """Return whether the user has as many trees in the group as one may have."""
        return (
            group is not None
            and group in self.groups
            and self.group_count(user, group)
            >= self._most((f"groups.{group}.slots", user), self.groups[group])
        )

    @property
    def full(self) -> bool:
        """Return whether all users together have as many trees as they may have."""
        return len(self._taken) >= self._most(ALL_USERS, self.total)

    def free_for(self, user: str, group: str | None = None) -> bool:
        if self.parts is None:  # of each root this is asked twice, and nearly always so
            has_room = len(self._taken) < self.total
            has_room = has_room and self._by_user.get(user, 0) < self.per_user
        else:
            has_room = not self.full and not self.full_for(user)
        return has_room and (group is None or not self.group_full(user, group))

    def _comes_first(self, user: str, group: str | None, priority: int) -> bool:
        """Return whether no tree of this user with a higher priority waits elsewhere."""
        if self.parts is None:
            return True
        quotas = [(PER_USER, user), (f"groups.{group}.slots", user)]
        rivals = [self.parts[quota].rival for quota in quotas if quota in self.parts]
        return all(rival is None or rival <= priority for rival in rivals)

    def take(self, root: RunId, user: str, group: str | None = None) -> None:
        """Give the root a slot; the caller has asked `free_for`."""
        self._taken[root] = user, group
        self._by_user[user] = self._by_user.get(user, 0) + 1
        if group is not None:
            self._by_group[user, group] = self.group_count(user, group) + 1

    def wait_outside(self, root: RunId, user: str) -> None:
        """Count a root that waits outside the queue, for other runs or for a window's reset,
        until it leaves or is queued."""
        self._outside[root] = user

    def enqueue(self, root: RunId, user: str, priority: int, group: str | None = None) -> None:
        self._order += 1
        self._since.setdefault(user, self._order)
        entry = (-priority, self._order, root)
        insort(self._queues.setdefault((user, group), []), entry)
        self._waiting[root] = (user, group), entry

    def waits(self, root: RunId) -> bool:
        return root in self._waiting or root in self._outside

    def full_for_root(self, root: RunId) -> QuotaUse | None:
        """Return the quota that has no room for a root in the queue; `None` if it is not in the
        queue. Cheap, unlike `place_of`."""
        if root not in self._waiting:
            return None
        (user, group), _ = self._waiting[root]
        if group is not None and self.group_full(user, group):
            used, limit = self.group_count(user, group), self.groups[group]
            return QuotaUse(f"groups.{group}.slots", used, limit)
        if self.full_for(user):
            return QuotaUse(PER_USER, self.user_count(user), self.per_user)
        return QuotaUse(ALL_USERS[0], self.count, self.total)

    def place_of(self, root: RunId) -> QueuePlace | None:
        """Return which slot a root in the queue waits for, and its place: among those of its group
        if that has no room, else among those of its user. `None` if it is not in the queue."""
        full = self.full_for_root(root)
        if full is None:
            return None
        lane, entry = self._waiting[root]
        user, group = lane
        if group is not None and self.group_full(user, group):
            queue = self._queues[lane]
            return QueuePlace(*full[:3], queue.index(entry) + 1, len(queue))
        rivals = [
            other
            for each, queue in self._queues.items()
            if each[0] == user and not self.group_full(*each)
            for other in queue
        ]
        return QueuePlace(*full[:3], sum(other < entry for other in rivals) + 1, len(rivals))

    def leave(self, root: RunId) -> None:
        """Free the slot of a root that has ended, or its place in the queue."""
        self._outside.pop(root, None)
        if root in self._waiting:
            self._leave_queue(root)
        if root in self._taken:
            user, group = self._taken.pop(root)
            _less(self._by_user, user)
            if group is not None:
                _less(self._by_group, (user, group))

    def end_waiting_outside(self, root: RunId) -> None:
        """The root does not wait outside the queue any more."""
        self._outside.pop(root, None)

    def _leave_queue(self, root: RunId) -> None:
        lane, entry = self._waiting.pop(root)
        self._queues[lane].remove(entry)
        if not self._queues[lane]:
            del self._queues[lane]
            if all(user != lane[0] for user, _ in self._queues):
                del self._since[lane[0]]

    def give_next(self) -> RunId | None:
        """Give a slot to the waiting root whose turn it is; return `None` if none can have one."""
        if not self._queues or self.full:
            return None
        found = [
            (self._by_user.get(lane[0], 0), self._since[lane[0]], queue[0], lane)
            for lane, queue in self._queues.items()
            if self.free_for(*lane) and self._comes_first(*lane, -queue[0][0])
        ]
        if not found:
            return None
        _, _, (_, _, root), (user, group) = min(found)
        self._order += 1
        self._since[user] = self._order
        self._leave_queue(root)
        self.take(root, user, group)
        return root


def _both(one: Wants | None, other: Wants) -> Wants:
    if one is None:
        return other
    needs = one.needs + other.needs
    return Wants(one.used, needs, max(one.priority, other.priority))


def _less(counts: dict[Key, int], key: Key) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
