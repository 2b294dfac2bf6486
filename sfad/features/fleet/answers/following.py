"""Runs and events of all nodes as they change."""

from collections.abc import Iterable
from datetime import datetime

import trio
from msgspec.structs import replace

from ....daemon.server.asker import Asker
from ....host.clock import wall_clock
from ....protocol import messages as m
from ....protocol.errors import bad_request
from ....protocol.types import Event, RunId, RunInfo, Status
from ..nodes import OWN, SILENT, Nodes
from .names import Names
from .sums import cursor_of, events_of, reached_of

# ---- Runs

PUSHES = 0.25
"""Seconds between two pushes of changed runs."""
ENDED = 1000
"""Ended runs of a node that are kept while a client watches."""


class Watching:
    """One client that watches the runs of all nodes. The rows of a node that does not answer are
    shown as they were heard, with that time."""

    def __init__(self, nodes: Nodes, names: Names, asker: Asker, request: m.WatchRuns) -> None:
        self._nodes, self._names, self._asker, self._request = nodes, names, asker, request
        self._known: dict[str, dict[RunId, RunInfo]] = {}
        """What each node has told, by its ids."""
        self._left_out: dict[str, int] = {}
        """Queued runs that each node has only counted."""
        self._heard_at: dict[str, datetime] = {}
        self._away: dict[str, str] = {}
        self._waiting: dict[RunId, RunInfo] = {}
        """What has changed since the last push, by the names of the fleet."""
        self._all_again = False
        self._changed, self._own, self._complete = trio.Event(), trio.Event(), trio.Event()

    async def serve(self) -> None:
        await self._nodes.look()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                self._nodes.follow_all, lambda _: replace(self._request), self._take, self._lose
            )
            with trio.move_on_after(OWN):
                await self._own.wait()
            with trio.move_on_after(self._nodes.patience):
                await self._complete.wait()
            for node in set(self._nodes.names) - self._known.keys() - self._away.keys():
                self._away[node] = SILENT
            self._away |= self._nodes.unknown
            self._all_again = False
            if not self._asker.still_wanted():
                nursery.cancel_scope.cancel()
                return
            connection = self._asker.connection
            self._asker.end()
            connection.send(self._everything(), changed=True)
            while True:
                await self._changed.wait()
                if not connection.unsent:
                    self._changed = trio.Event()
                    connection.send(self._news(), changed=True)
                await trio.sleep(PUSHES)

    def _news(self) -> m.Reply:
        again, self._all_again = self._all_again, False
        changed, self._waiting = list(self._waiting.values()), {}
        if again:
            return self._everything()
        return m.RunsPush(
            id=self._asker.id, runs=changed, queued=self._queued, unanswered=dict(self._away)
        )

    def _everything(self) -> m.RunList:
        shown: dict[RunId, RunInfo] = {}
        for node, runs in self._known.items():
            for run in runs.values():
                if self._is_shown(node, run) and (named := self._named(node, run)).id not in shown:
                    shown[named.id] = named
        rows = sorted(shown.values(), key=lambda run: run.created_at)
        return m.RunList(
            id=self._asker.id, runs=rows, queued=self._queued, unanswered=dict(self._away)
        )

    @property
    def _queued(self) -> int:
        """Queued runs that nodes have left out."""
        return sum(self._left_out.values())

    def _is_shown(self, node: str, run: RunInfo) -> bool:
        """Return whether no node that answers knows better about the run."""
        there = run.fleet.node if run.fleet is not None else None
        return there in self._away or not self._names.is_told_by_another(node, run)

    def _named(self, node: str, run: RunInfo) -> RunInfo:
        named = self._names.run(node, run)
        if node in self._away and not run.status.terminal and named.fleet is not None:
            heard = replace(named.fleet, unreachable_since=self._heard_at[node])
            named = replace(named, fleet=heard)
        return named

    def _take(self, node: str, reply: m.Reply) -> None:
        whole = isinstance(reply, m.RunList)
        if not isinstance(reply, m.RunList | m.RunsPush):
            return
        self._heard_at[node] = wall_clock()
        if whole:
            self._names.forget(node)
        self._names.learn(node, reply.runs)
        known = {} if whole else self._known[node]
        for run in reply.runs:
            known.pop(run.id, None)  # to the end: the oldest go first
            known[run.id] = run
        self._known[node] = known if whole else _bounded(known)
        self._left_out[node] = reply.queued
        self._all_again |= whole or self._away.pop(node, None) is not None
        if whole:
            self._away.pop(node, None)
        if not self._all_again:
            named = [self._named(node, run) for run in reply.runs if self._is_shown(node, run)]
            self._waiting |= {run.id: run for run in named}
        self._note_change()

    def _lose(self, node: str, why: str) -> None:
        if node not in self._away:
            self._all_again = True
            whole = m.WatchRuns(
                id=self._request.id, rows=self._request.rows, queued=self._request.queued
            )
            if node in self._known and self._request == whole:
                self._nodes.note_heard(node, self._known[node].values(), self._heard_at[node])
        self._away[node] = why
        self._note_change()

    def _note_change(self) -> None:
        self._changed.set()
        if self._nodes.own in self._known.keys() | self._away.keys():
            self._own.set()
        if self._known.keys() | self._away.keys() >= set(self._nodes.names):
            self._complete.set()


