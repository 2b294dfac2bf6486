"""Verbs of the fleet: ways to other nodes, the node's actor, and what a giver wants of runs that it
has granted to this node."""

from collections.abc import Sequence

import trio

from ....core import events as e
from ....protocol.errors import check_most, unavailable
from ....protocol.messages import (
    FLEET_VERSION,
    Done,
    DrainNode,
    FleetNodes,
    FleetPush,
    FleetState,
    FleetStatus,
    FleetTold,
    ForgetNode,
    Forgotten,
    OverFleet,
    ServeFleet,
    SharedSubscriptions,
    ShareSubscriptions,
    Tend,
    Tended,
)
from ....protocol.types import ErrorCode, RunId, RunInfo
from ...loop.fleet import lease_until, stamp
from ..asker import Asker, answers
from ..checks import MAX_CHOSEN
from ..over_fleet.requests import FleetClient

# ---- `over_fleet`, `fleet_status`, `forget_node`: for clients


@answers(OverFleet)
async def over_fleet(asker: Asker, _request: OverFleet) -> None:
    nodes = asker.services.nodes
    await asker.aside()
    await nodes.look()
    if asker.still_wanted():
        asker.reply(FleetNodes(id=asker.id, node=nodes.own, nodes=nodes.names))
        FleetClient(nodes, asker.connection)


@answers(FleetStatus)
def fleet_status(asker: Asker, _request: FleetStatus) -> None:
    runtime = asker.runtime
    fleet = runtime.fleet
    granted, taken, away = fleet.counts()
    state = FleetState(
        id=asker.id,
        node=fleet.node,
        address=runtime.config.fleet.address or "",
        connected=fleet.is_connected,
        trouble=runtime.fleet_process.trouble,
        granted=granted,
        taken=taken,
        keeper=runtime.keeper.node,
        keeper_trouble=runtime.keeper.trouble,
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


@answers(ForgetNode)
def forget_node(asker: Asker, request: ForgetNode) -> None:
    asker.reply(Forgotten(id=asker.id, runs=asker.runtime.fleet.forget(request.node)))


@answers(DrainNode)
def drain_node(asker: Asker, request: DrainNode) -> None:
    is_wanted = asker.defer()

    def told(told: FleetTold) -> None:
        if is_wanted() and told.refused is not None:
            asker.fail(ErrorCode.UNAVAILABLE, told.refused)
        elif not asker.answered:
            asker.reply(Done(id=asker.id))

    asker.runtime.fleet.ask(
        FleetPush(id=0, what="undrain" if request.undo else "drain", node=request.node), told
    )


# ---- `serve_fleet`, `fleet_told`: for the node's actor


@answers(ServeFleet)
def serve_fleet(asker: Asker, request: ServeFleet) -> None:
    fleet, connection = asker.runtime.fleet, asker.connection
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


@answers(FleetTold)
def fleet_told(asker: Asker, request: FleetTold) -> None:
    asker.reply(Done(id=asker.id))
    asker.runtime.fleet.told(request)


# ---- `share_plans`, `tend`: for the daemon of another node


@answers(ShareSubscriptions)
def share_plans(asker: Asker, request: ShareSubscriptions) -> None:
    """Learn what a node has to share, and tell it what all know."""
    asker.runtime.keeper.check_here()
    parts = asker.runtime.parts
    parts.heard(request.plans)
    asker.reply(SharedSubscriptions(id=asker.id, plans=parts.shared()))


@answers(Tend)
def tend(asker: Asker, request: Tend) -> None:
    """Do what the giver wants of its runs, and tell it how they are as soon as it does not know."""
    check_most("runs in one request", len(request.runs), 64 * MAX_CHOSEN)
    runtime, now = asker.runtime, trio.current_time()
    for run_id, wanted in request.runs.items():
        live = runtime.catalogue.live.get(run_id)
        grant = live.run.asked.grant if live is not None else None
        if grant is not None and grant.giver == request.giver:
            until = lease_until(request.echo, grant.lease) if grant.lease is not None else None
            runtime.feed(e.GrantTended(now, run_id, wanted, until))
    runtime.granted.tend(_Tending(asker, request))


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
