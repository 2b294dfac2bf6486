"""Pushes events to clients that follow all of them, once they are on record.

A client that resumes after the last number it has seen must neither miss an event nor get one twice, across a daemon that was
killed. So it sees nothing that the ledger may not have: not even for the 10 ms that an event waits for its transaction.
"""

from collections import deque
from collections.abc import Callable

from ..core.access import Scope
from ..ledger import Ledger
from ..protocol.types import Event, RunId

Follower = Callable[[Event, tuple[RunId, ...]], None]
"""Takes an event, and the lineage of its run."""


class EventFeed:
    def __init__(self, ledger: Ledger, uid_of: Callable[[RunId], int | None]) -> None:
        self._ledger = ledger
        self._uid_of = uid_of
        self._followers: dict[Follower, Callable[[], Scope]] = {}
        self._unrecorded: deque[tuple[Event, int | None, tuple[RunId, ...]]] = deque()

    def follow(self, scope: Callable[[], Scope], follower: Follower) -> Callable[[], None]:
        """Call `follower` with each event in the scope from now on. The scope is asked for each: a reload may change who is in the
        admin group. Return how to stop it."""
        self._followers[follower] = scope
        self._ledger.tell_of_events(self._recorded)

        def forget() -> None:
            self._followers.pop(follower, None)
            if not self._followers:
                self._ledger.tell_of_events(None)
                self._unrecorded.clear()

        return forget

    def published(self, event: Event, lineage: tuple[RunId, ...]) -> None:
        if not self._followers:
            return
        self._unrecorded.append((event, self._uid_of(lineage[-1]) if lineage else None, lineage))
        if self._ledger.trouble is not None:  # an operator who watches a full disk must see what happens
            self._recorded(self._ledger.last_event)

    def _recorded(self, number: int) -> None:
        while self._unrecorded and self._unrecorded[0][0].number <= number:
            event, uid, lineage = self._unrecorded.popleft()
            for follower, scope in list(self._followers.items()):
                if scope().admits(uid, lineage):
                    follower(event, lineage)
