"""Verbs by which an agent tells its own use: `report`, `reserve`, `settle`."""

import os
from collections.abc import Callable
from datetime import UTC, datetime

import trio

from ....config import NAME_MAX
from ....core import events as e
from ....core.limits.calls import MAX_WORDS, rounded
from ....core.state.account import NOTHING, Silence, Use
from ....host.clock import wall_clock
from ....protocol.messages import (
    AdmitCall,
    CallerFound,
    Done,
    EndCall,
    FindCaller,
    GatewaySettings,
    RefusedEgress,
    Report,
    Reserve,
    SeePlan,
    ServeGateway,
    Settle,
    SilentCall,
    UnaskedCall,
    UpstreamInfo,
    WithdrawCall,
)
from ....protocol.types import CallInfo, ErrorCode, RunId
from ....protocol.units import MOST_COUNTED, MOST_SPENT
from ..asker import Asker, answers, withdraw_calls
from ..lookup import bad_request, check_most

# ---- `report`: count what an agent says it has used. `reserve` and `settle` share its checks, and the wait for the price.


@answers(Report)
def report(asker: Asker, request: Report) -> None:
    check_amounts(request)
    run = spender(asker, request.run)

    def count() -> None:
        use = asker.runtime.metering.use_pricing.use_of_report(run, request)
        asker.ask(e.ReportRequested, run, use)

    # tokens were used whether or not their price can be found now
    once_priced(asker, run, request.model if request.cost_usd is None else None, count)


def spender(asker: Asker, run: str | None) -> RunId:
    """Return the run whose use is meant: the one that is named, else the one that the peer is in."""
    name = run if run is not None else asker.peer.run
    if name is None:
        raise bad_request(f"say which run to {asker.permission} for: this process is in no run")
    return asker.resolve(name).id


def once_priced(
    asker: Asker, run: RunId, model: str | None, then: Callable[[], None], unsure: Callable[[str], None] | None = None
) -> None:
    """Call `then` once the price of the model is known, or known to be missing. `unsure` is called instead where the daemon cannot
    find out now."""
    is_wanted = asker.defer()

    def go_on(why: str | None = None) -> None:
        if not is_wanted():
            return
        if why is None or unsure is None:
            then()
        else:
            unsure(why)

    asker.runtime.metering.use_pricing.when_known(run, model, go_on, go_on)


def check_amounts(request: Report | Reserve | Settle) -> None:
    """Reject negative, NaN and huge amounts, and overlong names: a live run's account adds up the ones and keeps the others."""
    for field in request.__struct_fields__:
        value = getattr(request, field)
        if isinstance(value, str) and len(value) > NAME_MAX:
            raise bad_request(f"{field} has {len(value)} characters; at most {NAME_MAX}")
        most = MOST_SPENT if field == "cost_usd" else MOST_COUNTED
        if field != "id" and isinstance(value, int | float) and not 0 <= value <= most:
            raise bad_request(f"{field} = {value} is outside 0 to {most:.0f}; nothing was counted: check its unit")
    if not isinstance(request, Reserve):
        _check_cached(request.input_tokens or 0, request.cached_tokens or 0, request.cache_write_tokens or 0)


def _check_cached(whole: int, cached: int, written: int) -> None:
    """Tokens from or to a cache are part of the input, so more of them than input would be priced twice."""
    if cached + written > whole:
        raise bad_request(
            f"cached_tokens = {cached} and cache_write_tokens = {written} are more than input_tokens = {whole}, which they are "
            "part of; nothing was counted: add them to input_tokens",
        )


# ---- `reserve`: ask whether a run may make a call to a model, and reserve the most that the call may cost


@answers(Reserve)
def reserve(asker: Asker, request: Reserve) -> None:
    check_amounts(request)
    run = spender(asker, request.run)

    def reserve_estimate() -> None:
        estimate = asker.runtime.metering.use_pricing.reservation_of(run, request)
        asker.ask(e.ReserveRequested, run, estimate)

    def unsure(why: str) -> None:
        asker.fail(ErrorCode.UNAVAILABLE, f"nothing is reserved: the price of the call is not known now: {why}")

    once_priced(asker, run, request.model, reserve_estimate, unsure)


# ---- `settle`: replace a reservation by what was used


