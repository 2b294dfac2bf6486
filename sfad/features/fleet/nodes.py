"""The nodes of the fleet, and how each is asked: as a client outside any run, on a connection for
each question. A node that hangs delays nobody for long: it has `ANSWER` seconds once, and `AGAIN`
from then on until it answers."""

import math
from collections.abc import Awaitable, Callable, Collection, Iterable
from datetime import datetime
from typing import TypeVar

import trio
from msgspec.structs import replace

from ...core.state.access import EVERYTHING
from ...protocol import messages as m
from ...protocol.errors import RequestError
from ...protocol.types import FleetPlace, RunInfo
from ...storage.ledger.queries import Page
from .node import Fleet

T = TypeVar("T")
R = TypeVar("R", bound=m.Reply)

ANSWER = 10.0
"""Seconds that a node has for an answer."""
AGAIN = 0.5
"""Seconds that one has which has not answered the last question."""
SILENT = "does not answer"
"""Why, of such a node."""
LOOK = 10.0
"""Seconds between two looks whether nodes have joined."""
HEARD = 20_000
"""Runs of other nodes that are kept at most."""
PAUSE, PAUSE_MAX = 0.5, 10.0
"""Seconds until a node whose connection was lost is asked again: doubled each time."""


class Nodes:
    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.own = fleet.node
        self.names: list[str] = []
        """Those that are known, also while they do not answer."""
        self._looked = -math.inf
        self._silent: set[str] = set()
        self._heard: dict[str, tuple[datetime, list[RunInfo]]] = {}
        """The live runs of each node as it has told of all of them, and when."""

    async def look(self) -> None:
        """Learn of nodes that have joined. Raise `OSError` if none was ever known."""
        if trio.current_time() - self._looked < LOOK:
            return
        try:
            with trio.fail_after(ANSWER if not self.names else AGAIN):
                told = [node.name for node in await self.fleet.nodes()]
        except (OSError, trio.TooSlowError) as error:
            if not self.names:
                raise error if isinstance(error, OSError) else OSError(_NO_ACTOR) from None
            return
        self.names += [name for name in told if name not in self.names]
        self._looked = trio.current_time()

    async def ask(
        self, node: str, request: m.Request, expected: type[R], within: float = math.inf
    ) -> R:
        """Return the answer of a node. Raise `RequestError`, `OSError`."""
        reply = await self.fleet.pass_on(node, request, within)
        if isinstance(reply, m.Error):
            raise RequestError(reply.code, reply.message)
        if not isinstance(reply, expected):
            raise OSError(f"node {node} answered {type(reply).__name__}")
        return reply

    async def each(
        self,
        ask: Callable[[str], Awaitable[T]],
        without: Collection[str] = (),
        within: float = ANSWER,
    ) -> tuple[dict[str, T], dict[str, str]]:
        """Return what `ask` returns for each node, all at once, and why others have not answered.
        `within`: seconds that each has, if it has answered the last question. Raise `OSError`."""
        await self.look()
        found: dict[str, T] = {}
        failed: dict[str, str] = {}

        async def one(node: str) -> None:
            seconds = AGAIN if node in self._silent else within
            try:
                with trio.fail_after(seconds):
                    found[node] = await ask(node)
            except trio.TooSlowError:
                failed[node] = SILENT
                self._silent.add(node)
            except (RequestError, OSError) as error:
                failed[node] = _why(node, error)
            else:
                self._silent.discard(node)

        async with trio.open_nursery() as nursery:
            for node in self.names:
                if node not in without:
                    nursery.start_soon(one, node)
        return {node: found[node] for node in self.names if node in found}, failed

    def note_heard(self, node: str, runs: Iterable[RunInfo], at: datetime) -> None:
        """Keep the live runs among all runs that a node has told of, for the time when it does not
        answer."""
        live = [run for run in runs if not run.status.terminal]
        self._heard.pop(node, None)
        if len(live) + sum(len(kept) for _, kept in self._heard.values()) <= HEARD:
            self._heard[node] = at, live

    def heard(self, node: str, wanted: m.List) -> list[RunInfo]:
        """Return the live runs that a request asks for as this node told of them last, with that
        time."""
        at, runs = self._heard.get(node, (None, ()))
        page = Page(wanted, EVERYTHING)
        return [
            replace(run, fleet=replace(run.fleet or FleetPlace(), unreachable_since=at))
            for run in runs
            if page.admits(run, None, ())
        ]

    @property
    def patience(self) -> float:
        """Seconds to wait for the first word of all nodes."""
        return AGAIN if self._silent else ANSWER

    def note_silent(self, node: str) -> None:
        """Note that a node has not answered."""
        self._silent.add(node)

    async def follow_all(
        self,
        request: Callable[[str], m.Request],
        take: Callable[[str, m.Reply], object],
        lose: Callable[[str, str], object],
    ) -> None:
        """Ask each node, and those that join, and call `take` with what comes, until cancelled. If
        a connection is lost, call `lose` with the reason, and ask again."""
        followed: set[str] = set()
        async with trio.open_nursery() as nursery:
            while True:
                await self.look()
                for node in self.names:
                    if node not in followed:
                        followed.add(node)
                        nursery.start_soon(self._follow, node, request, take, lose)
                await trio.sleep(LOOK)

    async def _follow(
        self,
        node: str,
        request: Callable[[str], m.Request],
        take: Callable[[str, m.Reply], object],
        lose: Callable[[str, str], object],
    ) -> None:
        pause = PAUSE

        def heard(reply: m.Reply) -> None:
            nonlocal pause
            pause = PAUSE
            self._silent.discard(node)
            if isinstance(reply, m.Error):
                raise RequestError(reply.code, reply.message)
            take(node, reply)

        while True:
            try:
                await self.fleet.follow(node, request(node), heard)
            except (OSError, RequestError) as error:
                lose(node, _why(node, error))
            await trio.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX)


def _why(node: str, error: Exception) -> str:
    """Return why a node has not answered, to be said after its name."""
    return str(error).removeprefix(f"node {node} ")


_NO_ACTOR = "the fleet's actor does not answer; sfactl fleet status tells more"
