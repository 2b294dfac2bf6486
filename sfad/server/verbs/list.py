"""`list`: a page of runs."""

from msgspec.structs import replace

from ...core.policy import MAX_LABELS
from ...ledger.reader import Page
from ...protocol.messages import List, RunList
from ..call import Call, answers
from ..checks import check_filters, check_most

MAX_ROWS = 1000
"""Ended runs in one page: 50 ms. Clients ask for the next page."""


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
    runs = [run for run in found.runs if run.id != call.peer.run] if request.sessions else found.runs
    call.reply(RunList(id=call.id, runs=catalogue.with_totals(runs), next=found.reached or None))
