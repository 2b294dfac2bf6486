"""What the pages ask: a daemon, or the daemons of a fleet.

Each request is made in a worker thread, on a connection of its own.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import trio
from msgspec.structs import replace

from sfad.protocol import messages as m
from sfad.protocol.requests.summary import Summary
from sfad.protocol.types import RunId, RunInfo, Status

from ..connection import Client, call, connect
from ..exits import ExitCode, Quit
from ..fleet import Fleet
from ..fleet_calls import FleetCalls, added, with_node

T = TypeVar("T")
R = TypeVar("R", bound=m.Reply)

AT_ONCE = trio.CapacityLimiter(32)
"""Requests at once. A stop waits for the last process; it must not keep other requests waiting."""


async def in_thread(work: Callable[[], T]) -> T:
    """Return what `work` returns. If this is cancelled, the thread goes on, and its result is
    dropped."""
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=AT_ONCE)


class HistoryPage(NamedTuple):
    runs: list[RunInfo]
    next: str | None
    """`before` of the next page; `None`: this is the last."""
    unanswered: list[str]
    """Nodes whose runs are left out."""


class Source(Protocol):
    """Where runs come from."""

    own: str
    """The node of this console: it answers for what is about no run. Empty without a fleet."""

    @property
    def nodes(self) -> Sequence[str]:
        """All that are watched."""

    async def look(self) -> None:
        """Learn of nodes that have joined. Raise `Quit`."""

    async def ask(self, request: m.Request, expected: type[R]) -> R:
        """Return the daemon's reply. Raise `Quit`, `OSError`. If the call is cancelled, the request
        is not withdrawn."""

    def connect(self, node: str) -> Client:
        """Return a connection to a node's daemon. It may block. Raise `Quit`."""

    async def find(self, run: RunId) -> tuple[str, RunId]:
        """Return the node where a run executes, and its id there. Raise `Quit`."""

    def of_path(self, text: str) -> RunId:
        """Return the run that a path names."""

    def name(self, node: str, run: RunId) -> RunId:
        """Return how pages name a run, by its id on a node."""

    def told(
        self, node: str, runs: Iterable[RunInfo], away: Set[str], *, whole: bool
    ) -> list[RunInfo]:
        """Return what to show of the runs that a node tells of. `away`: nodes that do not answer;
        `whole`: these are all."""

    async def page(self, wanted: m.List) -> HistoryPage:
        """Return the newest ended runs, or those before `wanted.before`, and the live ones with the
        first page. Raise `Quit`."""

    async def summary(
        self, wanted: m.Summarise, without: Collection[str] = ()
    ) -> tuple[Summary, list[str]]:
        """Return what runs have cost, and the nodes that did not answer. `without`: do not ask
        these nodes. Raise `Quit`."""


class Daemon(Source):
    """One daemon."""

    def __init__(self, socket: str | None) -> None:
        """`socket`: as `--socket`."""
        self._socket = socket
        self.own = ""

    @property
    def nodes(self) -> Sequence[str]:
        return [self.own]

    async def look(self) -> None:
        pass

    async def ask(self, request: m.Request, expected: type[R]) -> R:
        return await in_thread(partial(call, self._socket, request, expected))

    def connect(self, node: str) -> Client:  # noqa: ARG002
        return connect(self._socket)

    async def find(self, run: RunId) -> tuple[str, RunId]:
        return self.own, run

    def of_path(self, text: str) -> RunId:
        return text

    def name(self, node: str, run: RunId) -> RunId:  # noqa: ARG002
        return run

    def told(
        self,
        node: str,  # noqa: ARG002
        runs: Iterable[RunInfo],
        away: Set[str],  # noqa: ARG002
        *,
        whole: bool,  # noqa: ARG002
    ) -> list[RunInfo]:
        return list(runs)

    async def page(self, wanted: m.List) -> HistoryPage:
        page = await self.ask(wanted, m.RunList)
        return HistoryPage(page.runs, page.next, [])

    async def summary(
        self,
        wanted: m.Summarise,
        without: Collection[str] = (),  # noqa: ARG002
    ) -> tuple[Summary, list[str]]:
        return (await self.ask(wanted, m.Summarised)).summary, []


