"""`watch_runs`: runs as in `list`, and then each that changes."""

from dataclasses import dataclass, field

import trio

from ...ledger.reader import Page
from ...loop.run_feed import INTERVAL
from ...protocol.messages import Error, List, RunsPush, WatchRuns
from ...protocol.types import ErrorCode, RunId
from ...runs.catalogue import KnownRun
from ..call import Call, answers
from ..checks import check_filters
from ..connection import Pending
from ..encoded import RunRows
from .list import MAX_ROWS
from .watch import demand_watch

STALLED = 30.0
"""Seconds that a client may leave a push unread."""


@answers(WatchRuns)
def watch_runs(call: Call, request: WatchRuns) -> None:
    check_filters(request)
    demand_watch(call)
    call.demand(call.services.bounds.run_feeds, 1)
    root = call.resolve(request.root).id if request.root is not None else None
    query = List(
        id=0, name=request.name, user=request.user, labels=request.labels, rows=max(0, min(request.rows, MAX_ROWS)), live=True
    )
    _Watching(call, request, query, root).begin()


@dataclass(eq=False, slots=True)
class _Watching:
    """One client that watches runs. It gets one push at a time: while that is unread, further changes are only noted."""

    call: Call
    request: WatchRuns
    query: List
    root: RunId | None
    waiting: dict[str, KnownRun] = field(default_factory=dict)
    """Runs that have changed while a push was unread."""
    all_again: bool = False
    unread_since: float | None = None

    def begin(self) -> None:
        connection, bounds = self.call.connection, self.call.services.bounds
        unfollow = self.call.runtime.run_feed.follow(lambda: self.call.scope, self.changed)
        bounds.watches.add(connection.groups, 1)
        bounds.run_feeds.add(connection.groups, 1)

        def forget() -> None:
            unfollow()
            self.call.runtime.timers.disarm(self._timer)
            bounds.watches.add(connection.groups, -1)
            bounds.run_feeds.add(connection.groups, -1)

        connection.pending[self.call.id] = Pending(self.request, forget)
        self.call.reply(self._everything())

    def changed(self, runs: list[KnownRun] | None) -> None:
        if runs is None:
            self.all_again = True
        else:
            page = self._page
            self.waiting |= {known.info.id: known for known in runs if page.admits(*known)}
        self.all_again |= len(self.waiting) > MAX_ROWS
        if self.all_again:
            self.waiting.clear()
        if self.call.connection.unsent:
            self._stalled()
            return
        self.unread_since = None
        if self.all_again:
            self.all_again = False
            self.call.connection.send(self._everything())
        elif self.waiting:
            push = RunsPush(id=self.call.id, runs=[known.info for known in self.waiting.values()])
            self.waiting.clear()
            self.call.connection.send(push)

    def _everything(self) -> RunRows:
        catalogue, feed = self.call.runtime.catalogue, self.call.runtime.run_feed
        found = catalogue.select(self._page)
        live = [known.info if (known := feed.known(info.id)) is not None else info for info in found.live]
        return RunRows(id=self.call.id, runs=found.rows(live))

    def _stalled(self) -> None:
        connection, runtime, now = self.call.connection, self.call.runtime, trio.current_time()
        if self.unread_since is None:
            self.unread_since = now
        if now - self.unread_since < STALLED:
            runtime.timers.arm(self._timer, now + INTERVAL, lambda: self.changed([]))
            return
        connection.pending.pop(self.call.id).forget()
        message = f"it left {connection.unsent_size} bytes unread for {STALLED:g} s, so it is not told of runs any more; ask again"
        runtime.log.warning(f"a slow client: {message}", connection=connection.number, user=connection.peer.user)
        connection.send(Error(id=self.call.id, code=ErrorCode.UNAVAILABLE, message=message))

    @property
    def _page(self) -> Page:
        return Page(self.query, self.call.scope, within=self.root)

    @property
    def _timer(self) -> tuple[str, int, int]:
        return "watch runs", self.call.connection.number, self.call.id
