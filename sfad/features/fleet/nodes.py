"""The nodes of the fleet, and how each is asked: as a client outside any run, on a connection for
each question.

No question waits for a node that does not answer. All are asked at once, and once this node's own
daemon has answered, each other one has as long as `Pace` grants it. Of a large fleet, this daemon
asks some nodes, and each of these asks others for it (`Relay`)."""

import math
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from datetime import datetime
from typing import Generic, TypeVar

import trio
from msgspec.structs import replace

from ...core.state.access import EVERYTHING
from ...durable.snapshots import RetryingStore
from ...host.clock import wall_clock
from ...protocol import messages as m
from ...protocol.errors import RequestError, bad_request
from ...protocol.framing import ProtocolError, pack
from ...protocol.requests.base import unpack_reply
from ...protocol.types import FleetPlace, RunInfo
from ...storage.ledger.queries import Page
from .messages import FleetTold, Relay, Relayed
from .node import NOT_JOINED, Fleet, NotConnected
from .pace import LEAST, UNKNOWN

R = TypeVar("R", bound=m.Reply)

OWN = 5.0
"""Seconds that this node's own daemon has to answer itself. A machine that is so busy cannot tell
whether others are slow."""
ANSWER = 10.0
"""Seconds for an answer that takes work: of a node that is known to live."""
PROBE = 2.0
"""Seconds between two questions whether a node lives that has such work."""
SILENT = "does not answer"
"""Why, of a node that has not answered."""
LOOK = 10.0
"""Seconds between two looks whether nodes have joined."""
HEARD = 20_000
"""Runs of other nodes that are kept at most."""
PAUSE, PAUSE_MAX = 0.5, 10.0
"""Seconds until a node whose connection was lost is asked again: doubled each time."""
FAN = 32
"""Nodes that are asked directly at most."""
SAVED = "fleet_nodes"
"""The key in the spool: the names of the nodes that are known."""


