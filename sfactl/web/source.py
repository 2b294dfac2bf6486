"""What the pages ask: a daemon; `nodes` has those of a fleet.

Each request is made in a worker thread, on a connection of its own.
"""

from collections.abc import Callable, Collection, Iterable, Sequence, Set
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import trio

from sfad.protocol import messages as m
from sfad.protocol.requests.advice import Summary
from sfad.protocol.types import RunId, RunInfo

from ..connection import Client, call, connect

T = TypeVar("T")
R = TypeVar("R", bound=m.Reply)

AT_ONCE = trio.CapacityLimiter(32)
"""Requests at once. A stop waits for the last process; it must not keep other requests waiting."""


async def in_thread(work: Callable[[], T]) -> T:
    """Return what `work` returns. If this is cancelled, the thread goes on, and its result is dropped."""
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
        """Return the daemon's reply. Raise `Quit`, `OSError`. If the call is cancelled, the request is not withdrawn."""

    def connect(self, node: str) -> Client:
        """Return a connection to a node's daemon. It may block. Raise `Quit`."""

    async def find(self, run: RunId) -> tuple[str, RunId]:
        """Return the node where a run executes, and its id there. Raise `Quit`."""

    def of_path(self, text: str) -> RunId:
        """Return the run that a path names."""

    def name(self, node: str, run: RunId) -> RunId:
        """Return how pages name a run, by its id on a node."""

    def told(self, node: str, runs: Iterable[RunInfo], away: Set[str], *, whole: bool) -> list[RunInfo]:
        """Return what to show of the runs that a node tells of. `away`: nodes that do not answer; `whole`: these are all."""

    async def page(self, wanted: m.List) -> HistoryPage:
        """Return the newest ended runs, or those before `wanted.before`, and the live ones with the first page. Raise `Quit`."""

    async def summary(self, wanted: m.Summarise, without: Collection[str] = ()) -> tuple[Summary, list[str]]:
        """Return what runs have cost, and the nodes that did not answer. `without`: do not ask these nodes. Raise `Quit`."""


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

    def told(self, node: str, runs: Iterable[RunInfo], away: Set[str], *, whole: bool) -> list[RunInfo]:  # noqa: ARG002
        return list(runs)

    async def page(self, wanted: m.List) -> HistoryPage:
        page = await self.ask(wanted, m.RunList)
        return HistoryPage(page.runs, page.next, [])

    async def summary(self, wanted: m.Summarise, without: Collection[str] = ()) -> tuple[Summary, list[str]]:  # noqa: ARG002
        return (await self.ask(wanted, m.Summarised)).summary, []
