"""`admit_call`: ask whether a call of a model may be made, and reserve what it may cost."""

from ...core import events as e
from ...host.clock import wall_clock
from ...protocol.messages import AdmitCall
from ..call import Call, answers
from .report import once_priced


@answers(AdmitCall)
def admit_call(call: Call, request: AdmitCall) -> None:
    runtime, time = call.runtime, wall_clock()
    least = request.max_output if request.fixed else min(runtime.config.gateway.min_output, request.max_output)

    def ask(price: e.CallPrice) -> None:
        if call.connection.closed:  # while the price was looked up
            call.end()
        else:
            runtime.requests.ask(call, lambda token, now: e.CallAsked(now, token, request, price, least, time))

    def priced() -> None:
        ask(runtime.metering.report_pricing.price_of_call(request))

    once_priced(call, request.run, request.model, priced, lambda why: ask(e.CallPrice(None, unsure=why)))
