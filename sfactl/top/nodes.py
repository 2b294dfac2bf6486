"""The runs of all nodes of a fleet, as `app` takes them from one daemon."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Literal

from msgspec.structs import replace

from sfad.protocol import messages as m
from sfad.protocol.types import AlertState, Event, RunId, RunInfo

from ..connection import connect
from ..exits import Quit
from ..fleet import Fleet, merged
from ..fleet_calls import FleetCalls, on_node
from ..growing import of_node
from .daemon import Feed, R, Show, Tail, Take, Told

LOOK_AGAIN = 10.0
"""Seconds between two looks for nodes that have joined, or that did not answer before."""


class Nodes:
    of_fleet = True

    def __init__(self, fleet: Fleet, wanted: m.WatchRuns) -> None:
        """Connect to each node, and receive the first runs. Nodes that do not answer are asked
        again later."""
        self._fleet, self._wanted = fleet, wanted
        self._feeds: dict[str, Feed] = {}
        self._away: dict[str, str] = {}
        """Nodes that cannot be asked, and why."""
        self._lock = threading.Lock()
        """Feeds call from threads of their own."""
        self._calls = FleetCalls(fleet)
        self._names = self._calls.names
        self._known: dict[str, dict[RunId, RunInfo]] = {}
        """What each node has told, by its ids."""
        self._states: dict[str, m.DaemonStatus] = {}
        self._connect()
        self.first = self._all()

    def _connect(self) -> dict[str, Feed]:
        """Connect to the nodes without a feed. Return the feeds that there are now, too."""
        found, silent = self._fleet.each(
            lambda node: Feed(self._fleet.place(node), replace(self._wanted)), without=self._feeds
        )
        with self._lock:
            self._away |= silent
            for node, feed in found.items():
                self._away.pop(node, None)
                self._learn(node, feed.first.runs, whole=True)
            self._feeds |= found
        return found

    # ---- what the nodes tell

    def _learn(self, node: str, runs: Iterable[RunInfo], *, whole: bool) -> None:
        runs = list(runs)
        self._names.learn(node, runs)
        before = {} if whole else self._known.get(node, {})
        self._known[node] = before | {run.id: run for run in runs}

    def _all(self) -> m.RunList:
        rows = merged({node: list(runs.values()) for node, runs in self._known.items()})
        return m.RunList(id=0, runs=[on_node(node, run) for node, run in rows])

    def start(self, take: Take, away: Callable[[str], object]) -> None:
        for node, feed in self._feeds.items():
            feed.start(partial(self._take, node, take), partial(self._is_away, node, away))
        if self._away:
            away(self._words())
        threading.Thread(target=self._look, args=(take, away), name="nodes", daemon=True).start()

    def _look(self, take: Take, away: Callable[[str], object]) -> None:
        """Add nodes that have joined."""
        while True:
            time.sleep(LOOK_AGAIN)
            with self._lock:
                before = self._words()
            with suppress(Quit, OSError):  # the feed of this node tells that its daemon is away
                self._fleet.look()
                found = self._connect()
                with self._lock:
                    words = self._words()
                if words != before:
                    away(words)
                if found:
                    with self._lock:
                        runs = self._all()
                    take(runs)
                for node, feed in found.items():
                    feed.start(partial(self._take, node, take), partial(self._is_away, node, away))

    def _is_away(self, node: str, away: Callable[[str], object], why: str) -> None:
        with self._lock:
            if why:
                self._away[node] = why
            else:
                self._away.pop(node, None)
            words = self._words()
        away(words)

    def _words(self) -> str:
        return "; ".join(f"node {node}: {why}" for node, why in sorted(self._away.items()))

    def _take(self, node: str, take: Take, told: Told) -> None:
        """Pass on what a node tells, with the names of the fleet."""
        with self._lock:
            if isinstance(told, m.DaemonStatus):
                self._states[node] = told
                take(self._state())
                return
            self._learn(node, told.runs, whole=isinstance(told, m.RunList))
            if isinstance(told, m.RunList):  # the node was away
                take(self._all())
                return
            changed = [
                on_node(node, self._names.named(node, run))
                for run in told.runs
                if not self._names.is_told_by_another(run)
            ]
            take(m.RunsPush(id=0, runs=changed))

    def _state(self) -> m.DaemonStatus:
        """Return the state of this node's daemon, with the alerts of all nodes. Costs are its own:
        that of a run on another node is told by both, once it has ended."""
        own = self._states.get(self._fleet.own) or next(iter(self._states.values()))
        return replace(own, alerts=list(self._alerts()))

    def _alerts(self) -> Iterator[AlertState]:
        for node, state in self._states.items():
            for alert in state.alerts:
                yield replace(alert, run_id=alert.run_id and self._names.of(node, alert.run_id))

    # ---- what is asked of them

    def call(self, request: m.Request, expected: type[R]) -> R:
        """Ask the node that decides about the run of the request; without a run, this one."""
        if isinstance(request, m.Events):
            page = self._events(request)
            assert isinstance(page, expected)
            return page
        return self._calls.call(request, expected)

    def _events(self, request: m.Events) -> m.EventPage:
        """Return the newest events of all nodes that answer."""
        found, _ = self._fleet.each(
            lambda node: (node, self._calls.ask(node, replace(request), m.EventPage).events)
        )
        with self._lock:
            events: list[Event] = [
                replace(event, run_id=event.run_id and self._names.of(node, event.run_id))
                for node, page in found.values()
                for event in page
            ]
        events.sort(key=lambda event: event.time.timestamp() if event.time else 0.0)
        return m.EventPage(id=0, events=events[-request.rows :], reached=0)

    def tail(self, run: RunId, show: Show, *, stderr: bool) -> Tail:
        return NodeTail(self._fleet, run, stderr=stderr, show=show)


class NodeTail(Tail):
    """Reads the output in pieces, wherever the run is."""

    def __init__(self, fleet: Fleet, run: RunId, *, stderr: bool, show: Show) -> None:
        self._fleet, self._run = fleet, run
        self._stream: Literal["stdout", "stderr"] = "stderr" if stderr else "stdout"
        super().__init__(show)

    def _copy(self) -> None:
        node, run = self._fleet.find(self._run, "logs")
        with connect(self._fleet.place(node)) as client:
            self._pass_on(of_node(client, run, self._stream))
