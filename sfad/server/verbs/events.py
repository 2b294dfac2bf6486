"""`events`: events of the ledger, and then each one that is recorded."""

from functools import partial

from msgspec.structs import replace

from ...ledger.past_events import EventFilter, read_event_page
from ...protocol.messages import EventPage, EventPush, Events
from ...protocol.types import Event, RunId
from ..call import EXPECTED, Call, answers, told
from ..checks import MAX_CHOSEN, MAX_SECONDS, bad_request, check_most
from ..connection import Pending
from .watch import demand_watch

MAX_ROWS = 1000
"""Events in one page. Clients ask for the next page."""

MAX_PATTERN = 64


@answers(Events)
def events(call: Call, request: Events) -> None:
    wanted = _filter(call, request)
    rows = max(1, min(request.rows, MAX_ROWS))
    runtime = call.runtime
    if request.follow:
        demand_watch(call)
    following = _Following(call, replace(request, runs=list(wanted.runs)), wanted) if request.follow else None
    is_wanted = call.defer()

    async def read() -> EventPage:
        await runtime.ledger.flush()
        page = partial(read_event_page, runtime.ledger.file.directory, wanted, request, rows)
        return await runtime.background.walk(page, call.connection.groups.all)

    def done(page: EventPage) -> None:
        answered = is_wanted()
        if answered:
            call.reply(page)
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
            call.fail(*told(error))

    runtime.background.answer(read, done, failed, EXPECTED)


def _filter(call: Call, request: Events) -> EventFilter:
    check_most("runs", len(request.runs), MAX_CHOSEN)
    check_most("patterns of types", len(request.types), MAX_CHOSEN)
    for pattern in request.types:
        check_most("characters in a pattern of types", len(pattern), MAX_PATTERN)
    if request.since is not None and not abs(request.since) <= MAX_SECONDS:  # also false for a NaN
        raise bad_request(f"since must be Unix seconds, at most {MAX_SECONDS:.0f} from 1970")
    if request.after is not None and not 0 <= request.after < 2**63:
        raise bad_request(f"after = {request.after} is no number of an event")
    milestones = request.milestones or "run_progress" in request.types
    runs: list[RunId] = [call.resolve(run).id for run in request.runs]
    return EventFilter(call.scope, tuple(runs), tuple(request.types), request.severity, request.since, milestones)


class _Following:
    """One client that follows, from the moment before the ledger is read for it."""

    def __init__(self, call: Call, request: Events, wanted: EventFilter) -> None:
        self._call = call
        self._request = request
        self._wanted = wanted
        self._early: list[Event] | None = []
        """What came before `begin`."""
        self._unfollow = call.runtime.announcer.feed.follow(lambda: call.scope, self._take)
        call.services.bounds.watches.add(call.connection.groups, 1)

    def begin(self, after: int) -> None:
        """Push what came meanwhile with a higher number, and everything from now on."""
        if self._call.connection.closed:
            self.forget()
            return
        self._request.after = after
        self._call.connection.pending[self._call.id] = Pending(self._request, self.forget)
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
        self._call.connection.send(EventPush(id=self._call.id, event=event))

    def forget(self) -> None:
        self._unfollow()
        self._call.services.bounds.watches.add(self._call.connection.groups, -1)
