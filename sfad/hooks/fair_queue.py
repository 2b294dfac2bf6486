"""A bounded queue that no tree can fill for the others, and in which nothing important yields to something less important."""

from collections import deque
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

RANKS = 3
"""Severities."""


class FairQueue(Generic[T]):
    """Hands out one item of each tree in turn; of a tree, the most severe first, then the oldest."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._trees: dict[Hashable, list[deque[T]]] = {}
        """By rank. The tree whose turn it is comes first."""
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        return (item for ranks in self._trees.values() for items in ranks for item in items)

    def push(self, tree: Hashable, rank: int, item: T) -> T | None:
        """Add an item; return what had to be dropped for it, which may be the item itself. Of the lowest rank, that is the oldest
        of the tree that has most of them."""
        dropped = None
        if self._length >= self._most:
            lowest = min(rank for ranks in self._trees.values() for rank, items in enumerate(ranks) if items)
            if lowest > rank:
                return item
            fullest = max(self._trees, key=lambda each: len(self._trees[each][lowest]))
            dropped = self._take(fullest, lowest)
        self._trees.setdefault(tree, [deque() for _ in range(RANKS)])[rank].append(item)
        self._length += 1
        return dropped

    def pop(self) -> T | None:
        for tree, ranks in self._trees.items():
            rank = max(rank for rank, items in enumerate(ranks) if items)
            item = self._take(tree, rank)
            if tree in self._trees:  # its next turn is after the others'
                self._trees[tree] = self._trees.pop(tree)
            return item
        return None

    def remove(self, item: T) -> None:
        """Remove an item that is in the queue."""
        for tree, ranks in self._trees.items():
            for items in ranks:
                if item in items:
                    items.remove(item)
                    self._length -= 1
                    self._forget_if_empty(tree)
                    return

    def _take(self, tree: Hashable, rank: int) -> T:
        item = self._trees[tree][rank].popleft()
        self._length -= 1
        self._forget_if_empty(tree)
        return item

    def _forget_if_empty(self, tree: Hashable) -> None:
        if not any(self._trees[tree]):
            del self._trees[tree]