class Nodes:
    def __init__(self, fleet: Fleet, values: RetryingStore) -> None:
        self.fleet = fleet
        self.own = fleet.node
        self._values = values
        saved = values.items.get(SAVED, b"").decode().split()
        self.names = list(dict.fromkeys([*saved, self.own])) if fleet.enabled else []
        """Those that are known, also while they do not answer, and when this daemon has started
        again."""
        self.trouble: str | None = None
        """Why it is not known which nodes there are now."""
        self._looked_at = -math.inf
        self._wait_until = -math.inf
        """When the answer to the last look is not waited for any more."""
        self._told = trio.Event()
        self._heard: dict[str, tuple[datetime, list[RunInfo]]] = {}
        """The live runs of each node as it has told of all of them, and when."""
        self._heard_in_all = 0
        self._answered_at: dict[str, datetime] = {}

    # ---- which there are

    async def serve(self) -> None:
        """Learn which nodes there are whenever this one has joined, until cancelled: when they are
        asked for, Ray may not answer."""
        while True:
            await self.fleet.connected.wait()
            with suppress(OSError):
                await self.look()
            self._looked_at = -math.inf  # others may join just after it
            await self.fleet.disconnected.wait()

    async def look(self) -> None:
        """Learn of nodes that have joined, where that takes no time. Raise `NotConnected` if this
        daemon is in no fleet."""
        if not self.fleet.enabled:
            raise NotConnected(NOT_JOINED)
        is_alone = len(self.names) < 2
        if trio.current_time() - self._looked_at > LOOK or (is_alone and self._told.is_set()):
            patience = UNKNOWN if is_alone else UNKNOWN / 10
            self._wait_until = trio.current_time() + patience
            self._looked_at, self._told = trio.current_time(), trio.Event()
            try:
                self.fleet.ask_nodes(self._learn)
            except OSError as error:
                self._miss(str(error))
        with trio.move_on_at(self._wait_until):
            await self._told.wait()

    def _learn(self, told: FleetTold) -> None:
        if told.refused is not None:
            self._miss(told.refused)
            return
        self.trouble = None
        self.learn(node.name for node in told.nodes)
        self._told.set()

    def learn(self, names: Iterable[str]) -> None:
        """Note nodes that there are."""
        if new := [name for name in names if name not in self.names]:
            self.names = sorted([*self.names, *new])
            self._values.write_soon({SAVED: "\n".join(self.names).encode()})

    def _miss(self, why: str) -> None:
        self.trouble, self._looked_at = why, -math.inf
        self._told.set()

    @property
    def unknown(self) -> dict[str, str]:
        """Return what an answer of all nodes lacks where no other node is known."""
        if self.names != [self.own] or (self._told.is_set() and self.trouble is None):
            return {}
        return {"?": f"other nodes are not known: {self.trouble or 'Ray has not answered yet'}"}

    # ---- questions

    async def ask(
        self, node: str, request: m.Request, expected: type[R], within: float | None = None
    ) -> R:
        """Return the answer of a node. `within`: seconds that it has for it, if that takes work.
        Raise `RequestError`, `OSError`."""
        if within is None:
            least = OWN if node == self.own else LEAST
            return await self.ask_briefly(
                node, request, expected, max(least, self.fleet.pace.patience(node))
            )
        reply = await self.fleet.pass_on(node, request, within)
        self.note_answer(node)
        return _expected(node, reply, expected)

    async def ask_briefly(
        self, node: str, request: m.Request, expected: type[R], within: float = OWN
    ) -> R:
        """Do what `ask` does, with a request that takes no work: how long it takes tells how long
        others may."""
        reply = await self.fleet.pass_on(node, request, within, brief=True)
        self.note_answer(node)
        return _expected(node, reply, expected)

    async def ask_living(
        self, node: str, request: m.Request, expected: type[R], within: float
    ) -> R:
        """Do what `ask` does with a request that takes long, but only as long as the node answers
        others. Raise `RequestError`, `OSError`."""
        found: list[R] = []
        failed: list[RequestError | OSError] = []

        async def probe() -> None:
            while True:
                try:
                    with suppress(RequestError):  # a node that refuses lives
                        await self.ask(node, m.Select(id=0, verb="list"), m.Reply)
                except OSError as error:
                    failed.append(error)
                    nursery.cancel_scope.cancel()
                await trio.sleep(PROBE)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(probe)
            try:
                found.append(await self.ask(node, request, expected, within))
            except (RequestError, OSError) as error:
                failed.append(error)
            nursery.cancel_scope.cancel()
        if not found:
            raise failed[0]
        return found[0]

    @property
    def patience(self) -> float:
        """Seconds to wait for the first word of all nodes, once this one's own daemon has told."""
        return max(map(self.fleet.pace.patience, self.names), default=UNKNOWN)

    def note_answer(self, node: str) -> None:
        self._answered_at[node] = wall_clock()

    def answered_at(self, node: str) -> datetime | None:
        """Return when a node has answered last, to this daemon."""
        return self._answered_at.get(node)

    def since(self, node: str) -> str:
        """Return words about how long a node has not answered."""
        at = self._answered_at.get(node)
        return (
            f"{SILENT}" if at is None else f"{SILENT}; heard of last at {at.astimezone():%H:%M:%S}"
        )

    async def each(
        self,
        wanted: Callable[[str], m.Request],
        expected: type[R],
        *,
        without: Collection[str] = (),
        ask: Callable[[str, m.Request, type[R]], Awaitable[R]] | None = None,
    ) -> tuple[dict[str, R], dict[str, str]]:
        """Return what each node answers to the request that `wanted` returns for it, and why others
        have not answered. `ask`: how each is asked, if it has longer than is right for a question.
        Raise `OSError` if this daemon is in no fleet."""
        await self.look()
        nodes = [node for node in self.names if node not in without]
        question: Question[R] = Question(self, expected, ask)
        found, failed = await question.ask(nodes, wanted)
        return {node: found[node] for node in nodes if node in found}, failed | self.unknown

    async def each_of(
        self,
        nodes: Iterable[str],
        wanted: Callable[[str], m.Request],
        expected: type[R],
        ask: Callable[[str, m.Request, type[R]], Awaitable[R]],
    ) -> tuple[dict[str, R], dict[str, str]]:
        """Do what `each` does with the nodes that a client has named. Raise the first
        `RequestError`: one means what was asked for."""
        found: dict[str, R] = {}
        failed: dict[str, str] = {}
        refused: list[RequestError] = []

        async def one(node: str) -> None:
            try:
                found[node] = await ask(node, wanted(node), expected)
            except RequestError as error:
                refused.append(error)
            except OSError as error:
                failed[node] = _why(node, error)

        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(one, node)
        if refused:
            raise refused[0]
        return found, failed

    async def relay(self, request: Relay) -> Relayed:
        """Ask nodes for another one that has many to ask, and return their answers. Raise
        `RequestError`."""
        try:
            asks = {node: m.unpack_request(data) for node, data in request.asks.items()}
        except ProtocolError as error:
            raise bad_request(str(error)) from error
        answers: dict[str, bytes] = {}
        within = min(request.within, OWN)

        async def ask(node: str, wanted: m.Request) -> None:
            try:
                reply: m.Reply = await self.ask_briefly(node, wanted, m.Reply, within)
            except RequestError as error:
                reply = m.Error(id=0, code=error.code, message=str(error))
            except OSError:
                return
            answers[node] = pack(reply)

        async with trio.open_nursery() as nursery:
            for node, wanted in asks.items():
                nursery.start_soon(ask, node, wanted)
        return Relayed(id=0, answers=answers)

    # ---- what was heard

    def note_heard(self, node: str, runs: Iterable[RunInfo], at: datetime) -> None:
        """Keep the live runs among all runs that a node has told of, for the time when it does not
        answer."""
        live = [run for run in runs if not run.status.terminal]
        _, before = self._heard.pop(node, (at, ()))
        self._heard_in_all -= len(before)
        if len(live) + self._heard_in_all <= HEARD:
            self._heard[node] = at, live
            self._heard_in_all += len(live)

    def heard(self, node: str, wanted: m.List) -> list[RunInfo]:
        """Return the live runs that a request asks for as this node told of them last, with that
        time."""
        page = Page(wanted, EVERYTHING)
        return [run for run in self._as_heard(node) if page.admits(run, None, ())]

    def heard_of(self, node: str, run_id: str) -> RunInfo | None:
        """Return a live run as its node told of it last."""
        return next((run for run in self._as_heard(node) if run_id in (run.id, run.name)), None)

    def _as_heard(self, node: str) -> list[RunInfo]:
        at, runs = self._heard.get(node, (None, ()))
        return [
            replace(run, fleet=replace(run.fleet or FleetPlace(), unreachable_since=at))
            for run in runs
        ]

    # ---- what is followed

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
            self.note_answer(node)
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