def _bounded(known: dict[RunId, RunInfo]) -> dict[RunId, RunInfo]:
    """Return what is known of runs without the oldest ended ones, if there are many."""
    ended = [run.id for run in known.values() if run.status.terminal]
    if len(ended) <= 2 * ENDED:
        return known
    forgotten = set(ended[:-ENDED])
    return {id_: run for id_, run in known.items() if id_ not in forgotten}


# ---- Events

_LIVE = [status for status in Status if not status.terminal]


async def tell_events(nodes: Nodes, names: Names, asker: Asker, request: m.Events) -> None:
    """Answer with the events of all nodes, and go on with what happens, if the request follows."""
    if request.after or request.before:
        raise bad_request(
            "the nodes of a fleet number their events each for itself: "
            "say since which time, or follow them from now on"
        )
    reached = reached_of(request.cursor)
    begins = request.since is not None or request.after is not None or bool(request.cursor)

    def wanted(node: str) -> m.Events:
        after = reached.get(node, request.after)
        if after is None and request.since is not None:
            after = 0
        return replace(request, after=after, follow=False, cursor="")

    live = m.List(id=0, status=_LIVE, rows=0)
    runs, failed = await nodes.each(lambda _: live, m.RunList)
    for node, told in runs.items():
        names.learn(node, told.runs)
    pages, unanswered = await nodes.each(wanted, m.EventPage, without=failed)
    unanswered |= failed
    found = events_of(pages, reached, names, None if begins else request.rows)
    found.id, found.unanswered = asker.id, unanswered
    if not asker.still_wanted():
        return
    asker.end()
    asker.connection.send(found, changed=True)
    if request.follow and not found.more:
        await _follow(nodes, names, asker, request, reached)


async def _follow(
    nodes: Nodes, names: Names, asker: Asker, request: m.Events, reached: dict[str, int]
) -> None:
    def wanted(node: str) -> m.Events:
        # of a node that joins, what happens from now on
        rows = m.Events(id=0).rows if node in reached else 1
        return replace(request, after=reached.get(node), rows=rows, cursor="", since=None)

    def take(node: str, reply: m.Reply) -> None:
        match reply:
            case m.EventPage():
                if node in reached:
                    tell(node, reply.events)
                reached[node] = reply.reached
                if reply.more:
                    raise ConnectionAbortedError("there is more")  # it is asked for at once
            case m.EventPush():
                tell(node, [reply.event])

    def tell(node: str, events: Iterable[Event]) -> None:
        for event in events:
            reached[node] = event.number
            asker.connection.send(
                m.EventPush(id=asker.id, event=names.event(node, event), cursor=cursor_of(reached)),
                changed=True,
            )

    await nodes.follow_all(wanted, take, lambda _node, _why: None)
