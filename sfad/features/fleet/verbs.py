"""Verbs of the fleet: ways to other nodes, the node's actor, and what a giver wants of runs that it
has granted to this node."""

from collections.abc import Iterable, Mapping, Sequence

import trio
from msgspec import Struct
from msgspec.structs import replace

from ...core.state.money import to_usd
from ...core.state.run import Run
from ...daemon.loop.seam import Answer, Heart
from ...daemon.server.asker import Asker
from ...daemon.server.checks import MAX_CHOSEN
from ...host.clock import Timers, after_stamp, stamp
from ...protocol.errors import check_most, unavailable
from ...protocol.messages import Done
from ...protocol.requests.base import Request
from ...protocol.types import ErrorCode, LimitKind, RunId, RunInfo
from ...runs.catalogue import RunCatalogue
from .answers.requests import FleetClient
from .deciding.heard import GrantTended
from .feature import FleetConfig
from .health import Health
from .keeper import FleetKeeper
from .messages import (
    ACTOR_VERSION,
    AskSlots,
    DrainNode,
    FleetNodes,
    FleetPush,
    FleetStatus,
    FleetTold,
    ForgetNode,
    Forgotten,
    OverFleet,
    Relay,
    RunUse,
    ServeFleet,
    SharedSubscriptions,
    ShareSubscriptions,
    Tend,
    Tended,
)
from .node import Fleet
from .nodes import Nodes
from .process import FleetProcess
from .quotas import SharedQuotas

DRAINED_WITHIN = 1.0
"""Seconds that Ray has to note that a node is drained."""


class FleetVerbs(Struct, frozen=True):
    _config: FleetConfig
    _fleet: Fleet
    _process: FleetProcess
    _keeper: FleetKeeper
    _granted: "GrantedRuns"
    _nodes: Nodes
    _health: Health
    _quotas: SharedQuotas
    _heart: Heart

    def all(self) -> Mapping[type[Request], Answer]:
        return {
            OverFleet: self._over_fleet,
            FleetStatus: self._fleet_status,
            ForgetNode: self._forget_node,
            DrainNode: self._drain_node,
            Relay: self._relay,
            ServeFleet: self._serve_fleet,
            FleetTold: self._fleet_told,
            ShareSubscriptions: self._share_plans,
            AskSlots: self._quotas.answer,
            Tend: self._tend,
        }

    # ---- `over_fleet`, `fleet_status`, `forget_node`: for clients

    async def _over_fleet(self, asker: Asker, _request: OverFleet) -> None:
        nodes = self._nodes
        await asker.aside()
        await nodes.look()
        if asker.still_wanted():
            asker.reply(FleetNodes(id=asker.id, node=nodes.own, nodes=nodes.names))
            FleetClient(nodes, asker.connection)

    async def _fleet_status(self, asker: Asker, request: FleetStatus) -> None:
        fleet, state = self._fleet, self._health.here()
        granted, taken, away = fleet.counts()
        state = replace(
            state,
            id=asker.id,
            address=self._config.address or "",
            granted=granted,
            taken=taken,
            keeper=self._keeper.node,
            keeper_trouble=self._keeper.trouble,
            unreachable=away,
        )
        if request.here or not fleet.enabled:
            asker.reply(state)
            return
        await asker.aside()
        nodes, trouble = await self._health.look()
        if asker.still_wanted():
            asker.reply(replace(state, nodes=nodes, trouble=trouble))

    async def _relay(self, asker: Asker, request: Relay) -> None:
        """Ask other nodes for one that has many to ask."""
        check_most("nodes in one request", len(request.asks), MAX_CHOSEN)
        await asker.aside()
        relayed = await self._nodes.relay(request)
        if asker.still_wanted():
            asker.reply(replace(relayed, id=asker.id))

    def _forget_node(self, asker: Asker, request: ForgetNode) -> None:
        self._quotas.forget(request.node)
        asker.reply(Forgotten(id=asker.id, runs=self._fleet.forget(request.node)))

    def _drain_node(self, asker: Asker, request: DrainNode) -> None:
        is_wanted = asker.defer()
        key = "drain", asker.connection.number, asker.id

        def told(told: FleetTold) -> None:
            self._heart.resources.timers.disarm(key)
            if is_wanted() and told.refused is not None:
                asker.fail(ErrorCode.UNAVAILABLE, told.refused)
            elif not asker.answered:
                asker.reply(Done(id=asker.id))

        late = FleetTold(
            id=0,
            refused=f"Ray has not answered within {DRAINED_WITHIN:g} s, and may do it later; "
            "sfactl fleet nodes shows whether it has",
        )
        self._fleet.ask(
            FleetPush(id=0, what="undrain" if request.undo else "drain", node=request.node), told
        )
        at = trio.current_time() + DRAINED_WITHIN
        self._heart.resources.timers.arm(key, at, lambda: told(late))

    # ---- `serve_fleet`, `fleet_told`: for the node's actor

    def _serve_fleet(self, asker: Asker, request: ServeFleet) -> None:
        fleet, connection = self._fleet, asker.connection
        if request.version != ACTOR_VERSION or request.node != fleet.node:
            theirs = f"node {request.node} with version {request.version}"
            raise unavailable(
                f"the actor is of {theirs} of the fleet's messages; "
                f"this is node {fleet.node} with version {ACTOR_VERSION}"
            )

        def push(message: FleetPush, descriptors: Sequence[int]) -> None:
            message.id = request.id
            connection.send(message, descriptors)
            if message.what == "end":
                fleet.gone(push)

        connection.on_close = lambda: fleet.gone(push)
        asker.reply(Done(id=asker.id))
        fleet.connect_actor(push, request)

    def _fleet_told(self, asker: Asker, request: FleetTold) -> None:
        asker.reply(Done(id=asker.id))
        self._fleet.told(request)

    # ---- `share_plans`, `tend`: for the daemon of another node

    def _share_plans(self, asker: Asker, request: ShareSubscriptions) -> None:
        """Learn what a node has to share, and tell it what all know."""
        self._keeper.check_here()
        parts = self._heart.parts()
        parts.heard(request.plans)
        asker.reply(SharedSubscriptions(id=asker.id, plans=parts.shared()))

    def _tend(self, asker: Asker, request: Tend) -> None:
        """Do what the giver wants of its runs, and tell it how they are as soon as it does not
        know."""
        check_most("runs in one request", len(request.runs), 64 * MAX_CHOSEN)
        heart = self._heart
        for run_id, wanted in request.runs.items():
            live = heart.catalogue.live.get(run_id)
            grant = live.run.asked.grant if live is not None else None
            if grant is not None and grant.giver == request.giver:
                until = after_stamp(request.echo, grant.lease) if grant.lease is not None else None
                self._fleet.hear(run_id, GrantTended(wanted, until))
        self._granted.tend(_Tending(asker, request, heart.catalogue))


