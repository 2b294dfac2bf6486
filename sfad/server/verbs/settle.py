"""`settle`: replace a reservation by what was used."""

from ...core import events as e
from ...core.account import NOTHING, Use
from ...protocol.messages import Settle
from ..call import Call, answers
from .report import check_amounts, once_priced


@answers(Settle)
def settle(call: Call, request: Settle) -> None:
    check_amounts(request)

    def count(use: Use) -> None:
        call.ask(e.SettleRequested, request.reservation, use)

    found = call.runtime.machine.reservation(request.reservation)
    if found is None or not call.scope.knows(found[0].birth.uid, found[0].lineage_ids):
        count(NOTHING)  # the core says that there is no such reservation
        return
    run, reservation = found[0].id, found[1]
    call.resolve(run)
    pricing, model = call.runtime.metering.report_pricing, reservation.model if request.cost_usd is None else None
    # after a re-execution the daemon has not yet loaded the prices that the reservation was made with
    once_priced(call, run, model, lambda: count(pricing.use_of_settlement(run, reservation, request)))
