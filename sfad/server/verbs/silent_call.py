"""`silent_call`: note that a call of a model gets no answer, or gets one after all."""

import trio

from ...core import events as e
from ...core.account import Silence
from ...protocol.messages import Done, SilentCall
from ..call import Call, answers

MAX_HOST = 255
"""Characters: DNS has no longer names (RFC 1035, section 2.3.4)."""


@answers(SilentCall)
def silent_call(call: Call, request: SilentCall) -> None:
    now = trio.current_time()
    silence = Silence(request.host[:MAX_HOST], now - request.silent_s) if request.silent_s is not None else None
    found = call.runtime.machine.reservation(request.reservation)
    if found is not None and found[1].gateway == call.peer.gateway_of:
        call.runtime.feed(e.CallSilent(now, request.reservation, silence))
    call.reply(Done(id=request.id))
