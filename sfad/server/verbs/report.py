"""`report`: count what an agent says it has used."""

from __future__ import annotations

from ...core import events as e
from ...protocol.messages import Report
from ..call import Call, answers
from ..spending import check_amounts, once_priced, spender


@answers(Report)
def report(call: Call, request: Report) -> None:
    check_amounts(request)
    run = spender(call, request.run)

    def count() -> None:
        use = call.runtime.metering.use_of_report(run, request)
        call.ask(lambda token, now: e.ReportRequested(now, token, call.peer, run, use))

    # tokens were used whether or not their price can be found now
    once_priced(call, run, request.model if request.cost_usd is None else None, count)
