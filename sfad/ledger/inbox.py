"""What waits for the writer, and when it is worth a transaction.

A transaction costs some 0.2 ms and a wake-up of the thread, whatever is in it. So the thread is woken at once only for
what is urgent. The rest lingers, to share a transaction with what comes next.
"""

from __future__ import annotations

import queue
from collections import deque
from typing import Generic, TypeVar

LINGER = 0.010
"""Seconds that an item which is not urgent may wait for company. Short runs in sequence admit or end one every millisecond
or so, so that all the rest goes with these; and what a SIGKILL of the daemon takes is no older than this."""

ENOUGH = 64
"""Items that are worth a transaction without an urgent one: what lingers makes the next admission's transaction longer,
by some 0.5 ms at most."""

_Item = TypeVar("_Item")


class Inbox(Generic[_Item]):
    """A queue with many putters and one taker."""

    def __init__(self) -> None:
        self._items: deque[_Item] = deque()
        self._calls: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """A wake-up for the taker; true if it should take at once."""
        self._asleep = False
        """Whether the taker waits without a limit of its own, and has to be told that it may begin to linger."""

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: _Item, *, urgent: bool) -> None:
        """Queues. Never waits. Whoever puts what is urgent calls `wake` afterwards, once for all of it."""
        self._items.append(item)
        if urgent:
            return
        enough = len(self._items) == ENOUGH
        if enough or self._asleep:
            self._asleep = False
            self._calls.put(enough)

    def wake(self) -> None:
        """There is something urgent."""
        self._calls.put(True)

    def take(self, patience: float | None) -> list[_Item]:
        """Everything queued, once it is worth a transaction; nothing, if nothing came for `patience` seconds."""
        # lingering right after a transaction, rather than from the next item on, spares that item a wake-up
        self._called(LINGER)
        if not self._items and not self._sleep(patience) and self._items:
            self._called(LINGER)
        return self.drain()

    def _sleep(self, patience: float | None) -> bool:
        self._asleep = True
        try:
            # an item that was put before the flag was seen has called nobody
            return not self._items and self._called(patience)
        finally:
            self._asleep = False

    def _called(self, timeout: float | None) -> bool:
        try:
            return self._calls.get(timeout=timeout)
        except queue.Empty:
            return False

    def drain(self) -> list[_Item]:
        """Everything queued, now."""
        # the calls first: one that comes later may be for an item that is still put
        while not self._calls.empty():
            self._calls.get_nowait()
        return [self._items.popleft() for _ in range(len(self._items))]
