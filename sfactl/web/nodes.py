"""What the pages ask: the daemons of all nodes of a fleet. Runs are named NODE/ID, in a path NODE~ID."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from functools import partial

from sfad.protocol import messages as m
from sfad.protocol.requests.advice import Summary
from sfad.protocol.structs import replace
from sfad.protocol.types import RunId, RunInfo, Status

from ..connection import Client, connect
from ..exits import ExitCode, Quit
from ..fleet import Fleet
from ..fleet_calls import FleetCalls
from ..fleet_summary import added, with_node
from .source import HistoryPage, R, Source, T, in_thread

OVER = "-"
"""In a cursor of the history: the node has no more."""
KEPT = 1000
"""Accounts that are kept of runs which the node where they execute tells of: what is shown if it has lost them."""


class Nodes(Source):
    """All nodes of a fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._calls = fleet, FleetCalls(fleet)
        self.own = fleet.own
        self._givers: dict[str, dict[RunId, RunInfo]] = defaultdict(dict)
        """What the nodes that have granted runs told of them last, by the node where these execute."""

    @property
    def nodes(self) -> Sequence[str]:
        return self._fleet.names

    async def look(self) -> None:
        await in_thread(self._fleet.look)

    async def ask(self, request: m.Request, expected: type[R]) -> R:
        return await in_thread(partial(self._calls.call, request, expected))

    def connect(self, node: str) -> Client:
        return connect(self._fleet.place(node))

    async def find(self, run: RunId) -> tuple[str, RunId]:
        return await in_thread(partial(self._fleet.find, run, "info"))

    def of_path(self, text: str) -> str:
        return text.replace("~", "/", 1)

    def name(self, node: str, run: RunId) -> RunId:
        return self._calls.names.of(node, run)

    def told(self, node: str, runs: Iterable[RunInfo], away: Set[str], *, whole: bool) -> list[RunInfo]:
        runs, names = list(runs), self._calls.names
        if whole:
            names.forget(node)
        shown = []
        for run, named in zip(runs, self._calls.runs(node, runs), strict=True):
            place = run.fleet
            if place is None or place.node is None or place.node in away or not names.is_told_by_another(run):
                shown.append(named)
            else:
                self._keep(place.node, named)
        if whole:  # a run that this node has lost is told of by the one that has granted it
            known = {run.id for run in shown}
            shown += [run for run in self._givers.pop(node, {}).values() if run.id not in known]
        return shown

    def _keep(self, node: str, run: RunInfo) -> None:
        kept = self._givers[node]
        kept.pop(run.id, None)
        if not run.status.terminal or run.status is Status.LOST:
            kept[run.id] = run
        if len(kept) > KEPT:
            del kept[next(iter(kept))]

    # ---- the history

    async def _each(self, work: Callable[[str], T], without: Collection[str] = ()) -> tuple[dict[str, T], list[str]]:
        """Return what `work` returns for each node, and the nodes that did not answer. Raise `Quit` if none did."""
        found, unanswered = await in_thread(partial(self._fleet.each, work, without=without))
        if not found:
            raise Quit(ExitCode.UNREACHABLE, "; ".join(f"node {node}: {why}" for node, why in sorted(unanswered.items())))
        return found, sorted(unanswered)

    async def page(self, wanted: m.List) -> HistoryPage:
        """Return the runs of all nodes since the same time. The cursor has the last run of each node that has answered."""
        cursor = dict(each.split("/", 1) for each in (wanted.before or "").split(",") if "/" in each)
        left = cursor if wanted.before else dict.fromkeys(self.nodes, "")

        def ask(node: str) -> m.RunList:
            return self._calls.ask(node, replace(wanted, before=left[node] or None), m.RunList)

        over = [node for node in self.nodes if left.get(node, OVER) == OVER]
        found, unanswered = await self._each(ask, without=over)
        begins = max((_begin(page) for page in found.values() if page.next), default=0.0)
        shown: list[RunInfo] = []
        for node, page in found.items():
            live = [run for run in page.runs if not run.status.terminal]
            ended = [run for run in page.runs if run.status.terminal and run.created_at.timestamp() >= begins]
            if len(ended) + len(live) == len(page.runs):
                left[node] = page.next or OVER
            elif ended:
                left[node] = ended[0].id
            runs = ended if wanted.before else [*ended, *live]
            shown += [run for run in self._calls.runs(node, runs) if not _executes_on(run, found.keys() | over)]
        if not wanted.before:
            left = {node: last for node, last in left.items() if node in found}
        more = any(last != OVER for last in left.values())
        return HistoryPage(shown, ",".join(f"{node}/{last}" for node, last in left.items()) if more else None, unanswered)

    async def summary(self, wanted: m.Summarise, without: Collection[str] = ()) -> tuple[Summary, list[str]]:
        wanted = replace(wanted, here=True)

        def ask(node: str) -> Summary:
            return with_node(self._calls.ask(node, wanted, m.Summarised).summary, node)

        found, unanswered = await self._each(ask, without)
        return added(list(found.values())), unanswered


def _begin(page: m.RunList) -> float:
    """Return when the oldest ended run of a page was created."""
    return min((run.created_at.timestamp() for run in page.runs if run.status.terminal), default=0.0)


def _executes_on(run: RunInfo, nodes: Collection[str]) -> bool:
    """Return whether one of these nodes executes a run that another tells of."""
    return run.fleet is not None and run.fleet.node in nodes and bool(run.fleet.run)
