"""This daemon as a node of a fleet: its actor, the ways to other nodes, and what is said about
granted runs.

The daemon knows nothing of Ray. The node's actor has one connection to it (`serve_fleet`) and is
pushed what Ray is to do: reserve for a run, and pass on what comes through a socket to another
node. Through such a socket the daemon, or a client, speaks the ordinary protocol with the other
node's daemon.

What is said about grants is always the whole present state, never a change: a message that is lost,
repeated or late does no harm."""

import os
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Literal

import trio
from msgspec.structs import replace

from ...agents.setup_reader import NO_SETUPS
from ...core import events as e
from ...core.context import grace_of
from ...core.state.access import Peer
from ...core.state.account import Use
from ...core.state.money import to_nanos
from ...core.state.policy import Invalid
from ...core.state.request import Asked
from ...core.state.run import Run
from ...daemon.loop.seam import Heart
from ...host.clock import wall_clock
from ...processes import kernel
from ...processes.own_processes import keep
from ...protocol.conversation import Conversation, hello
from ...protocol.errors import RequestError
from ...protocol.framing import ProtocolError
from ...protocol.messages import (
    Error,
    Refused,
    RunReply,
    Select,
    Selected,
    Spawn,
    Welcome,
    pack_message,
)
from ...protocol.requests.base import Reply, Request
from ...protocol.types import ErrorCode, Reason, RunId, RunInfo, Ship, Status, Wanted
from ...runs.live import Live
from ...start.steps import CHANNELS
from .deciding import heard as h
from .deciding.giving import grant_of, limits_to_send, wanted_of
from .feature import SHIP, FleetConfig
from .files.kept import ShipRefused
from .files.sending import Shipping
from .messages import FleetPush, FleetTold, RunUse, ServeFleet, Tend, Tended
from .pace import LATE, OWED, Pace

# ---- A node, and its actor

Push = Callable[[FleetPush, Sequence[int]], None]
Told = Callable[[FleetTold], None]


NOT_JOINED = "this daemon is in no fleet: set fleet.address in its config (docs/fleet.md)"
PASSED_ON = 10.0
"""Seconds that a node has to answer a request that is passed on to it."""
KEPT = 10.0
"""Seconds for which a connection to a node stays open after the last question: a view asks again
every few seconds."""
BEAT = 5.0
"""Seconds within which a node that is followed, or executes runs of this one, is heard of."""
QUIET = BEAT
"""Seconds after which a node that is followed is asked whether it lives."""


TAKEN_WITHIN = 2.0
"""Seconds that a node which answers has to take a run, or to say what it owes."""
ACTOR = "the actor here"
"""This node's own actor, as one whose answers have a pace."""
PLACED_WITHIN = 1.0
"""Seconds that the actor has to tell whether a node can take a run."""
_NO_ACTOR = "the fleet's actor does not answer (sfactl fleet status)"


class NotConnected(OSError):
    """No actor of this node is connected, so that no other node can be reached."""


class Elsewhere:
    """What is done to the processes of runs on other nodes: their nodes are told what is wanted of
    the runs, and so nothing follows at once."""

    def __init__(self, fleet: "Fleet") -> None:
        self._fleet = fleet

    def terminate(self, run_id: RunId, signal: int) -> None:
        """See `RunProcesses`."""

    def kill(self, run_id: RunId) -> None:
        """See `RunProcesses`."""

    def freeze(self, run_id: RunId) -> None:
        """See `RunProcesses`."""

    def thaw(self, run_id: RunId) -> None:
        """See `RunProcesses`."""

    def release(self, run_id: RunId) -> None:
        """See `RunProcesses`."""

    def signal_main(self, _run_id: RunId, _signal: int) -> bool:
        """See `RunProcesses`."""
        return False

    def survey(self, run_id: RunId) -> None:
        """Tell what is known here."""
        self._fleet.survey(run_id)


