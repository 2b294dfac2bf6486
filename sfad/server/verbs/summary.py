"""`summary`: how the runs created since a time have ended, and what they used."""

from __future__ import annotations

from functools import partial

import trio

from ...ledger.reader import Page
from ...ledger.summary import Unwritten, summarise
from ...loop.runtime import Runtime
from ...protocol.errors import ErrorCode
from ...protocol.messages import List, Summarise, Summarised
from ..call import Call, answers
from ..checks import MAX_SECONDS, check_filters
from ..errors import RequestError
from ..pages import fits


@answers(Summarise)
def summary(call: Call, request: Summarise) -> None:
    check_filters(request)
    if not abs(request.since) <= MAX_SECONDS:  # also false for a NaN
        raise RequestError(ErrorCode.BAD_REQUEST, f"since must be Unix seconds, at most {MAX_SECONDS:.0f} from 1970")
    query = List(id=0, since=request.since, name=request.name, user=request.user, labels=request.labels)
    page = Page(query, within=call.peer.run)
    work = partial(summarise, call.runtime.ledger.directory, page, request.by, _unwritten(call.runtime, page))
    call.later(lambda: call.runtime.walk(work), lambda found: Summarised(id=call.id, summary=found))


def _unwritten(runtime: Runtime, page: Page) -> Unwritten:
    """Return the runs of the page that the ledger's file does not know as they are now, with their models."""
    now = trio.current_time()
    ended = [(info, extra.model) for info, extra in runtime.ledger.unwritten(page) if info.id not in runtime.live]
    live = ((live.info(now), live) for live in runtime.live.values())
    return [*ended, *((info, one.model) for info, one in live if fits(page, info, one.chain))]