class Question(Generic[R]):
    """One question to many nodes. What has not come when its time is over has not been answered."""

    def __init__(
        self,
        nodes: Nodes,
        expected: type[R],
        ask: Callable[[str, m.Request, type[R]], Awaitable[R]] | None,
    ) -> None:
        self._nodes, self._expected = nodes, expected
        self._ask = ask or nodes.ask_briefly
        self._bounded = ask is None
        self._found: dict[str, R] = {}
        self._failed: dict[str, str] = {}
        self._scopes: dict[str, trio.CancelScope] = {}
        self._own_took: float | None = None
        """Seconds that this node's own daemon has taken, once it has answered."""

    async def ask(
        self, nodes: list[str], wanted: Callable[[str], m.Request]
    ) -> tuple[dict[str, R], dict[str, str]]:
        """Return what the nodes answer, and why others have not."""
        own = self._nodes.own
        others = [node for node in nodes if node != own]
        groups = _groups(others) if self._bounded else [[node] for node in others]
        async with trio.open_nursery() as nursery:
            for group in groups:
                nursery.start_soon(self._ask_group, group, wanted)
            began = trio.current_time()
            if own in nodes:
                await self._one(own, wanted(own))
            if self._bounded:
                # on a busy machine all answers take as long as this node's own one
                self._own_took = trio.current_time() - began
                for node, scope in self._scopes.items():
                    self._bound(node, scope)
        return self._found, self._failed

    def _bound(self, node: str, scope: trio.CancelScope) -> None:
        """Give a node its time, from now on."""
        if self._own_took is not None:
            patience = max(self._patience(node), self._own_took)
            scope.deadline = min(scope.deadline, trio.current_time() + patience)

    def _patience(self, node: str) -> float:
        return self._nodes.fleet.pace.patience(node)

    async def _ask_group(self, group: list[str], wanted: Callable[[str], m.Request]) -> None:
        """Ask the first node of a group, for all of them if there are more. Those of which it has
        not told in half of the time are asked themselves."""
        first, *rest = group
        if not rest:
            await self._one(first, wanted(first))
            return
        asks = {node: pack(wanted(node)) for node in group}
        half, told = self._patience(first) / 2, Relayed(id=0, answers={})
        with suppress(RequestError, OSError):
            relay = Relay(id=0, asks=asks, within=half / 2)
            told = await self._nodes.ask_briefly(first, relay, Relayed, half)
        async with trio.open_nursery() as nursery:
            for node in group:
                if node not in told.answers:
                    nursery.start_soon(self._one, node, wanted(node))
        for node, data in told.answers.items():
            try:
                self._found[node] = _expected(node, unpack_reply(data), self._expected)
                self._nodes.note_answer(node)
            except (RequestError, OSError, ProtocolError) as error:
                self._failed[node] = _why(node, error)

    async def _one(self, node: str, request: m.Request) -> None:
        scope = self._scopes[node] = trio.CancelScope()
        self._bound(node, scope)
        with scope:
            try:
                self._found[node] = await self._ask(node, request, self._expected)
            except (RequestError, OSError) as error:
                self._failed[node] = _why(node, error)
        if scope.cancelled_caught:
            self._failed[node] = self._nodes.since(node)


def _groups(nodes: list[str]) -> list[list[str]]:
    """Return the nodes in so many groups as may be asked directly, each of one where they are
    few."""
    count = min(FAN, len(nodes))
    return [nodes[n::count] for n in range(count)]


def _expected(node: str, reply: m.Reply, expected: type[R]) -> R:
    if isinstance(reply, m.Error):
        raise RequestError(reply.code, reply.message)
    if not isinstance(reply, expected):
        raise OSError(f"node {node} answered {type(reply).__name__}")
    return reply


def _why(node: str, error: Exception) -> str:
    """Return why a node has not answered, to be said after its name."""
    return str(error).removeprefix(f"node {node} ")
