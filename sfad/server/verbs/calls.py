"""`calls`: a page of a run's calls of models."""

from ...protocol.messages import CallPage, ListCalls
from ...protocol.types import RunInfo
from ..call import Call, answers_about_run


@answers_about_run(ListCalls)
def calls(call: Call, request: ListCalls, run: RunInfo) -> None:
    after = (request.after.timestamp() if request.after is not None else 0.0, request.after_number)
    found, more = call.runtime.calls.page(run.id, after)
    live = call.runtime.catalogue.live.get(run.id)
    uses = bool(live.spawn.gateway) if live is not None else run.by_gateway
    call.reply(CallPage(id=call.id, run=run.id, calls=found, more=more, ended=live is None, gateway=uses))
