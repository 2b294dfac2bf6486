"""Verbs with more answers as things happen: `watch`, `watch_runs`, `events`, `wait`."""

from collections.abc import Callable
from functools import partial

import trio
from msgspec import Struct, field
from msgspec.structs import replace

from ....core.events import ClientBack
from ....core.state.access import unknown_run
from ....protocol.errors import bad_request, check_most, unavailable
from ....protocol.messages import (
    CallPush,
    Done,
    Error,
    EventPage,
    EventPush,
    Events,
    List,
    RunsPush,
    Wait,
    Watch,
    WatchRuns,
)
from ....protocol.types import CallInfo, ErrorCode, Event, RunId, RunInfo, Status
from ....runs.catalogue import KnownRun
from ....storage.ledger.queries import Page
from ....storage.ledger.records import EventFilter, read_event_page
from ...loop.announcing import INTERVAL
from ..asker import EXPECTED, Asker, answers, answers_about_run, told
from ..checks import MAX_CHOSEN, MAX_SECONDS, check_filters
from ..connection import Pending, RunRows
from .looking import MAX_ROWS

# ---- `watch`, and `spawn` with `watch`: push the events, or the calls, of a run and its
# descendants from now on


MAX_EACH = 64
"""Watches of one connection."""


@answers_about_run(Watch)
def watch(asker: Asker, request: Watch, run: RunInfo) -> None:
    if request.calls:
        asker.check_permitted("calls", asker.runtime.catalogue.lineage(run.id))
    check_watch_share(asker)
    push(asker, run.id, calls=request.calls)
    asker.reply(Done(id=asker.id))


def check_watch_share(asker: Asker) -> None:
    open_here = sum(
        isinstance(pending.request, Watch) for pending in asker.connection.waits.values()
    )
    if open_here >= MAX_EACH:
        raise unavailable(
            (
                f"this connection has {open_here} open watches, at most {MAX_EACH} are allowed; "
                "watch a run that is above others"
            ),
        )
    asker.check_share(asker.services.bounds.watches, 1)


def push(asker: Asker, run: RunId, *, calls: bool = False) -> None:
    """Push the events, or the `calls`, of the run and its descendants from now on, until the run is
    over or the connection is closed."""
    pushed = _Pushed(asker, run)
    watchers = asker.runtime.watchers
    forget = (
        watchers.watch_calls(run, pushed.called) if calls else watchers.watch(run, pushed.happened)
    )
    if asker.runtime.catalogue.over(run):
        forget()
    else:
        pending = Pending(Watch(id=asker.id, run=run, calls=calls), pushed.over)
        pushed.begin(pending, forget, watchers.wait_for_end(run, pushed.over))


class _Pushed:
    """One client that is pushed what happens to a run."""

    def __init__(self, asker: Asker, run: RunId) -> None:
        self._asker = asker
        catalogue = asker.runtime.catalogue
        self._uid, self._lineage = catalogue.uid(run), catalogue.lineage(run)

    def begin(self, pending: Pending, *forget: Callable[[], None]) -> None:
        self._forget = forget
        self._asker.connection.waits[self._asker.id] = pending
        self._asker.services.bounds.watches.add(self._asker.connection.groups, 1)

    def happened(self, event: Event) -> None:
        self._push(EventPush(id=self._asker.id, event=event))

    def called(self, info: CallInfo) -> None:
        self._push(CallPush(id=self._asker.id, call=info))

    def _push(self, push: EventPush | CallPush) -> None:
        # until a reload takes the peer's rights away
        if self._asker.scope.knows(self._uid, self._lineage):
            self._asker.connection.send(push)

    def over(self, _info: RunInfo | None = None) -> None:
        if self._asker.connection.waits.pop(self._asker.id, None) is None:
            return
        for each in self._forget:
            each()
        self._asker.services.bounds.watches.add(self._asker.connection.groups, -1)


# ---- `watch_runs`: runs as in `list`, and then each that changes


STALLED = 30.0
"""Seconds that a client may leave a push unread."""


@answers(WatchRuns)
def watch_runs(asker: Asker, request: WatchRuns) -> None:
    check_filters(request)
    check_watch_share(asker)
    asker.check_share(asker.services.bounds.run_feeds, 1)
    root = asker.resolve(request.root).id if request.root is not None else None
    query = List(
        id=0,
        name=request.name,
        user=request.user,
        labels=request.labels,
        rows=max(0, min(request.rows, MAX_ROWS)),
        live=True,
        queued=request.queued,
    )
    _Watching(asker, request, query, root).begin()


