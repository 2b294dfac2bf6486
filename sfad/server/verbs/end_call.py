"""`end_call`: count what a call of a model has used."""

import trio

from ...core import events as e
from ...protocol.messages import Done, EndCall
from ..call import Call, answers
from .report import once_priced


@answers(EndCall)
def end_call(call: Call, request: EndCall) -> None:
    runtime = call.runtime

    def count() -> None:
        found = runtime.machine.reservation(request.reservation)
        if found is not None:
            use = runtime.metering.report_pricing.use_of_call(request, found[1])
            runtime.feed(e.CallSettled(trio.current_time(), request.reservation, use, tuple(request.tools)))
            runtime.arrivals.call_settled()
        call.reply(Done(id=request.id))

    once_priced(call, request.run, request.model if request.tokens is not None else None, count)