# ---- The daemons of all nodes of a fleet. Runs are named NODE/ID, in a path NODE~ID


OVER = "-"
"""In a cursor of the history: the node has no more."""
KEPT = 1000
"""Accounts that are kept of runs which the node where they execute tells of: what is shown if it
has lost them."""


class Nodes(Source):
    """All nodes of a fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._calls = fleet, FleetCalls(fleet)
        self.own = fleet.own
        self._givers: dict[str, dict[RunId, RunInfo]] = defaultdict(dict)
        """What the nodes that have granted runs told of them last, by the node where these
        execute."""

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

    def told(
        self, node: str, runs: Iterable[RunInfo], away: Set[str], *, whole: bool
    ) -> list[RunInfo]:
        runs, names = list(runs), self._calls.names
        if whole:
            names.forget(node)
        shown = []
        for run, named in zip(runs, self._calls.runs(node, runs), strict=True):
            place = run.fleet
            if (
                place is None
                or place.node is None
                or place.node in away
                or not names.is_told_by_another(run)
            ):
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

    async def _each(
        self, work: Callable[[str], T], without: Collection[str] = ()
    ) -> tuple[dict[str, T], list[str]]:
        """Return what `work` returns for each node, and the nodes that did not answer. Raise `Quit`
        if none did."""
        found, unanswered = await in_thread(partial(self._fleet.each, work, without=without))
        if not found:
            raise Quit(
                ExitCode.UNREACHABLE,
                "; ".join(f"node {node}: {why}" for node, why in sorted(unanswered.items())),
            )
        return found, sorted(unanswered)

    async def page(self, wanted: m.List) -> HistoryPage:
        """Return the runs of all nodes since the same time. The cursor has the last run of each
        node that has answered."""
        cursor = dict(
            each.split("/", 1) for each in (wanted.before or "").split(",") if "/" in each
        )
        left = cursor if wanted.before else dict.fromkeys(self.nodes, "")

        def ask(node: str) -> m.RunList:
            return self._calls.ask(node, replace(wanted, before=left[node] or None), m.RunList)

        over = [node for node in self.nodes if left.get(node, OVER) == OVER]
        found, unanswered = await self._each(ask, without=over)
        begins = max((_begin(page) for page in found.values() if page.next), default=0.0)
        shown: list[RunInfo] = []
        for node, page in found.items():
            live = [run for run in page.runs if not run.status.terminal]
            ended = [
                run
                for run in page.runs
                if run.status.terminal and run.created_at.timestamp() >= begins
            ]
            if len(ended) + len(live) == len(page.runs):
                left[node] = page.next or OVER
            elif ended:
                left[node] = ended[0].id
            runs = ended if wanted.before else [*ended, *live]
            shown += [
                run
                for run in self._calls.runs(node, runs)
                if not _executes_on(run, found.keys() | over)
            ]
        if not wanted.before:
            left = {node: last for node, last in left.items() if node in found}
        more = any(last != OVER for last in left.values())
        return HistoryPage(
            shown,
            ",".join(f"{node}/{last}" for node, last in left.items()) if more else None,
            unanswered,
        )

    async def summary(
        self, wanted: m.Summarise, without: Collection[str] = ()
    ) -> tuple[Summary, list[str]]:
        wanted = replace(wanted, here=True)

        def ask(node: str) -> Summary:
            return with_node(self._calls.ask(node, wanted, m.Summarised).summary, node)

        found, unanswered = await self._each(ask, without)
        return added(list(found.values())), unanswered


def _begin(page: m.RunList) -> float:
    """Return when the oldest ended run of a page was created."""
    return min(
        (run.created_at.timestamp() for run in page.runs if run.status.terminal), default=0.0
    )


def _executes_on(run: RunInfo, nodes: Collection[str]) -> bool:
    """Return whether one of these nodes executes a run that another tells of."""
    return run.fleet is not None and run.fleet.node in nodes and bool(run.fleet.run)
