"""The queue of the writer's thread, which wakes it when a transaction is worth its cost.

A transaction costs some 0.2 ms and a wake-up of the thread, whatever is in it. So only urgent items wake the thread at once; the
others wait a little and share the transaction of what comes next.
"""

import queue
from collections import deque
from typing import Generic, TypeVar

LINGER = 0.010
"""Seconds that an item which is not urgent may wait for others. Short runs in sequence have an admission or an end every
millisecond or so, which takes all others along; a SIGKILL of the daemon loses nothing older than this."""

ENOUGH = 64
"""Items that are worth a transaction without an urgent one. They make the next admission's transaction at most 0.5 ms longer."""

_Item = TypeVar("_Item")


class Inbox(Generic[_Item]):
    def __init__(self) -> None:
        self._items: deque[_Item] = deque()
        self._calls: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """A wake-up for the taker; true if it should take at once."""
        self._asleep = False
        """Whether the taker waits without a time limit of its own, and must be woken to begin its wait of `LINGER`."""

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: _Item, *, urgent: bool) -> None:
        """Queue an item. Never waits. After urgent items the caller calls `wake`, once for all of them."""
        self._items.append(item)
        if urgent:
            return
        enough = len(self._items) == ENOUGH
        if enough or self._asleep:
            self._asleep = False
            self._calls.put(enough)

    def wake(self) -> None:
        self._calls.put(True)

    def wait(self, timeout: float | None) -> None:
        """Return once what is queued is worth a transaction, or if nothing came for `timeout` seconds."""
        # waiting right after a transaction, and not from the next item on, spares that item a wake-up
        self._called(LINGER)
        if not self._items and not self._sleep(timeout) and self._items:
            self._called(LINGER)

    def _sleep(self, timeout: float | None) -> bool:
        self._asleep = True
        try:
            # an item that was put before the flag was set has not woken the taker
            return not self._items and self._called(timeout)
        finally:
            self._asleep = False

    def _called(self, timeout: float | None) -> bool:
        try:
            return self._calls.get(timeout=timeout)
        except queue.Empty:
            return False

    def put_back(self, items: list[_Item]) -> None:
        """Queue these again before all others."""
        self._items.extendleft(reversed(items))

    def drain(self) -> list[_Item]:
        """Return everything queued."""
        # the calls first: a later call may be for an item that is put after this
        while not self._calls.empty():
            self._calls.get_nowait()
        return [self._items.popleft() for _ in range(len(self._items))]