@answers(Settle)
def settle(asker: Asker, request: Settle) -> None:
    check_amounts(request)

    def count(use: Use) -> None:
        asker.ask(e.SettleRequested, request.reservation, use)

    found = asker.runtime.machine.reservation(request.reservation)
    if found is None or not asker.scope.knows(found[0].birth.uid, found[0].lineage_ids):
        count(NOTHING)  # the core says that there is no such reservation
        return
    run, reservation = found[0].id, found[1]
    asker.resolve(run)
    pricing, model = asker.runtime.metering.use_pricing, reservation.model if request.cost_usd is None else None
    # after a re-execution the daemon has not yet loaded the prices that the reservation was made with
    once_priced(asker, run, model, lambda: count(pricing.use_of_settlement(run, reservation, request)))


# ---- `admit_call`: ask whether a model call may be made, and reserve what it may cost


@answers(AdmitCall)
def admit_call(asker: Asker, request: AdmitCall) -> None:
    runtime, time, gateway = asker.runtime, wall_clock(), asker.peer.gateway_uid
    live = runtime.catalogue.live.get(request.run)
    if live is not None and not runtime.gateways.may_ask(
        gateway, live, runtime.catalogue.live[live.run.root.id].setups, request.upstream
    ):
        asker.fail(ErrorCode.NOT_PERMITTED, f"calls of run {request.run} to upstream '{request.upstream}' are another gateway's")
        return
    least = request.max_output if request.fixed else min(runtime.config.gateway.min_output, request.max_output)

    def ask(price: e.CallPrice) -> None:
        if asker.connection.closed:  # while the price was looked up
            asker.end()
        else:
            runtime.requests.ask(asker, lambda token, now: e.CallAsked(now, token, request, price, least, time, gateway))

    def priced() -> None:
        ask(runtime.metering.use_pricing.price_of_call(request))

    once_priced(asker, request.run, request.model, priced, lambda why: ask(e.CallPrice(None, unsure=why)))


# ---- `end_call`: count what a model call has used


@answers(EndCall)
def end_call(asker: Asker, request: EndCall) -> None:
    runtime = asker.runtime

    def count() -> None:
        found = runtime.machine.reservation(request.reservation)
        if found is not None and found[1].gateway_uid == asker.peer.gateway_uid:
            used = runtime.metering.use_pricing.use_of_call(request, found[1])
            runtime.feed(e.CallSettled(trio.current_time(), request, used))
            _tell_of_tools(asker, request)
            runtime.arrivals.call_settled()
        asker.reply(Done(id=request.id))

    once_priced(asker, request.run, request.model if request.tokens is not None else None, count)


def _tell_of_tools(asker: Asker, request: EndCall) -> None:
    """Tell the core which tools a reply asks for, where the run may not use all."""
    live = asker.runtime.catalogue.live.get(request.run)
    if live is None or not (live.spawn.allowed_tools or live.spawn.blocked_tools):
        return
    tools = tuple(name for name, _ in request.tools)
    if live.program is not None and not live.program.names_tools_like_calls:
        # the names of its events, by which tools are allowed, are not those of its calls
        tools = tuple(name for name in tools if name in live.spawn.blocked_tools)
    asker.runtime.feed(e.ToolsCalled(trio.current_time(), request.run, tools))


# ---- `find_caller`: find the run of a process that calls a model through the gateway


@answers(FindCaller)
def find_caller(asker: Asker, request: FindCaller) -> None:
    runtime, gateway = asker.runtime, asker.peer.gateway_uid
    run = runtime.gateways.run_of(request.token) if request.token is not None else None
    if run is None and request.cgroup is not None:
        run = runtime.launcher.run_of_cgroup(request.cgroup)
    live = asker.runtime.catalogue.live.get(run) if run is not None else None
    if live is not None and request.uid not in {None, 0, os.geteuid(), live.uid}:
        live = None  # a run's calls are its user's: who has read its token may not make them
    if live is not None and gateway not in {None, live.uid}:
        asker.fail(
            ErrorCode.NOT_PERMITTED, "this is another user's gateway: the addresses of your run's own are in its environment"
        )
        return
    if live is None:
        message = "the calling process is in no run of this daemon: start the agent with 'sfactl run' or 'sfactl spawn'"
        asker.fail(ErrorCode.NOT_PERMITTED, message)
        return
    if not live.spawn.gateway:
        # it would spend the operator's key without the checks that its limits count on
        message = f"run {live.run.id} was started without the gateway, so it may not call it: start the tree with --gateway"
        asker.fail(ErrorCode.NOT_PERMITTED, message)
        return
    root = asker.runtime.catalogue.live[live.run.root.id]
    upstreams = {name: UpstreamInfo(url=each.url, api=each.api) for name, each in root.setups.upstreams.items()}
    keyed_only = runtime.gateways.leads_keyed_only(gateway, live.uid)
    # a file that another user names could stand for any authority
    trusts = not keyed_only and root.uid == live.uid
    asker.reply(
        CallerFound(
            id=request.id,
            run=live.run.id,
            upstreams=upstreams,
            certificates=root.setups.certificates if trusts else [],
            egress=live.spawn.isolation.egress if live.spawn.isolation is not None and not keyed_only else [],
            keyed_only=keyed_only,
            token=runtime.gateways.passage(gateway, live.run.id),
        )
    )


