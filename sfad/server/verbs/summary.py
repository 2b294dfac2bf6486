"""`summary`: how the runs created since a time have ended, and what they used."""

from functools import partial

from ...ledger.summary import page_of, summarise
from ...protocol.messages import Summarise, Summarised
from ..call import Call, answers
from ..checks import MAX_SECONDS, bad_request, check_filters


@answers(Summarise)
def summary(call: Call, request: Summarise) -> None:
    check_filters(request)
    if not abs(request.since) <= MAX_SECONDS:  # also false for a NaN
        raise bad_request(f"since must be Unix seconds, at most {MAX_SECONDS:.0f} from 1970")
    page = page_of(request, call.scope)
    work = partial(summarise, call.runtime.ledger.file.directory, page, request.by, call.runtime.catalogue.unwritten(page))
    call.later(
        lambda: call.runtime.background.walk(work, call.connection.groups.all), lambda found: Summarised(id=call.id, summary=found)
    )
