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
        if found is not None and found[1].gateway == call.peer.gateway_of:
            used = runtime.metering.report_pricing.use_of_call(request, found[1])
            runtime.feed(e.CallSettled(trio.current_time(), request, used))
            _tell_of_tools(call, request)
            runtime.arrivals.call_settled()
        call.reply(Done(id=request.id))

    once_priced(call, request.run, request.model if request.tokens is not None else None, count)


def _tell_of_tools(call: Call, request: EndCall) -> None:
    """Tell the core which tools a reply asks for, where the run may not use all."""
    live = call.runtime.catalogue.live.get(request.run)
    if live is None or not (live.spawn.allowed_tools or live.spawn.blocked_tools):
        return
    tools = tuple(name for name, _ in request.tools)
    if live.program is not None and not live.program.names_tools_like_calls:
        # the names of its events, by which tools are allowed, are not those of its calls
        tools = tuple(name for name in tools if name in live.spawn.blocked_tools)
    call.runtime.feed(e.ToolsCalled(trio.current_time(), request.run, tools))