class Fleet:
    def __init__(self, config: FleetConfig, heart: Heart, shipping: Shipping) -> None:
        self._config = config
        self._machine = heart.machine
        self._catalogue = heart.catalogue
        self._feed = heart.feed
        self._log = heart.resources.log
        self._spool = heart.resources.spool
        self._socket = heart.resources.socket
        self._prepare = heart.prepare
        self.shipping = shipping
        self.node = config.node or socket.gethostname().split(".")[0]
        self.remote = heart.processes
        """Live runs that execute on another node, or are to be placed."""
        self._elsewhere = Elsewhere(self)
        self._placed: set[RunId] = set()
        """Live runs for which Ray has, or is to have, a reservation."""
        self._placing_here: set[RunId] = set()
        self._push: Push | None = None
        self.actor: ServeFleet | None = None
        """How the actor that connected last has begun."""
        self._raylet: tuple[int, int] | None = None
        """The process that has started it, and when that was started."""
        self._asked_actor_at = trio.current_time()
        self._asked: dict[int, Told] = {}
        self._number = 0
        self._neighbours: dict[str, Neighbour] = {}
        self._timers = heart.resources.timers
        self.pace = Pace()
        self._ways: dict[str, list[Asking]] = {}
        """Connections to other nodes on which nothing is asked now."""
        self.kept: dict[str, float] = {}
        """Nodes to which connections stay open for longer than `KEPT`."""
        self._late: set[str] = set()
        """Nodes that have not answered in time, and may do so yet."""
        self._nursery: trio.Nursery | None = None
        self._early: list[Neighbour] = []
        self.connected, self.disconnected = trio.Event(), trio.Event()

    @property
    def enabled(self) -> bool:
        return self._config.address is not None

    async def serve(self) -> None:
        """Speak with the nodes where runs of this one are, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            for neighbour in self._early:
                self._nursery.start_soon(neighbour.serve)
            self._early.clear()
            await trio.sleep_forever()

    # ---- the actor

    def connect_actor(self, push: Push, actor: ServeFleet) -> None:
        """Use this connection of the node's actor from now on. An actor before it is told to
        end."""
        before, self._push = self._push, push
        self.actor, found = actor, kernel.stat(actor.raylet) if actor.raylet else None
        self._raylet = (actor.raylet, found.started) if found is not None else None
        if before is not None:
            before(FleetPush(id=0, what="end"), ())
        self.connected.set()
        self.disconnected = trio.Event()
        push(FleetPush(id=0, what="keep", runs=sorted(self._placed)), ())
        for run_id in self.remote:
            live = self._catalogue.live.get(run_id)
            if live is not None and live.run.remote is not None and live.run.remote.node is None:
                self._ask_for_place(live.run)
        for neighbour in self._neighbours.values():
            neighbour.look()

    def gone(self, push: Push) -> None:
        """The connection of an actor has ended."""
        if self._push is push:
            self._push, self.connected = None, trio.Event()
            self.disconnected.set()
            asked, self._asked = self._asked, {}
            for told in asked.values():
                told(FleetTold(id=0, refused="the fleet's actor has ended"))

    @property
    def is_connected(self) -> bool:
        return self._push is not None

    @property
    def raylet_lives(self) -> bool:
        """Whether the process that has started the actor is alive, as far as it can be seen."""
        return self._raylet is None or kernel.is_alive(*self._raylet)

    def told(self, told: FleetTold) -> None:
        if told.run:
            self._place_told(told)
        elif (then := self._asked.pop(told.number, None)) is not None:
            then(told)

    def ask_nodes(self, then: Told) -> None:
        """Call `then` with all nodes. Raise `NotConnected`."""
        self.ask(FleetPush(id=0, what="nodes"), then)

    async def told_by_actor(self, what: Literal["nodes", "heard"]) -> FleetTold:
        """Return what the actor tells. It may take long. Raise `OSError`."""
        answered, found, began = trio.Event(), FleetTold(id=0), trio.current_time()

        def told(told: FleetTold) -> None:
            nonlocal found
            found = told
            answered.set()
            if told.refused is None:
                self.pace.answered(ACTOR, trio.current_time() - began)

        self.ask(FleetPush(id=0, what=what), told)
        try:
            await answered.wait()
        except trio.Cancelled:
            self.pace.missed(ACTOR)
            raise
        if found.refused is not None:
            raise OSError(found.refused)
        return found

    def ask(self, push: FleetPush, then: Told) -> None:
        """Have the actor do something, and call `then` with its answer. Raise `NotConnected`."""
        self._number += 1
        push.number = self._number
        self._send(push)
        self._asked[self._number] = then

    def _send(self, push: FleetPush, descriptors: Sequence[int] = ()) -> None:
        if self._push is None:
            for each in descriptors:
                os.close(each)
            if not self.enabled:
                raise NotConnected(NOT_JOINED)
            raise NotConnected("the fleet is not connected; sfactl fleet status tells why")
        self._push(push, descriptors)

    def way(self, node: str) -> socket.socket:
        """Return a socket to the daemon of a node. Raise `OSError`."""
        mine = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        if node == self.node:
            mine.setblocking(False)
            mine.connect(self._socket)
            return mine
        mine.close()
        mine, theirs = socket.socketpair()
        try:
            self._send(FleetPush(id=0, what="way", node=node, descriptors=1), [theirs.detach()])
        except OSError:
            mine.close()
            raise
        mine.setblocking(False)
        return mine

    async def pass_on(
        self, node: str, request: Request, within: float = PASSED_ON, *, brief: bool = False
    ) -> Reply:
        """Ask the daemon of a node something, as a client outside any run, and return its answer.
        The connection stays for the next question. `brief`: the request takes no work, so that how
        long it takes tells how long others may. Raise `OSError`."""
        with trio.move_on_after(within):
            if request.repeats and (kept := self._kept_way(node)) is not None:
                with suppress(OSError):  # that node may have begun again meanwhile
                    return await self._ask_on(kept, request, brief)
            sock = trio.socket.from_stdlib_socket(self.way(node))
            return await self._ask_on(Asking(sock, node, self.node), request, brief)
        raise OSError(f"node {node} does not answer")

    async def _ask_on(self, conversation: "Asking", request: Request, brief: bool) -> Reply:
        began = trio.current_time()
        try:
            reply = await conversation.ask(request)
        except trio.Cancelled:
            if brief:
                self.pace.missed(conversation.node)
            if brief and self._nursery is not None and conversation.node not in self._late:
                self._late.add(conversation.node)
                self._nursery.start_soon(self._await_late, conversation, began)
            else:
                conversation.close()
            raise
        except BaseException:
            conversation.close()
            raise
        if brief:
            self.pace.answered(conversation.node, trio.current_time() - began)
        if isinstance(reply, Error) or not conversation.is_idle:
            conversation.close()
        else:
            node = conversation.node
            self._ways.setdefault(node, []).append(conversation)
            at = trio.current_time() + self.kept.get(node, KEPT)
            self._timers.arm(("way", node), at, partial(self._close_ways, node))
        return reply

    async def _await_late(self, conversation: "Asking", began: float) -> None:
        """Learn from an answer that came too late how slow its node is."""
        try:
            with suppress(OSError), trio.move_on_at(began + LATE):
                await conversation.answer()
                self.pace.answered(conversation.node, trio.current_time() - began)
        finally:
            self._late.discard(conversation.node)
            conversation.close()

    def _kept_way(self, node: str) -> "Asking | None":
        found = self._ways.get(node)
        return found.pop() if found else None

    def _close_ways(self, node: str) -> None:
        for conversation in self._ways.pop(node, []):
            conversation.close()

    async def follow(self, node: str, request: Request, take: Callable[[Reply], object]) -> None:
        """Ask the daemon of a node something, and call `take` with all that it answers, until the
        connection ends. Raise `OSError`, and what `take` raises."""
        with trio.socket.from_stdlib_socket(self.way(node)) as sock:
            conversation = Asking(sock, node, self.node)
            take(await conversation.ask(request))
            while True:
                for reply in await conversation.arrived():
                    if not isinstance(reply, Selected):
                        take(reply)

    # ---- placing

    def _ask_for_place(self, run: Run) -> None:
        self._asked_actor_at = trio.current_time()
        try:
            away = run.remote.away if run.remote is not None else None
            self._send(
                FleetPush(
                    id=0, what="place", run=run.id, placing=run.asked.placing, node=away or ""
                )
            )
        except NotConnected as error:
            self.hear(run.id, h.PlacementWaits(str(error)))

    def hear(self, run: RunId, what: h.Heard, at: float | None = None) -> None:
        """Tell the core what was heard of a run. `at`: now, if left out."""
        self._feed(e.HeardOf(trio.current_time() if at is None else at, run, what))

    def refuse(self, run: RunId, why: str) -> None:
        """Tell the core that a run executes on no node."""
        self.hear(run, h.GrantRefused(Reason(kind="fleet", message=why)))

    def _place_told(self, told: FleetTold) -> None:
        if told.refused is not None:
            self.refuse(told.run, told.refused)
        elif told.node == self.node and self._nursery is not None and self._is_queued(told.run):
            if told.run not in self._placing_here:
                self._placing_here.add(told.run)
                self._nursery.start_soon(self._place_here, told.run)
        elif told.node is not None:
            self.hear(told.run, h.Placed(told.node))
        else:
            self.hear(told.run, h.PlacementWaits(told.waits or "", told.infeasible))

    def _is_queued(self, run: RunId) -> bool:
        """Return whether the run has not executed on another node before: else this node takes it
        as that one did."""
        live = self._catalogue.live.get(run)
        return live is not None and live.run.status is Status.QUEUED

    async def _place_here(self, run: RunId) -> None:
        """Start a run on this node after all: complete its request, as the daemon of another node
        would."""
        try:
            live = self._catalogue.live.get(run)
            if live is None or live.run.remote is None:
                return
            try:
                asked = await self._prepared(live)
            except (Invalid, RequestError, OSError) as error:
                self.refuse(run, str(error))
                return
            self.hear(run, h.Placed(self.node, asked))
            placed = self._catalogue.live.get(run)
            if placed is not None and placed.run.remote is None:
                self.remote.pop(run, None)
                self._spool.journal.renew(placed)
        finally:
            self._placing_here.discard(run)

    async def _prepared(self, live: Live) -> Asked:
        """Prepare a run that the core has admitted already. Return what it asks of the core. Raise
        `Invalid`, `RequestError`, `OSError`."""
        assert live.order is not None
        run, uid = live.run, live.uid
        peer = Peer(
            uid=uid,
            user=run.user,
            owner=uid in (0, os.geteuid()),
            run=live.caller,
            channel=run.birth.channel if run.birth.channel in CHANNELS else None,
        )
        order = replace(live.order, placing=None, ship=live.parts.of(SHIP))
        p, around = await self._prepare(order, peer, live.credentials)
        live.take(p.command, p.output, p.parts, p.program, p.session_files)
        live.setups = around.setups if around.caller is None else NO_SETUPS
        return p.asked

    # ---- runs on other nodes

    def place(self, run: Run) -> None:
        """Have a run executed on a node, or go on with one that executes there."""
        assert run.remote is not None
        self.remote[run.id] = self._elsewhere
        self._placed.add(run.id)
        self.expect(run)
        if run.remote.node is None:
            self._ask_for_place(run)
            return
        neighbour = self._neighbours.get(run.remote.node)
        if neighbour is None:
            neighbour = self._neighbours[run.remote.node] = Neighbour(run.remote.node, self)
            if self._nursery is None:
                self._early.append(neighbour)
            else:
                self._nursery.start_soon(neighbour.serve)
        neighbour.look()

    def survey(self, run_id: RunId) -> None:
        """Tell the core that a run on another node may be alive."""
        self._unreached(self._catalogue.live[run_id].run)

    # ---- nodes that owe an answer

    def expect(self, run: Run, least: float = OWED) -> None:
        """Have the clients answered that wait for a run, if its node does not answer. `least`:
        seconds for which it is waited at least."""
        if run.remote is not None and ("fleet", run.id) not in self._timers:
            node, seconds = run.remote.node, PLACED_WITHIN
            if node is not None:
                seconds = max(self._patience_left(node), least)
            self._timers.arm(
                ("fleet", run.id), trio.current_time() + seconds, partial(self._overdue, run.id)
            )

    def _patience_left(self, node: str) -> float:
        """Return the seconds that a node has for the answer which it owes; 0 if they are over."""
        neighbour = self._neighbours.get(node)
        left = self.pace.patience(node) - neighbour.silent if neighbour is not None else 0.0
        return max(left, 0.0)

    def _overdue(self, run_id: RunId) -> None:
        live = self._catalogue.live.get(run_id)
        if live is None or live.run.remote is None:
            return
        run, remote = live.run, live.run.remote
        if remote.node is None:
            if run.status is not Status.STOPPING:
                why = remote.waits or f"{_NO_ACTOR} since {self._wall(self._asked_actor_at)}"
                self.hear(run_id, h.PlacementWaits(why, remote.infeasible))
            return
        left = self._patience_left(remote.node)
        if not left:
            self._unreached(run)
        elif run.admit_token is not None and trio.current_time() - remote.heard_at > TAKEN_WITHIN:
            self.hear(run_id, h.GrantLate(remote.node, ""))
        if run.status is Status.STOPPING or run.admit_token is not None:
            self.expect(run, 0.0 if left else BEAT)

    def _unreached(self, run: Run) -> None:
        assert run.remote is not None
        remote, node = run.remote, run.remote.node or ""
        since = f"not reached since {self._wall(remote.heard_at)}"
        over_at = remote.over_at(grace_of(run, self._machine.policy))
        if run.status is not Status.STOPPING:
            why = f"{since}; sfactl fleet nodes tells more"
        elif over_at is None:
            why = f"{since}; it will be stopped when node {node} is heard of, and lives until then"
        else:
            until = f"at the latest when its lease ends at {self._wall(over_at)}"
            why = f"{since}; it will be stopped when node {node} is heard of, {until}"
        self.hear(run.id, h.GrantLate(node, why))

    def _wall(self, at: float) -> str:
        """Return a time of this daemon's clock as people read it."""
        moment = wall_clock() + timedelta(seconds=at - trio.current_time())
        return f"{moment.astimezone():%H:%M:%S}"

    def changed(self, runs: Collection[Run]) -> None:
        """Tell other nodes what is wanted of runs there, if that has changed."""
        for run in runs:
            if run.status is Status.STOPPING:
                self.expect(run)
        for neighbour in self._neighbours.values():
            neighbour.look()

    def ended(self, run: Run) -> None:
        self.remote.pop(run.id, None)
        self._timers.disarm(("fleet", run.id))
        if run.id in self._placed:
            self._placed.discard(run.id)
            with suppress(NotConnected):  # else the next actor is told which to keep
                self._send(FleetPush(id=0, what="free", run=run.id))

    def sent(self, run: RunId) -> None:
        """Forget what a run is started with: its node has that, and it starts on no other one."""
        live = self._catalogue.live.get(run)
        placing = live.run.asked.placing if live is not None else None
        if placing is not None and not placing.restart_elsewhere:
            self._spool.spawns.forget(run)

    def runs_elsewhere(self) -> Iterator[Run]:
        """Yield the live runs that execute on other nodes, or are to."""
        for run_id in list(self.remote):
            if (live := self._catalogue.live.get(run_id)) is not None:
                yield live.run

    def runs_on(self, node: str) -> Iterator[Run]:
        for run in self.runs_elsewhere():
            if run.remote is not None and run.remote.node == node:
                yield run

    def forget(self, node: str) -> list[RunId]:
        """Give up this node's runs there."""
        runs = [run.id for run in self.runs_on(node)]
        for run in runs:
            why = (
                f"node {node} was given up by an operator (sfactl fleet forget); "
                "whether the run still executes is not known"
            )
            self.hear(run, h.GrantLost(why))
        return runs

    def counts(self) -> tuple[dict[str, int], dict[str, int], dict[str, float]]:
        """Return how many live runs each node was given by this one, was taken from each, and for
        how many seconds nodes with runs of this one have not been heard of."""
        granted: dict[str, int] = {}
        taken: dict[str, int] = {}
        away: dict[str, float] = {}
        for live in self._catalogue.live.values():
            run = live.run
            if run.remote is not None and run.remote.node is not None:
                granted[run.remote.node] = granted.get(run.remote.node, 0) + 1
                away[run.remote.node] = round(trio.current_time() - run.remote.heard_at, 1)
            elif run.asked.grant is not None:
                taken[run.asked.grant.giver] = taken.get(run.asked.grant.giver, 0) + 1
        return (
            granted,
            taken,
            {node: seconds for node, seconds in away.items() if seconds > self._config.lease / 2},
        )

    def heard(self, node: str, at: float) -> None:
        """Note that a node was heard of, so that its runs are not shown as unreachable."""
        for run in self.runs_on(node):
            if run.remote is not None:
                run.remote.heard_at, run.remote.unreached = at, ""

    def left(self, neighbour: "Neighbour") -> None:
        self._neighbours.pop(neighbour.node, None)


