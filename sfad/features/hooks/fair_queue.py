"""A bounded queue that no user, and no tree, can fill for the others, and in which nothing
important yields to something less important."""

from collections import deque
from collections.abc import Collection, Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

RANKS = 3
"""Severities."""


class FairQueue(Generic[T]):
    """Hands out one item of each user in turn, and of a user one of each tree in turn; of a tree,
    the most severe first, then the oldest."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._users: dict[Hashable, dict[Hashable, list[deque[T]]]] = {}
        """Of each user, by tree and rank. The user and the tree whose turn it is come first."""
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        return (
            item
            for trees in self._users.values()
            for ranks in trees.values()
            for items in ranks
            for item in items
        )

    def push(self, user: Hashable, tree: Hashable, rank: int, item: T) -> T | None:
        """Add an item; return what had to be dropped for it, which may be the item itself. Of the
        lowest rank, that is the oldest of the user who has most of them, and of this user's tree
        that has most."""
        dropped = None
        if self._length >= self._most:
            held = [ranks for trees in self._users.values() for ranks in trees.values()]
            lowest = min(rank for ranks in held for rank, items in enumerate(ranks) if items)
            if lowest > rank:
                return item
            dropped = self._take(*self._fullest(lowest), lowest)
        trees = self._users.setdefault(user, {})
        trees.setdefault(tree, [deque() for _ in range(RANKS)])[rank].append(item)
        self._length += 1
        return dropped

    def pop(self, passed_over: Collection[Hashable] = ()) -> T | None:
        """Take the next item, of the users who are not `passed_over`."""
        for user, trees in self._users.items():
            if user not in passed_over:
                tree, ranks = next(iter(trees.items()))
                item = self._take(
                    user, tree, max(rank for rank, items in enumerate(ranks) if items)
                )
                if tree in trees:  # the next turn is after the others'
                    trees[tree] = trees.pop(tree)
                if user in self._users:
                    self._users[user] = self._users.pop(user)
                return item
        return None

    def remove(self, item: T) -> None:
        """Remove an item that is in the queue."""
        for user, trees in self._users.items():
            for tree, ranks in trees.items():
                for items in ranks:
                    if item in items:
                        items.remove(item)
                        self._removed(user, tree)
                        return

    def _fullest(self, rank: int) -> tuple[Hashable, Hashable]:
        counts = {
            user: {tree: len(ranks[rank]) for tree, ranks in trees.items()}
            for user, trees in self._users.items()
        }
        user = max(counts, key=lambda each: sum(counts[each].values()))
        return user, max(counts[user], key=counts[user].__getitem__)

    def _take(self, user: Hashable, tree: Hashable, rank: int) -> T:
        item = self._users[user][tree][rank].popleft()
        self._removed(user, tree)
        return item

    def _removed(self, user: Hashable, tree: Hashable) -> None:
        self._length -= 1
        if not any(self._users[user][tree]):
            del self._users[user][tree]
        if not self._users[user]:
            del self._users[user]