class GrantedRuns:
    """Requests of other nodes that wait until something happens to runs that they have granted to
    this one."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self.waiting: dict[tuple[str, int], _Tending] = {}

    def tend(self, tending: "_Tending") -> None:
        """Answer a request, now or later. An earlier one of the same connection is answered now."""
        before = self.waiting.pop(tending.key, None)
        if before is not None:
            before.answer(whatever=True)
        if tending.answer(whatever=tending.wait <= 0):
            self._timers.disarm(tending.key)
            return
        self.waiting[tending.key] = tending
        self._timers.arm(
            tending.key, trio.current_time() + tending.wait, lambda: self._due(tending.key)
        )

    def _due(self, key: tuple[str, int]) -> None:
        if (tending := self.waiting.pop(key, None)) is not None:
            tending.answer(whatever=True)

    def changed(self, runs: Iterable[Run]) -> None:
        """Answer what waits for a change of one of these runs."""
        if self.waiting and any(run.lease is not None for run in runs):
            for key, tending in list(self.waiting.items()):
                if tending.answer(whatever=False):
                    del self.waiting[key]
                    self._timers.disarm(key)


class _Tending:
    """One request that waits until there is something to tell."""

    def __init__(self, asker: Asker, request: Tend, catalogue: RunCatalogue) -> None:
        self._asker, self._request, self._catalogue = asker, request, catalogue
        self.giver = request.giver
        self._is_wanted = asker.defer()

    def answer(self, *, whatever: bool) -> bool:
        """Answer if there is anything to tell, or `whatever` there is. Return whether it was
        answered, or need not be."""
        asker, request = self._asker, self._request
        if asker.connection.closed:
            asker.end()
            return True
        rows: list[RunInfo] = []
        gone: list[RunId] = []
        same: list[RunId] = []
        for run_id in request.runs:
            live = self._catalogue.live.get(run_id)
            if live is not None and request.seen.get(run_id) == live.run.status:
                same.append(run_id)
                continue
            info = self._catalogue.info(run_id)
            if info is None or info.fleet is None or info.fleet.giver != request.giver:
                gone.append(run_id)
            elif info.status != request.seen.get(run_id):
                rows.append(info)
        if not (rows or gone or whatever):
            return False
        if self._is_wanted():
            asker.reply(
                Tended(
                    id=asker.id,
                    stamp=stamp(),
                    runs=self._catalogue.with_totals(rows),
                    gone=gone,
                    used={run_id: used for run_id in same if (used := self._used(run_id))},
                )
            )
        return True

    def _used(self, run_id: RunId) -> RunUse | None:
        """Return what a live run has used; `None` if nothing is known of that."""
        account = self._catalogue.live[run_id].run.account
        if not account.known:
            return None
        own, (tokens, cost) = account.best, map(account.spent, (LimitKind.TOKENS, LimitKind.COST))
        return RunUse(
            turns=own[1].turns if own is not None else None,
            messages=own[1].messages if own is not None else None,
            tokens=None if tokens is None else int(tokens),
            cost_usd=to_usd(None if cost is None else int(cost)),
        )

    @property
    def wait(self) -> float:
        return self._request.wait if self._request.runs else 0.0

    @property
    def key(self) -> tuple[str, int]:
        return "tend", self._asker.connection.number
