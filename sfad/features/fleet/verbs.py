"""Verbs of the fleet: ways to other nodes, the node's actor, and what a giver wants of runs that it
has granted to this node."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...daemon.loop.seam import Answer, Heart
from ...daemon.server.asker import Asker
from ...daemon.server.checks import MAX_CHOSEN
from ...host.clock import after_stamp, stamp
from ...protocol.errors import check_most, unavailable
from ...protocol.messages import Done, FleetNodes, OverFleet
from ...protocol.requests.base import Request
from ...protocol.types import ErrorCode, RunId, RunInfo
from .answers.requests import FleetClient
from .feature import FleetConfig
from .granted import GrantedRuns
from .heard import GrantTended
from .keeper import FleetKeeper
from .messages import (
    FLEET_VERSION,
    DrainNode,
    FleetPush,
    FleetState,
    FleetStatus,
    FleetTold,
    ForgetNode,
    Forgotten,
    ServeFleet,
    SharedSubscriptions,
    ShareSubscriptions,
    Tend,
    Tended,
)
from .node import Fleet
from .nodes import Nodes
from .process import FleetProcess


@dataclass(frozen=True, slots=True)
class FleetVerbs:
    _config: FleetConfig
    _fleet: Fleet
    _process: FleetProcess
    _keeper: FleetKeeper
    _granted: GrantedRuns
    _nodes: Nodes
    _heart: Heart

    def all(self) -> Mapping[type[Request], Answer]:
        return {
            OverFleet: self._over_fleet,
            FleetStatus: self._fleet_status,
            ForgetNode: self._forget_node,
            DrainNode: self._drain_node,
            ServeFleet: self._serve_fleet,
            FleetTold: self._fleet_told,
            ShareSubscriptions: self._share_plans,
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

    def _fleet_status(self, asker: Asker, _request: FleetStatus) -> None:
        fleet = self._fleet
        granted, taken, away = fleet.counts()
        state = FleetState(
            id=asker.id,
            node=fleet.node,
            address=self._config.address or "",
            connected=fleet.is_connected,
            trouble=self._process.trouble,
            granted=granted,
            taken=taken,
            keeper=self._keeper.node,
            keeper_trouble=self._keeper.trouble,
            unreachable=away,
        )
        if not fleet.is_connected:
            asker.reply(state)
            return
        is_wanted = asker.defer()

        def told(told: FleetTold) -> None:
            if is_wanted():
                state.nodes, state.trouble = told.nodes, told.refused
                asker.reply(state)

        fleet.ask_nodes(told)

    def _forget_node(self, asker: Asker, request: ForgetNode) -> None:
        asker.reply(Forgotten(id=asker.id, runs=self._fleet.forget(request.node)))

    def _drain_node(self, asker: Asker, request: DrainNode) -> None:
        is_wanted = asker.defer()

        def told(told: FleetTold) -> None:
            if is_wanted() and told.refused is not None:
                asker.fail(ErrorCode.UNAVAILABLE, told.refused)
            elif not asker.answered:
                asker.reply(Done(id=asker.id))

        self._fleet.ask(
            FleetPush(id=0, what="undrain" if request.undo else "drain", node=request.node), told
        )

    # ---- `serve_fleet`, `fleet_told`: for the node's actor

    def _serve_fleet(self, asker: Asker, request: ServeFleet) -> None:
        fleet, connection = self._fleet, asker.connection
        if request.version != FLEET_VERSION or request.node != fleet.node:
            theirs = f"node {request.node} with version {request.version}"
            raise unavailable(
                f"the actor is of {theirs} of the fleet's messages; "
                f"this is node {fleet.node} with version {FLEET_VERSION}"
            )

        def push(message: FleetPush, descriptors: Sequence[int]) -> None:
            message.id = request.id
            connection.send(message, descriptors)
            if message.what == "end":
                fleet.gone(push)

        connection.on_close = lambda: fleet.gone(push)
        asker.reply(Done(id=asker.id))
        fleet.connect_actor(push)

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
        self._granted.tend(_Tending(asker, request))


class _Tending:
    """One request that waits until there is something to tell."""

    def __init__(self, asker: Asker, request: Tend) -> None:
        self._asker = asker
        self._request = request
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
        for run_id in request.runs:
            live = asker.runtime.catalogue.live.get(run_id)
            if live is not None and request.seen.get(run_id) == live.run.status:
                continue
            info = asker.runtime.catalogue.info(run_id)
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
                    runs=asker.runtime.catalogue.with_totals(rows),
                    gone=gone,
                )
            )
        return True

    @property
    def wait(self) -> float:
        return self._request.wait if self._request.runs else 0.0

    @property
    def key(self) -> tuple[str, int]:
        return "tend", self._asker.connection.number
