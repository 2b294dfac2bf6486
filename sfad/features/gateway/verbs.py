"""What gateways ask and tell: which run calls, whether a call may be made, what it has used, and
what else they see."""

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial

import trio

from ...core import events as e
from ...core.state.account import Silence
from ...daemon.loop.seam import Answer, Heart
from ...daemon.server.asker import Asker, withdraw_calls
from ...daemon.server.verbs.use import once_priced
from ...host.clock import wall_clock
from ...protocol.errors import check_most
from ...protocol.event_types import EventType
from ...protocol.requests.base import Done, Request
from ...protocol.requests.gateway import AdmitCall, EndCall, SeeWindows
from ...protocol.types import CallInfo, ErrorCode, Event
from .calls import MAX_WORDS, rounded
from .gateways import Gateways
from .messages import (
    CallerFound,
    FindCaller,
    GatewaySettings,
    RefusedEgress,
    ServeGateway,
    SilentCall,
    UnaskedRequest,
    UpstreamInfo,
    WithdrawCall,
)


def verbs_of(heart: Heart, gateways: Gateways) -> Mapping[type[Request], Answer]:
    return {
        AdmitCall: partial(admit_call, heart, gateways),
        EndCall: partial(end_call, heart),
        FindCaller: partial(find_caller, heart, gateways),
        RefusedEgress: partial(refused_egress, heart),
        SeeWindows: partial(see_plan, heart),
        ServeGateway: partial(serve_gateway, heart, gateways),
        SilentCall: partial(silent_call, heart),
        UnaskedRequest: partial(unasked_request, heart),
        WithdrawCall: partial(withdraw_call, heart),
    }


# ---- `admit_call`: ask whether a model call may be made, and reserve what it may cost


def admit_call(heart: Heart, gateways: Gateways, asker: Asker, request: AdmitCall) -> None:
    time, gateway = wall_clock(), asker.peer.gateway_uid
    live = heart.catalogue.live.get(request.run)
    if live is not None and not gateways.may_ask(
        gateway, live, heart.catalogue.live[live.run.root.id].setups, request.upstream
    ):
        asker.fail(
            ErrorCode.NOT_PERMITTED,
            f"calls of run {request.run} to upstream '{request.upstream}' are another gateway's",
        )
        return
    least = (
        request.max_output if request.fixed else min(gateways.config.min_output, request.max_output)
    )

    def ask(price: e.CallPrice) -> None:
        if asker.connection.closed:  # while the price was looked up
            asker.end()
        else:
            heart.requests.ask(
                asker,
                lambda token, now: e.CallAsked(now, token, request, price, least, time, gateway),
            )

    def priced() -> None:
        ask(heart.metering.use_pricing.price_of_call(request))

    if request.free:
        priced()
        return
    once_priced(
        asker, request.run, request.model, priced, lambda why: ask(e.CallPrice(None, unsure=why))
    )


# ---- `end_call`: count what a model call has used


def end_call(heart: Heart, asker: Asker, request: EndCall) -> None:
    def count() -> None:
        found = heart.machine.reservation(request.reservation)
        if found is not None and found[1].gateway_uid == asker.peer.gateway_uid:
            pricing = heart.metering.use_pricing
            heart.feed(pricing.settled(trio.current_time(), request, found[1]))
            _tell_of_tools(heart, request)
            heart.call_settled()
        asker.reply(Done(id=request.id))

    once_priced(asker, request.run, request.model if request.tokens is not None else None, count)


def _tell_of_tools(heart: Heart, request: EndCall) -> None:
    """Tell the core which tools a reply asks for, where the run may not use all."""
    live = heart.catalogue.live.get(request.run)
    if live is None or not (any(live.run.asked.terms.tools)):
        return
    tools = tuple(name for name, _ in request.tools)
    if live.program is not None and not live.program.names_tools_like_calls:
        # the names of its events, by which tools are allowed, are not those of its calls
        tools = tuple(name for name in tools if name in live.run.asked.terms.blocked_tools)
    heart.feed(e.ToolsCalled(trio.current_time(), request.run, tools))


# ---- `find_caller`: find the run of a process that calls a model through the gateway


