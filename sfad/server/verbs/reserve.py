"""`reserve`: ask whether a run may make a call to a model, and reserve the most that the call may cost."""

from ...core import events as e
from ...protocol.messages import Reserve
from ...protocol.types import ErrorCode
from ..call import Call, answers
from .report import check_amounts, once_priced, spender


@answers(Reserve)
def reserve(call: Call, request: Reserve) -> None:
    check_amounts(request)
    run = spender(call, request.run)

    def reserve_estimate() -> None:
        estimate = call.runtime.metering.report_pricing.reservation_of(run, request)
        call.ask(e.ReserveRequested, run, estimate)

    def unsure(why: str) -> None:
        call.fail(ErrorCode.UNAVAILABLE, f"nothing is reserved: the price of the call is not known now: {why}")

    once_priced(call, run, request.model, reserve_estimate, unsure)
