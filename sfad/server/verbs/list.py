"""`list`: a page of runs."""

from msgspec import Raw
from msgspec.structs import replace

from ...core.policy import MAX_LABELS
from ...ledger.reader import Page
from ...loop.runtime import Runtime
from ...protocol.messages import List, pack
from ...protocol.types import RunId
from ..call import Call, answers
from ..checks import check_filters, check_most
from ..encoded import RunRows

MAX_ROWS = 1000
"""Ended runs in one page: 25 ms where none is encoded yet. Clients ask for the next page."""


@answers(List)
def list_(call: Call, request: List) -> None:
    check_filters(request)
    check_most("statuses", len(request.status), MAX_LABELS)
    root = call.find(request.root) if request.root is not None else None
    query = replace(request, id=0, root=None, rows=max(0, min(request.rows, MAX_ROWS)), limits=True)
    page, limits = Page(query, call.scope, within=root), request.limits
    key = pack(query), page.scope, root, limits
    rows, more = call.services.looks.of(key, lambda: _look(call.runtime, page, limits=limits))
    call.reply(RunRows(id=call.id, runs=rows, next=more))


def _look(runtime: Runtime, page: Page, *, limits: bool) -> tuple[list[Raw], RunId | None]:
    catalogue = runtime.catalogue
    footprints = runtime.launcher.footprints(catalogue.live_runs(page.scope)) if page.query.live else {}
    found = catalogue.select(page, footprints, limits=limits)
    # a session does not count itself among those that it may look after
    live = [run for run in found.live if run.id != page.scope.run] if page.query.sessions else found.live
    return found.rows(live), found.next
