"""`summary`: how the runs created since a time have ended, and what they used."""

from __future__ import annotations

from functools import partial

from ...ledger.reader import Page
from ...ledger.summary import summarise
from ...protocol.errors import ErrorCode
from ...protocol.messages import List, Summarise, Summarised
from ..call import Call, answers
from ..checks import MAX_SECONDS, check_filters
from ..errors import RequestError


@answers(Summarise)
def summary(call: Call, request: Summarise) -> None:
    check_filters(request)
    if not abs(request.since) <= MAX_SECONDS:  # also false for a NaN
        raise RequestError(ErrorCode.BAD_REQUEST, f"since must be Unix seconds, at most {MAX_SECONDS:.0f} from 1970")
    query = List(id=0, since=request.since, name=request.name, user=request.user, labels=request.labels)
    page = Page(query, within=call.peer.run)
    work = partial(summarise, call.runtime.ledger.directory, page, request.by, call.runtime.catalogue.unwritten(page))
    call.later(lambda: call.runtime.background.walk(work), lambda found: Summarised(id=call.id, summary=found))
