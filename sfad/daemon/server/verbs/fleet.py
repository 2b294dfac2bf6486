"""Verbs of the fleet: ways to other nodes, the node's actor, and what a giver wants of runs that it has granted to this node."""

from collections.abc import Sequence

import trio

from ....core import events as e
from ....protocol.messages import (
    FLEET_VERSION,
    AskAllowances,
    Done,
    DrainNode,
    FleetPush,
    FleetState,
    FleetStatus,
    FleetTold,
    FleetWay,
    ForgetNode,
    Forgotten,
    OpenFleet,
    ServeFleet,
    SharedPlans,
    SharePlans,
    Tend,
    Tended,
)
from ....protocol.types import ErrorCode, RunId, RunInfo
from ...loop.fleet import lease_until, stamp
from ..call import Call, answers
from ..lookup import MAX_CHOSEN, check_most, unavailable

# ---- `open_fleet`, `fleet_status`, `forget_node`: for clients


@answers(OpenFleet)
def open_fleet(call: Call, request: OpenFleet) -> None:
    fleet = call.runtime.fleet
    if request.node is not None:
        way = fleet.way(request.node)
        way.setblocking(True)
        call.reply(FleetWay(id=call.id, node=fleet.node, descriptors=1), [way.detach()])
        return
    is_wanted = call.defer()

    def told(told: FleetTold) -> None:
        if not is_wanted():
            return
        if told.refused is not None:
            call.fail(ErrorCode.UNAVAILABLE, told.refused)
        else:
            call.reply(FleetWay(id=call.id, node=fleet.node, nodes=[node.name for node in told.nodes]))

    fleet.ask_nodes(told)


@answers(FleetStatus)
def fleet_status(call: Call, _request: FleetStatus) -> None:
    runtime = call.runtime
    fleet = runtime.fleet
    granted, taken, away = fleet.counts()
    state = FleetState(
        id=call.id,
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
        call.reply(state)
        return
    is_wanted = call.defer()

    def told(told: FleetTold) -> None:
        if is_wanted():
            state.nodes, state.trouble = told.nodes, told.refused
            call.reply(state)

    fleet.ask_nodes(told)


@answers(ForgetNode)
def forget_node(call: Call, request: ForgetNode) -> None:
    call.reply(Forgotten(id=call.id, runs=call.runtime.fleet.forget(request.node)))


@answers(DrainNode)
def drain_node(call: Call, request: DrainNode) -> None:
    is_wanted = call.defer()

    def told(told: FleetTold) -> None:
        if is_wanted() and told.refused is not None:
            call.fail(ErrorCode.UNAVAILABLE, told.refused)
        elif not call.answered:
            call.reply(Done(id=call.id))

    call.runtime.fleet.ask(FleetPush(id=0, what="undrain" if request.undo else "drain", node=request.node), told)


# ---- `serve_fleet`, `fleet_told`: for the node's actor


@answers(ServeFleet)
def serve_fleet(call: Call, request: ServeFleet) -> None:
    fleet, connection = call.runtime.fleet, call.connection
    if request.version != FLEET_VERSION or request.node != fleet.node:
        theirs = f"node {request.node} with version {request.version}"
        raise unavailable(
            f"the actor is of {theirs} of the fleet's messages; this is node {fleet.node} with version {FLEET_VERSION}"
        )

    def push(message: FleetPush, descriptors: Sequence[int]) -> None:
        message.id = request.id
        connection.send(message, descriptors)
        if message.what == "end":
            fleet.gone(push)

    connection.on_close = lambda: fleet.gone(push)
    call.reply(Done(id=call.id))
    fleet.serves(push)


@answers(FleetTold)
def fleet_told(call: Call, request: FleetTold) -> None:
    call.reply(Done(id=call.id))
    call.runtime.fleet.told(request)


# ---- `ask_allowances`, `share_plans`, `tend`: for the daemon of another node


@answers(AskAllowances)
def ask_allowances(call: Call, request: AskAllowances) -> None:
    """Give a node its parts of the budgets that this one keeps."""
    here = _kept_here(call)
    call.runtime.requests.ask(call, lambda token, now: e.AllowancesAsked(now, token, request, here))


@answers(SharePlans)
def share_plans(call: Call, request: SharePlans) -> None:
    """Learn what a node knows of subscriptions, and tell it what all know."""
    _kept_here(call)
    keeper = call.runtime.keeper
    keeper.learn(request.plans)
    call.reply(SharedPlans(id=call.id, plans=keeper.plans()))


def _kept_here(call: Call) -> str:
    """Return this node, which is the fleet's keeper. Raise `RequestError` if it is not."""
    here, keeper = call.runtime.fleet.node, call.runtime.keeper.node
    if keeper != here:
        raise unavailable(f"node {here} does not keep the budgets of this fleet; for it the keeper is {keeper or 'not known yet'}")
    return here


@answers(Tend)
def tend(call: Call, request: Tend) -> None:
    """Do what the giver wants of its runs, and tell it how they are as soon as it does not know."""
    check_most("runs in one request", len(request.runs), 64 * MAX_CHOSEN)
    runtime, now = call.runtime, trio.current_time()
    for run_id, wanted in request.runs.items():
        live = runtime.catalogue.live.get(run_id)
        grant = live.run.asked.grant if live is not None else None
        if grant is not None and grant.giver == request.giver:
            until = lease_until(request.echo, grant.lease) if grant.lease is not None else None
            runtime.feed(e.GrantTended(now, run_id, wanted, until))
    runtime.granted.tend(_Tending(call, request))


class _Tending:
    """One request that waits until there is something to tell."""

    def __init__(self, call: Call, request: Tend) -> None:
        self._call = call
        self._request = request
        self.giver = request.giver
        self._is_wanted = call.defer()

    def answer(self, *, whatever: bool) -> bool:
        """Answer if there is anything to tell, or `whatever` there is. Return whether it was answered, or need not be."""
        call, request = self._call, self._request
        if call.connection.closed:
            call.end()
            return True
        rows: list[RunInfo] = []
        gone: list[RunId] = []
        for run_id in request.runs:
            live = call.runtime.catalogue.live.get(run_id)
            if live is not None and request.seen.get(run_id) == live.run.status:
                continue
            info = call.runtime.catalogue.info(run_id)
            if info is None or info.fleet is None or info.fleet.giver != request.giver:
                gone.append(run_id)
            elif info.status != request.seen.get(run_id):
                rows.append(info)
        if not (rows or gone or whatever):
            return False
        if self._is_wanted():
            call.reply(Tended(id=call.id, stamp=stamp(), runs=call.runtime.catalogue.with_totals(rows), gone=gone))
        return True

    @property
    def wait(self) -> float:
        return self._request.wait if self._request.runs else 0.0

    @property
    def key(self) -> tuple[str, int]:
        return "tend", self._call.connection.number
