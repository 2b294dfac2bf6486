"""`select`: which runs a command line means. The peer needs the permission for what is to be done to them."""

from __future__ import annotations

from ...core.access import OUTSIDE, VERBS
from ...protocol.messages import Failure, Select, Selected
from ..call import Call, answers
from ..choosing import check_choice, swept
from ..errors import RequestError, bad_request


@answers(Select, permission=None)
def select(call: Call, request: Select) -> None:
    if request.verb not in VERBS | OUTSIDE:
        raise bad_request(f"unknown verb '{request.verb[:80]}'")
    call.permit(request.verb)
    check_choice(request)
    named, failed = [], []
    for handle in dict.fromkeys(request.runs):
        try:
            named.append(call.resolve(handle, request.verb).id)
        except RequestError as error:
            failed.append(Failure(run=handle, code=error.code, message=str(error)))
    runs = dict.fromkeys([*named, *swept(call, request, request.verb)])
    call.reply(Selected(id=call.id, runs=list(runs), failed=failed))
