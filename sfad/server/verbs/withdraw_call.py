"""`withdraw_call`: the caller of a call that waits has hung up."""

import trio

from ...core import events as e
from ...protocol.messages import Done, WithdrawCall
from ..call import Call, answers


@answers(WithdrawCall)
def withdraw_call(call: Call, request: WithdrawCall) -> None:
    for token, askers in call.runtime.requests.askers().items():
        for asker in askers:
            if isinstance(asker, Call) and asker.connection is call.connection and asker.id == request.call:
                call.runtime.requests.forget(token)
                asker.end()
                call.runtime.feed(e.CallWithdrawn(trio.current_time(), token))
    call.reply(Done(id=request.id))