class _Watching(Struct, eq=False):
    """One client that watches runs. It gets one push at a time: while that is unread, further
    changes are only noted."""

    asker: Asker
    request: WatchRuns
    query: List
    root: RunId | None
    waiting: dict[str, KnownRun] = field(default_factory=dict)
    """Runs that have changed while a push was unread."""
    all_again: bool = False
    queued: set[RunId] = field(default_factory=set)
    """The queued runs that are shown, where only the first ones are."""
    left_out: int = 0
    """The others."""
    told_left_out: int = 0
    """`RunsPush.queued`, as it was sent last."""
    unread_since: float | None = None

    def begin(self) -> None:
        connection, bounds = self.asker.connection, self.asker.services.bounds
        unfollow = self.asker.runtime.run_feed.follow(lambda: self.asker.scope, self.changed)
        bounds.watches.add(connection.groups, 1)
        bounds.run_feeds.add(connection.groups, 1)

        def forget() -> None:
            unfollow()
            self.asker.runtime.resources.timers.disarm(self._timer)
            bounds.watches.add(connection.groups, -1)
            bounds.run_feeds.add(connection.groups, -1)

        connection.waits[self.asker.id] = Pending(self.request, forget)
        self.asker.reply(self._everything())

    def changed(self, runs: list[KnownRun] | None) -> None:
        if runs is None:
            self.all_again = True
        else:
            page = self._page
            known = (each for each in self._but_queued(runs) if page.admits(*each))
            self.waiting |= {each.info.id: each for each in known}
        self.all_again |= len(self.waiting) > MAX_ROWS
        if self.all_again:
            self.waiting.clear()
        if self.asker.connection.unsent:
            self._stalled()
            return
        self.unread_since = None
        if self.all_again:
            self.all_again = False
            self.asker.connection.send(self._everything())
        elif self.waiting or self.left_out != self.told_left_out:
            changed = [known.info for known in self.waiting.values()]
            self.waiting.clear()
            self.told_left_out = self.left_out
            push = RunsPush(id=self.asker.id, runs=changed, queued=self.left_out)
            self.asker.connection.send(push)

    def _but_queued(self, runs: list[KnownRun]) -> list[KnownRun]:
        """Return the runs without queued ones that are only counted, and with those that are shown
        from now on."""
        most = self.query.queued
        if most is None:
            return runs
        feed, queued = self.asker.runtime.run_feed, self.asker.runtime.catalogue.queued(self._page)
        first = set(queued[: max(0, most)])
        moved_up = (feed.known(run) for run in first - self.queued)
        self.queued, self.left_out = first, len(queued) - len(first)
        return [
            known
            for known in (*runs, *moved_up)
            if known is not None
            and (known.info.status is not Status.QUEUED or known.info.id in first)
        ]

    def _everything(self) -> RunRows:
        catalogue, feed = self.asker.runtime.catalogue, self.asker.runtime.run_feed
        found = catalogue.select(self._page)
        self.queued = {run.id for run in found.live if run.status is Status.QUEUED}
        self.left_out = self.told_left_out = found.queued
        live = [
            known.info if (known := feed.known(info.id)) is not None else info
            for info in found.live
        ]
        return RunRows(id=self.asker.id, runs=found.rows(live), queued=found.queued)

    def _stalled(self) -> None:
        connection, runtime, now = self.asker.connection, self.asker.runtime, trio.current_time()
        if self.unread_since is None:
            self.unread_since = now
        if now - self.unread_since < STALLED:
            runtime.resources.timers.arm(self._timer, now + INTERVAL, lambda: self.changed([]))
            return
        connection.waits.pop(self.asker.id).forget()
        message = (
            f"it left {connection.unsent_size} bytes unread for {STALLED:g} s, "
            "so it is not told of runs any more; ask again"
        )
        runtime.resources.log.warning(
            f"a slow client: {message}", connection=connection.number, user=connection.peer.user
        )
        connection.send(Error(id=self.asker.id, code=ErrorCode.UNAVAILABLE, message=message))

    @property
    def _page(self) -> Page:
        return Page(self.query, self.asker.scope, within=self.root)

    @property
    def _timer(self) -> tuple[str, int, int]:
        return "watch runs", self.asker.connection.number, self.asker.id


# ---- `events`: events of the ledger, and then each one that is recorded


MAX_EVENTS = 1000
"""Events in one page. Clients ask for the next page."""

MAX_PATTERN = 64


