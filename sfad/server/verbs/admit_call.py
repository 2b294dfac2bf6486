"""`admit_call`: ask whether a call of a model may be made, and reserve what it may cost."""

from ...core import events as e
from ...host.clock import wall_clock
from ...protocol.messages import AdmitCall
from ...protocol.types import ErrorCode
from ..call import Call, answers
from .report import once_priced


@answers(AdmitCall)
def admit_call(call: Call, request: AdmitCall) -> None:
    runtime, time, gateway = call.runtime, wall_clock(), call.peer.gateway_of
    live = runtime.catalogue.live.get(request.run)
    if live is not None and not runtime.gateways.may_ask(
        gateway, live, runtime.catalogue.live[live.run.root.id].setups, request.upstream
    ):
        call.fail(ErrorCode.NOT_PERMITTED, f"calls of run {request.run} to upstream '{request.upstream}' are another gateway's")
        return
    least = request.max_output if request.fixed else min(runtime.config.gateway.min_output, request.max_output)

    def ask(price: e.CallPrice) -> None:
        if call.connection.closed:  # while the price was looked up
            call.end()
        else:
            runtime.requests.ask(call, lambda token, now: e.CallAsked(now, token, request, price, least, time, gateway))

    def priced() -> None:
        ask(runtime.metering.report_pricing.price_of_call(request))

    once_priced(call, request.run, request.model, priced, lambda why: ask(e.CallPrice(None, unsure=why)))