# ---- `refused_egress`: tell that the gateway has refused a run a host


@answers(RefusedEgress)
def refused_egress(asker: Asker, request: RefusedEgress) -> None:
    if request.run in asker.runtime.catalogue.live:
        asker.runtime.feed(e.EgressRefused(trio.current_time(), request.run, request.host, request.port, request.why))
    asker.reply(Done(id=request.id))


# ---- `see_plan`: take what a reply tells of a subscription


MOST_WINDOWS = 16
"""Windows that one reply may tell of."""


@answers(SeePlan)
def see_plan(asker: Asker, request: SeePlan) -> None:
    check_most("windows of a subscription", len(request.windows), MOST_WINDOWS)
    live, gateway = asker.runtime.catalogue.live.get(request.run), asker.peer.gateway_uid
    if gateway is None or (live is not None and live.uid == gateway):
        now = wall_clock()
        # a user's gateway is the user's process: what it tells of the future would hide what is heard next
        time = datetime.fromtimestamp(request.time, UTC) if 0 <= request.time <= now.timestamp() else now
        asker.runtime.feed(e.PlanSeen(trio.current_time(), time.astimezone(), request))
    asker.reply(Done(id=request.id))


# ---- `serve_gateway`: what the gateway needs to know of the config, and its listener, which its next process needs


@answers(ServeGateway)
def serve_gateway(asker: Asker, request: ServeGateway) -> None:
    runtime, user = asker.runtime, asker.peer.gateway_uid
    gateway = runtime.gateways.own if user is None else runtime.gateways.of(user)
    for listener in asker.connection.take(request.descriptors) or []:
        gateway.keep(listener)
    gateway.serves()
    if request.reservations is not None:
        runtime.feed(e.GatewayConnected(trio.current_time(), frozenset(request.reservations), user))
    ungated = runtime.config.gateway.ungated
    asker.reply(GatewaySettings(id=request.id, upstreams=runtime.gateways.settings(user), ungated=ungated))


# ---- `silent_call`: note that a model call gets no answer, or gets one after all


MAX_HOST = 255
"""Characters: DNS has no longer names (RFC 1035, section 2.3.4)."""


@answers(SilentCall)
def silent_call(asker: Asker, request: SilentCall) -> None:
    now = trio.current_time()
    silence = Silence(request.host[:MAX_HOST], now - request.silent_s) if request.silent_s is not None else None
    found = asker.runtime.machine.reservation(request.reservation)
    if found is not None and found[1].gateway_uid == asker.peer.gateway_uid:
        asker.runtime.feed(e.CallSilent(now, request.reservation, silence))
    asker.reply(Done(id=request.id))


# ---- `unasked_call`: record a request that costs money and about which the gateway decided by itself


@answers(UnaskedCall)
def unasked_call(asker: Asker, request: UnaskedCall) -> None:
    live = asker.runtime.catalogue.live.get(request.run)
    if live is not None:
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
        asker.runtime.saver.record_call(info, live.lineage_ids)
    asker.reply(Done(id=request.id))


# ---- `withdraw_call`: the caller of a call that waits has hung up


@answers(WithdrawCall)
def withdraw_call(asker: Asker, request: WithdrawCall) -> None:
    withdraw_calls(asker.runtime.requests, asker.connection, request.call, "the caller hung up while the call waited")
    asker.reply(Done(id=request.id))
