"""Which client's requests are handled next: trees and users take turns, and so do the clients of each."""

import time
from collections import deque
from collections.abc import Callable

from .connection import Connection
from .shares import ShareGroup

TURN_TIME = 0.01
"""Seconds of requests of one tree, or of one user outside any run, before the next one has a turn."""


class Turns:
    """Connections with requests to handle, by the group that takes turns with other groups."""

    def __init__(self, handle: Callable[[Connection], None]) -> None:
        """`handle` handles some requests of a connection, and adds it again if there are more."""
        self._handle = handle
        self._waiting: dict[ShareGroup, deque[Connection]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, connection: Connection) -> None:
        """Queue a connection behind the others of its group."""
        self._waiting.setdefault(connection.groups.lane, deque()).append(connection)

    def take(self) -> None:
        """Handle requests of each group for a while. A group with many clients waits as long as one with few."""
        for lane in list(self._waiting):
            self._take(lane)

    def _take(self, lane: ShareGroup) -> None:
        waiting = self._waiting.pop(lane)
        until = time.perf_counter() + TURN_TIME
        while waiting:
            self._handle(waiting.popleft())
            if time.perf_counter() > until:
                break
        if waiting:
            # in front of those that have had a turn now
            waiting.extend(self._waiting.pop(lane, ()))
            self._waiting[lane] = waiting