class Asking:
    """Asks the daemon of a node one thing after the other, as a client outside any run."""

    def __init__(self, sock: trio.socket.SocketType, node: str, own: str) -> None:
        self._socket = sock
        self._node = self.node = node
        self._conversation = Conversation()
        self._unsent = hello(f"fleet {own}")
        self._last = 0
        self._more: list[Reply] = []
        """What has arrived after the last answer."""

    async def ask(self, request: Request) -> Reply:
        """Return the answer. Raise `OSError`, also for an error that is no answer: the actor there
        has reached no daemon, or the daemon does not serve this connection."""
        self._last += 1
        request = replace(request, id=self._last)
        data, self._unsent = self._unsent + pack_message(request), b""
        # what it said before it hung up is read
        with suppress(BrokenPipeError, ConnectionResetError):
            while data:
                data = data[await self._socket.send(data) :]
        return await self.answer()

    async def answer(self) -> Reply:
        """Return the answer to what was asked last. Raise `OSError`."""
        while True:
            replies = iter(await self._replies())
            for reply in replies:
                if reply.id == self._last:
                    self._more = list(replies)
                    return reply
                if isinstance(reply, Error):
                    raise ConnectionAbortedError(reply.message)

    @property
    def is_idle(self) -> bool:
        """Whether nothing has come that was not asked for."""
        return not self._more

    def close(self) -> None:
        self._socket.close()

    async def arrived(self) -> Sequence[Reply]:
        """Return what comes after the first answer. A node that says nothing is asked whether it
        lives: it answers with `Selected`. Raise `OSError`."""
        more, self._more = self._more, []
        if more:
            return more
        with trio.move_on_after(QUIET):
            return await self._replies()
        with trio.move_on_after(PASSED_ON):
            self._last += 1
            with suppress(BrokenPipeError, ConnectionResetError):
                await self._socket.send(pack_message(Select(id=self._last, verb="list")))
            return await self._replies()
        raise OSError(f"node {self._node} does not answer")

    async def _replies(self) -> list[Reply]:
        try:
            return list(await self._conversation.arrived(self._receive))
        except ProtocolError as error:
            raise ConnectionAbortedError(
                f"the answer of node {self._node} is not understood here: {error}"
            ) from error

    async def _receive(self) -> bytes:
        with suppress(ConnectionResetError):  # it hung up without reading what it was asked
            if piece := await self._socket.recv(65536):
                return piece
        raise ConnectionResetError(f"node {self._node} does not answer")


