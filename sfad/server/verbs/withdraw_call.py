"""`withdraw_call`: the caller of a call that waits has hung up."""

from ...protocol.messages import Done, WithdrawCall
from ..call import Call, answers, withdraw_calls


@answers(WithdrawCall)
def withdraw_call(call: Call, request: WithdrawCall) -> None:
    withdraw_calls(call.runtime, call.connection, request.call, "the caller hung up while the call waited")
    call.reply(Done(id=request.id))