def find_caller(heart: Heart, gateways: Gateways, asker: Asker, request: FindCaller) -> None:
    gateway = asker.peer.gateway_uid
    run = gateways.run_of(request.token) if request.token is not None else None
    if run is None and request.cgroup is not None:
        run = heart.resources.launcher.run_of_cgroup(request.cgroup)
    live = heart.catalogue.live.get(run) if run is not None else None
    if live is None and run is not None:
        asker.fail(ErrorCode.NOT_PERMITTED, f"run {run} has ended: it makes no further call")
        return
    if live is not None and request.uid not in {None, 0, os.geteuid(), live.uid}:
        live = None  # a run's calls are its user's: who has read its token may not make them
    if live is not None and gateway not in {None, live.uid}:
        asker.fail(
            ErrorCode.NOT_PERMITTED,
            (
                "this is another user's gateway: "
                "the addresses of your run's own are in its environment"
            ),
        )
        return
    within = live if live is not None and live.run.asked.in_program else None
    if within is not None and not heart.parts().carrier().is_caller(within, request.inode):
        message = (
            f"only process {within.run.pid} may call the address of run {within.run.id}, "
            "which is an agent within it"
        )
        asker.fail(ErrorCode.NOT_PERMITTED, message)
        return
    if live is None:
        message = (
            "the calling process is in no run of this daemon: "
            "start the agent with 'sfactl run' or 'sfactl spawn'"
        )
        asker.fail(ErrorCode.NOT_PERMITTED, message)
        return
    if not live.parts.gateway:
        # it would spend the operator's key without the checks that its limits count on
        message = (
            f"run {live.run.id} was started without the gateway, so it may not call it: "
            "start the tree with --gateway"
        )
        asker.fail(ErrorCode.NOT_PERMITTED, message)
        return
    root = heart.catalogue.live[live.run.root.id]
    upstreams = {
        name: UpstreamInfo(url=each.url, api=each.api)
        for name, each in root.setups.upstreams.items()
    }
    keyed_only = gateways.leads_keyed_only(gateway, live.uid)
    # a file that another user names could stand for any authority
    trusts = not keyed_only and root.uid == live.uid
    asker.reply(
        CallerFound(
            id=request.id,
            run=live.run.id,
            upstreams=upstreams,
            certificates=root.setups.certificates if trusts else [],
            egress=[] if keyed_only or live.parts.sandbox is None else live.parts.sandbox.egress,
            keyed_only=keyed_only,
            token=gateways.passage(gateway, live.run.id),
        )
    )


# ---- `refused_egress`: tell that the gateway has refused a run a host


def refused_egress(heart: Heart, asker: Asker, request: RefusedEgress) -> None:
    if request.run in heart.catalogue.live:
        message = f"the gateway refused {request.host}, port {request.port}: {request.why}"
        refused = Event(
            type=EventType.EGRESS_REFUSED,
            severity="medium",
            message=message,
            host=request.host,
            port=request.port,
        )
        heart.feed(e.Did(trio.current_time(), request.run, refused))
    asker.reply(Done(id=request.id))


# ---- `see_plan`: take what a reply tells of a subscription


MOST_WINDOWS = 16
"""Windows that one reply may tell of."""


def see_plan(heart: Heart, asker: Asker, request: SeeWindows) -> None:
    check_most("windows of a subscription", len(request.windows), MOST_WINDOWS)
    # the run may have ended before its gateway has told
    run, gateway = heart.catalogue.known(request.run), asker.peer.gateway_uid
    if run is not None and gateway in {None, run.uid}:
        now = wall_clock()
        # a user's gateway is the user's process: what it tells of the future would hide what is
        # heard next
        time = (
            datetime.fromtimestamp(request.time, UTC)
            if 0 <= request.time <= now.timestamp()
            else now
        )
        uid = None if request.keyed and gateway is None else run.uid
        heart.feed(
            e.WindowsSeen(trio.current_time(), time.astimezone(), request, uid, now.timestamp())
        )
    asker.reply(Done(id=request.id))


# ---- `serve_gateway`: what the gateway needs to know of the config, and its listener, which its
# next process needs


def serve_gateway(heart: Heart, gateways: Gateways, asker: Asker, request: ServeGateway) -> None:
    user = asker.peer.gateway_uid
    gateway = gateways.own if user is None else gateways.of(user)
    for listener in asker.connection.take(request.descriptors) or []:
        gateway.keep(listener)
    gateway.note_serving()
    if request.reservations is not None:
        heart.feed(e.GatewayConnected(trio.current_time(), frozenset(request.reservations), user))
    asker.reply(
        GatewaySettings(
            id=request.id, upstreams=gateways.settings(user), ungated=gateways.config.ungated
        )
    )


# ---- `silent_call`: note that a model call gets no answer, or gets one after all


MAX_HOST = 255
"""Characters: DNS has no longer names (RFC 1035, section 2.3.4)."""


def silent_call(heart: Heart, asker: Asker, request: SilentCall) -> None:
    now = trio.current_time()
    silence = (
        Silence(request.host[:MAX_HOST], now - request.silent_s)
        if request.silent_s is not None
        else None
    )
    found = heart.machine.reservation(request.reservation)
    if found is not None and found[1].gateway_uid == asker.peer.gateway_uid:
        heart.feed(e.CallSilent(now, request.reservation, silence))
    asker.reply(Done(id=request.id))


# ---- `unasked_request`: record a request that costs money and about which the gateway decided by
# itself


def unasked_request(heart: Heart, asker: Asker, request: UnaskedRequest) -> None:
    # the run may have ended before its gateway has told
    run, gateway = heart.catalogue.known(request.run), asker.peer.gateway_uid
    if run is not None and gateway in {None, run.uid}:
        info = CallInfo(
            time=datetime.fromtimestamp(request.time, UTC),
            run_id=request.run,
            number=request.number,
            state="ended" if request.refused is None else "refused",
            upstream=request.upstream,
            model=None,
            status=request.status,
            refused=request.refused,
            error=request.error[:MAX_WORDS] if request.error is not None else None,
            first_byte_s=rounded(request.first_byte_s),
            elapsed_s=rounded(request.seconds),
            path=request.path,
        )
        heart.record_call(info, run.lineage_ids)
    asker.reply(Done(id=request.id))


# ---- `withdraw_call`: the caller of a call that waits has hung up


def withdraw_call(heart: Heart, asker: Asker, request: WithdrawCall) -> None:
    withdraw_calls(
        heart.requests,
        asker.connection,
        request.call,
        "the caller hung up while the call waited",
    )
    asker.reply(Done(id=request.id))