# ---- One other node


IDLE = 2
"""Quarters of a lease for which a connection stays open after the last run: often another one
follows."""
PAUSE, PAUSE_MAX = 0.1, 5.0
"""Seconds until a lost connection is opened again."""
_TRANSIENT = {ErrorCode.UNAVAILABLE, ErrorCode.INTERNAL}
"""Answers to a grant after which it is sent again."""


class Neighbour:
    """Offers runs to a node, tells it what is wanted of them, and hears how they are."""

    def __init__(self, node: str, fleet: Fleet) -> None:
        self.node = node
        self._fleet = fleet
        self._changed = trio.Event()
        self._stamp = ""
        self._heard_at = trio.current_time()
        """When it was heard of last; at first, when it was first spoken to."""
        self._owed_since: float | None = None
        """When something was sent that it answers at once, and has not answered."""
        self._wanted: dict[RunId, Wanted] = {}
        """What was sent last."""
        self._seen: dict[RunId, str] = {}
        """Statuses by the ids of the other node."""
        self._offered: dict[int, RunId] = {}
        """Grants without an answer, by their requests."""
        self._shipped: set[RunId] = set()
        """Runs whose files the node has."""
        self._shipping: set[RunId] = set()
        """Runs whose files are being sent."""
        self._tends = 0
        self._last = 0
        self._connected = False

    def look(self) -> None:
        self._changed.set()

    async def serve(self) -> None:
        await keep(self._once, self._lost, PAUSE, PAUSE_MAX, wanted=lambda: self._has_runs)
        self._fleet.left(self)

    async def _once(self) -> str | None:
        """Speak with the node until it has no run any more. Return why that broke off."""
        why = None
        try:
            with trio.socket.from_stdlib_socket(self._fleet.way(self.node)) as sock:
                await self._speak(sock)
        except* (OSError, ProtocolError, trio.TooSlowError) as errors:
            why = str(errors.exceptions[0])
        finally:
            self._connected = False
        return why

    def _lost(self, why: str, _pause: float) -> None:
        self._fleet._log.debug("fleet", node=self.node, error=why)

    @property
    def _has_runs(self) -> bool:
        return any(True for _ in self._fleet.runs_on(self.node))

    async def _speak(self, sock: trio.socket.SocketType) -> None:
        self._offered.clear()
        self._wanted.clear()
        self._seen.clear()
        self._shipping.clear()
        self._tends = 0
        self._owed_since, self._connected = None, True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read, sock)
            await self._send(sock, [hello(f"fleet {self._fleet.node}")])
            idle = 0
            while idle < IDLE:
                self._changed = trio.Event()
                runs = list(self._fleet.runs_on(self.node))
                self._ship_files(runs, nursery)
                await self._send(sock, map(pack_message, self._messages(runs)))
                with trio.move_on_after(self._interval):
                    await self._changed.wait()
                idle = 0 if self._changed.is_set() or self._has_runs else idle + 1
            nursery.cancel_scope.cancel()

    @property
    def _interval(self) -> float:
        """Seconds that the other node may wait before it answers. Three of them fit into a
        lease."""
        return min(self._fleet._config.lease / 4, BEAT)

    @property
    def silent(self) -> float:
        """Seconds for which it owes an answer."""
        now = trio.current_time()
        if not self._connected:
            return now - self._heard_at
        return now - self._owed_since if self._owed_since is not None else 0.0

    async def _send(self, sock: trio.socket.SocketType, frames: Iterable[bytes]) -> None:
        data = bytearray().join(frames)
        with trio.fail_after(self._interval):
            while data:
                del data[: await sock.send(data)]

    def _messages(self, runs: list[Run]) -> Iterator[Request]:
        """Yield what is to be said about these runs now."""
        now = trio.current_time()
        fleet = self._fleet
        offered = set(self._offered.values())
        new = [
            run
            for run in runs
            if run.remote is not None and not run.remote.id and run.id not in offered
        ]
        ready = [run for run in new if run.id not in self._shipping]
        fresh = bool(self._stamp) and now - self._heard_at < fleet._config.lease / 2
        taken = {run.remote.id: run for run in runs if run.remote is not None and run.remote.id}
        told = {id_: self._wanted_of(run, now) for id_, run in taken.items()}
        changed = any(self._wanted.get(id_) != wanted for id_, wanted in told.items())
        if self._stamp and (new or taken):
            # before it is sent: the other node may count the lease from then on
            for run in runs:
                fleet.hear(run.id, h.GrantRenewed(), self._heard_at)
        if fresh:
            for run in ready:
                spawn = self._spawn(run, now)
                if spawn is not None:
                    yield spawn
        if changed or (not self._tends and taken) or (new and not fresh and not self._tends):
            self._wanted = told
            self._last += 1
            self._tends = self._last
            wait = self._interval if taken and not changed else 0.0
            if self._owed_since is None and not wait:
                self._owed_since = now
            seen = {id_: self._seen[id_] for id_ in told if id_ in self._seen}
            yield Tend(
                id=self._last, giver=fleet.node, echo=self._stamp, runs=told, seen=seen, wait=wait
            )

    # ---- files that a run is sent with come before its grant

    def _ship_files(self, runs: list[Run], nursery: trio.Nursery) -> None:
        """Begin to send the files of runs that the node has not taken."""
        for run in runs:
            ship = self._fleet._catalogue.live[run.id].parts.of(SHIP)
            unsent = (
                run.remote is not None
                and not run.remote.id
                and run.id not in self._shipped | self._shipping
            )
            if unsent and ship is not None:
                self._shipping.add(run.id)
                nursery.start_soon(self._ship, run, ship)

    async def _ship(self, run: Run, ship: Ship) -> None:
        """Send the files of a run, until the node has them or they are not wanted any more."""
        fleet = self._fleet
        while any(each is run for each in fleet.runs_on(self.node)):
            try:
                with trio.socket.from_stdlib_socket(fleet.way(self.node)) as sock:
                    conversation = Asking(sock, self.node, fleet.node)
                    await fleet.shipping.send(
                        run.birth.uid, ship, partial(self._in_time, conversation)
                    )
                self._shipped.add(run.id)
                break
            except ShipRefused as error:
                fleet.refuse(run.id, f"node {self.node}: {error}")
                break
            except (OSError, trio.TooSlowError) as error:
                fleet._log.debug("files", node=self.node, run=run.id, error=str(error))
                await trio.sleep(PAUSE_MAX)
        self._shipping.discard(run.id)
        self.look()

    async def _in_time(self, conversation: Asking, request: Request) -> Reply:
        with trio.fail_after(max(PASSED_ON, 3 * self._interval)):
            return await conversation.ask(request)

    def _wanted_of(self, run: Run, now: float) -> Wanted:
        assert run.remote is not None
        before = self._wanted.get(run.remote.id)
        wanted = wanted_of(run, before.number if before is not None else 0, now)
        if (
            before is None
            or (wanted.paused, wanted.stop) != (before.paused, before.stop)
            or wanted.grace < before.grace - 30
        ):
            return replace(wanted, number=time.time_ns() // 1000)
        return before

    def _spawn(self, run: Run, now: float) -> Spawn | None:
        live = self._fleet._catalogue.live[run.id]
        order, terms, permissions = live.order, run.asked.terms, run.birth.permissions
        if order is None:
            return None
        self._last += 1
        self._offered[self._last] = run.id
        return replace(
            order,
            id=self._last,
            placing=None,
            ship=live.parts.of(SHIP),
            gateway=live.parts.gateway,
            allowed_tools=list(terms.allowed_tools),
            blocked_tools=list(terms.blocked_tools),
            grant=grant_of(run, self._fleet.node, self._stamp),
            key=f"{live.nonce}/{run.attempt}",
            name=run.name if order.name is not None or order.agent is None else None,
            limits=limits_to_send(run, now),
            on_limit=None,
            max_depth=None,
            max_descendants=None,
            allow=sorted(permissions.verbs),
            deny=[],
            leaf=permissions.leaf,
            nested=False,
            allowed_models=[],
            labels=run.asked.identity.labels,
            channel=run.birth.channel,
            tied=False,
            watch=False,
            on_end=None,
            after=[],
            group=None,
            queue=True,
            descriptors=0,
            shim=False,
        )

    async def _read(self, sock: trio.socket.SocketType) -> None:
        conversation = Conversation()
        while True:
            for reply in await conversation.arrived(partial(self._received, sock)):
                self._heard(reply)

    async def _received(self, sock: trio.socket.SocketType) -> bytes:
        """Return what comes next. Raise `TooSlowError` where the node owes an answer for too
        long."""
        while True:
            with trio.move_on_after(2 * self._interval + TAKEN_WITHIN):
                return await sock.recv(65536)
            if self._has_runs:
                raise trio.TooSlowError(f"node {self.node} does not answer")

    def _heard(self, reply: Reply) -> None:
        now, fleet = trio.current_time(), self._fleet
        offered = self._offered.pop(reply.id, None)
        match reply:
            case Welcome():
                pass
            case Tended():
                if self._owed_since is not None:
                    fleet.pace.answered(self.node, now - self._owed_since)
                    self._owed_since = None
                self._stamp, self._heard_at = reply.stamp, now
                fleet.heard(self.node, now)
                for run_id, used in reply.used.items():
                    self._used(run_id, used)
                for info in reply.runs:
                    self._seen[info.id] = str(info.status)
                    self._told(info)
                for gone in reply.gone:
                    self._gone(gone)
                if reply.id == self._tends:
                    self._tends = 0
                self.look()
            case RunReply() if offered is not None:
                # of an ended run this has no totals: the answer to the next Tend has
                status = reply.run.status if not reply.run.status.terminal else Status.STARTING
                fleet.hear(offered, h.GrantSeen(self.node, h.GrantState(status, reply.run.id)))
                fleet.sent(offered)
                self.look()
            case Refused() if offered is not None:
                reason = Reason(
                    kind=reply.refused.kind, message=f"node {self.node}: {reply.refused.message}"
                )
                fleet.hear(offered, h.GrantRefused(reason))
            case Error() if offered is not None and reply.code in _TRANSIENT:
                # it is offered again after a pause
                raise ConnectionAbortedError(f"node {self.node}: {reply.message}")
            case Error() if offered is not None:
                fleet.refuse(offered, f"node {self.node}: {reply.message}")
            case Error():
                raise ConnectionAbortedError(f"node {self.node}: {reply.message}")

    def _told(self, info: RunInfo) -> None:
        for run in self._fleet.runs_on(self.node):
            if run.remote is not None and run.remote.id == info.id:
                self._fleet.hear(run.id, h.GrantSeen(self.node, state_of(info)))
                return

    def _used(self, run_id: RunId, used: RunUse) -> None:
        for run in self._fleet.runs_on(self.node):
            if run.remote is not None and run.remote.id == run_id:
                use = Use(
                    turns=used.turns,
                    messages=used.messages,
                    input_tokens=used.tokens,
                    cost=to_nanos(used.cost_usd),
                )
                if run.account.sources.get("report") != run.remote.used_before.plus(use):
                    self._fleet.hear(run.id, h.GrantUsed(self.node, run_id, use))

    def _gone(self, run_id: RunId) -> None:
        for run in self._fleet.runs_on(self.node):
            if run.remote is not None and run.remote.id == run_id:
                why = f"node {self.node} came back without it"
                self._fleet.hear(run.id, h.GrantLost(why))
                return


def state_of(info: RunInfo) -> h.GrantState:
    """Return what another node tells of a run, as the core takes it."""
    own, whole = info.usage, info.in_all
    used = Use(
        turns=own.turns,
        messages=own.messages,
        input_tokens=whole.tokens,
        cost=to_nanos(whole.cost_usd),
    )
    return h.GrantState(
        info.status, info.id, used, info.descendants, info.reason, info.exit_code, info.signal,
        info.checks,
    )  # fmt: skip
