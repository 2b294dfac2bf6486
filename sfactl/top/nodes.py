"""The runs of all nodes of a fleet, as `app` takes them from one daemon."""

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Literal

from sfad.protocol import messages as m
from sfad.protocol.structs import replace
from sfad.protocol.types import RunId, RunInfo

from ..connection import connect
from ..fleet import Fleet, merged
from ..fleet_calls import FleetCalls
from ..output import note
from .daemon import BEFORE, LOOK, Feed, R, Show, Tail, Take, Told


class Nodes:
    def __init__(self, fleet: Fleet, wanted: m.WatchRuns) -> None:
        """Connect to each node, and receive the first runs. Nodes that do not answer are told of on stderr, and left out."""
        self._fleet = fleet
        self._feeds, unanswered = fleet.each(lambda node: Feed(fleet.place(node), wanted))
        for node, why in sorted(unanswered.items()):
            note(f"sfactl: node {node}: {why}")
        self._lock = threading.Lock()
        self._calls = FleetCalls(fleet)
        self._names = self._calls.names
        self._known: dict[str, dict[RunId, RunInfo]] = {}
        """By node."""
        for node, feed in self._feeds.items():
            self._learn(node, feed.first.runs, whole=True)
        self.first = self._all()

    def _learn(self, node: str, runs: Iterable[RunInfo], *, whole: bool) -> None:
        runs = list(runs)
        self._names.learn(node, runs)
        before = {} if whole else self._known.get(node, {})
        self._known[node] = before | {run.id: run for run in runs}

    def _all(self) -> m.RunList:
        return m.RunList(id=0, runs=[run for _, run in merged({node: list(runs.values()) for node, runs in self._known.items()})])

    def start(self, take: Take, away: Callable[[str], object]) -> None:
        for node, feed in self._feeds.items():
            feed.start(partial(self._take, node, take), lambda why, node=node: away(f"node {node}: {why}"))  # type: ignore[misc]

    def _take(self, node: str, take: Take, told: Told) -> None:
        """Pass on what a node tells, with the names of the fleet. The alerts and the cost that are shown are those of this node."""
        if isinstance(told, m.DaemonStatus):
            if node == self._fleet.own:
                alerts = [replace(each, run_id=each.run_id and f"{node}/{each.run_id}") for each in told.alerts]
                take(replace(told, alerts=alerts))
            return
        with self._lock:
            self._learn(node, told.runs, whole=isinstance(told, m.RunList))
            if isinstance(told, m.RunList):  # the node was away
                take(self._all())
                return
            changed = [self._names.named(node, run) for run in told.runs if not self._names.is_told_by_another(run)]
            take(m.RunsPush(id=0, runs=changed))

    def call(self, request: m.Request, expected: type[R]) -> R:
        return self._calls.call(request, expected)

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
        offset = -BEFORE
        with connect(self._fleet.place(node)) as client:
            while True:
                part = client.call(m.ReadOutput(id=0, run=run, stream=self._stream, offset=offset), m.OutputPart)
                self._tell(self._decoder.decode(part.data))
                offset = part.offset + len(part.data)
                if part.ended or (not part.data and self._rest(LOOK)):
                    return
