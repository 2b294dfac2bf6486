"""`end_call`: count what a call of a model has used."""

import trio

from ...core import events as e
from ...core.calls import MAX_WORDS
from ...protocol.messages import Done, EndCall
from ..call import Call, answers
from .report import once_priced


def rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)


@answers(EndCall)
def end_call(call: Call, request: EndCall) -> None:
    runtime = call.runtime

    def count() -> None:
        found = runtime.machine.reservation(request.reservation)
        if found is not None:
            use = runtime.metering.report_pricing.use_of_call(request, found[1])
            end = e.CallEnd(
                status=request.status,
                cache_write_tokens=request.tokens.cache_write if request.tokens is not None else None,
                tools=len(request.tools),
                first_byte_s=rounded(request.first_byte_s),
                elapsed_s=rounded(request.seconds),
                error=request.error[:MAX_WORDS] if request.error is not None else None,
                failed=request.failed,
                cut=request.cut,
            )
            runtime.feed(e.CallSettled(trio.current_time(), request.reservation, use, end, tuple(request.tools)))
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