@answers(Events)
def events(asker: Asker, request: Events) -> None:
    wanted = _filter(asker, request)
    rows = max(1, min(request.rows, MAX_EVENTS))
    runtime = asker.runtime
    if request.follow:
        check_watch_share(asker)
    following = (
        _Following(asker, replace(request, runs=list(wanted.runs)), wanted)
        if request.follow
        else None
    )
    is_wanted = asker.defer()

    async def read() -> EventPage:
        await runtime.resources.ledger.flush()
        page = partial(
            read_event_page, runtime.resources.ledger.file.directory, wanted, request, rows
        )
        return await runtime.background.walk(page, asker.connection.groups.all)

    def done(page: EventPage) -> None:
        answered = is_wanted()
        if answered:
            asker.reply(page)
        if following is None:
            return
        if answered and not page.more:
            following.begin(page.reached)
        else:
            following.forget()

    def failed(error: Exception) -> None:
        if following is not None:
            following.forget()
        if is_wanted():
            asker.fail(*told(error))

    runtime.background.run_then(read, done, failed, EXPECTED)


def _filter(asker: Asker, request: Events) -> EventFilter:
    check_most("runs", len(request.runs), MAX_CHOSEN)
    check_most("patterns of types", len(request.types), MAX_CHOSEN)
    for pattern in request.types:
        check_most("characters in a pattern of types", len(pattern), MAX_PATTERN)
    if request.since is not None and not abs(request.since) <= MAX_SECONDS:  # also false for a NaN
        raise bad_request(f"since must be Unix seconds, at most {MAX_SECONDS:.0f} from 1970")
    if request.after is not None and not 0 <= request.after < 2**63:
        raise bad_request(f"after = {request.after} is no number of an event")
    if request.before is not None and (request.after is not None or request.follow):
        raise bad_request("before leads to older events: leave after and follow out")
    if request.before is not None and not 0 <= request.before < 2**63:
        raise bad_request(f"before = {request.before} is no number of an event")
    milestones = request.milestones or "run_progress" in request.types
    runs: list[RunId] = [asker.resolve(run).id for run in request.runs]
    return EventFilter(
        asker.scope, tuple(runs), tuple(request.types), request.severity, request.since, milestones
    )


class _Following:
    """One client that follows, from the moment before the ledger is read for it."""

    def __init__(self, asker: Asker, request: Events, wanted: EventFilter) -> None:
        self._asker = asker
        self._request = request
        self._wanted = wanted
        self._early: list[Event] | None = []
        """What came before `begin`."""
        self._unfollow = asker.runtime.announcer.event_feed.follow(lambda: asker.scope, self._take)
        asker.services.bounds.watches.add(asker.connection.groups, 1)

    def begin(self, after: int) -> None:
        """Push what came meanwhile with a higher number, and everything from now on."""
        if self._asker.connection.closed:
            self.forget()
            return
        self._request.after = after
        self._asker.connection.waits[self._asker.id] = Pending(self._request, self.forget)
        early, self._early = self._early or [], None
        for event in early:
            if event.number > after:
                self._push(event)

    def _take(self, event: Event, lineage: tuple[RunId, ...]) -> None:
        if not self._wanted.admits(event, lineage):
            return
        if self._early is None:
            self._push(event)
        else:
            self._early.append(event)

    def _push(self, event: Event) -> None:
        self._request.after = event.number  # where a daemon that executes itself again goes on
        self._asker.connection.send(EventPush(id=self._asker.id, event=event))

    def forget(self) -> None:
        self._unfollow()
        self._asker.services.bounds.watches.add(self._asker.connection.groups, -1)


# ---- `wait`: reply when a run has ended and the ledger has saved that, or after a time


@answers(Wait)
def wait(asker: Asker, request: Wait) -> None:
    runtime, connection, run = asker.runtime, asker.connection, asker.find(request.run)
    if request.tie:
        # a tied run is stopped with its client
        asker.check_permitted("stop", runtime.catalogue.lineage(run))
        runtime.feed(ClientBack(trio.current_time(), run, connection.number))
    if runtime.catalogue.over(run) or request.timeout == 0:
        asker.show(asker.known(run))
        return
    timer = ("wait", connection.number, asker.id)

    def answer(info: RunInfo | None) -> None:
        if connection.waits.pop(asker.id, None) is None:
            return  # the connection was closed while waiters were told
        forget()
        runtime.resources.timers.disarm(timer)
        if info is not None and not runtime.catalogue.knows(info.id, asker.scope):
            # a reload has taken the peer's rights away
            asker.fail(ErrorCode.NO_SUCH_RUN, unknown_run(info.id))
        elif info is not None:
            asker.show(info)
        else:
            asker.end()

    forget = runtime.watchers.wait_for_end(run, answer)
    until = trio.current_time() + max(0.0, request.timeout) if request.timeout is not None else None
    connection.waits[asker.id] = Pending(request, lambda: answer(None), until)
    if until is not None:
        runtime.resources.timers.arm(timer, until, lambda: answer(runtime.catalogue.info(run)))
