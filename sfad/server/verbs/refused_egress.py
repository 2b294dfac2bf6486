"""`refused_egress`: tell that the gateway has refused a run a host."""

import trio

from ...core import events as e
from ...protocol.messages import Done, RefusedEgress
from ..call import Call, answers


@answers(RefusedEgress)
def refused_egress(call: Call, request: RefusedEgress) -> None:
    if request.run in call.runtime.catalogue.live:
        call.runtime.feed(e.EgressRefused(trio.current_time(), request.run, request.host, request.port, request.why))
    call.reply(Done(id=request.id))
