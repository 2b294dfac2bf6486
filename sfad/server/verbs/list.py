"""`list`: a page of runs."""

from msgspec.structs import replace

from ...core.policy import MAX_LABELS
from ...ledger.reader import Page
from ...protocol.messages import List
from ..call import Call, answers
from ..checks import check_filters, check_most
from ..encoded import RunRows

MAX_ROWS = 1000
"""Ended runs in one page: 25 ms where none is encoded yet. Clients ask for the next page."""


@answers(List)
def list_(call: Call, request: List) -> None:
    check_filters(request)
    check_most("statuses", len(request.status), MAX_LABELS)
    root = call.resolve(request.root).id if request.root is not None else None
    query = replace(request, root=None, rows=max(0, min(request.rows, MAX_ROWS)))
    catalogue = call.runtime.catalogue
    footprints = call.runtime.launcher.footprints(catalogue.live_runs(call.scope)) if query.live else {}
    found = catalogue.select(Page(query, call.scope, within=root), footprints)
    # a session does not count itself among those that it may look after
    live = [run for run in found.live if run.id != call.peer.run] if request.sessions else found.live
    call.reply(RunRows(id=call.id, runs=found.rows(live), next=found.next))
