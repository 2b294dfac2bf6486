"""`list`: a page of runs."""

from __future__ import annotations

from collections.abc import Iterator

import trio
from msgspec.structs import replace

from ...core.policy import MAX_LABELS
from ...ledger.reader import Page, Selection
from ...loop.runtime import Runtime
from ...protocol.messages import List, RunList
from ...protocol.types import RunInfo
from ..call import Call, answers
from ..checks import check_filters, check_most
from ..pages import fits
from ..totals import totalled

MAX_ROWS = 1000
"""Ended runs in one page: 50 ms. Clients ask for the next page."""


@answers(List)
def list_(call: Call, request: List) -> None:
    check_filters(request)
    check_most("statuses", len(request.status), MAX_LABELS)
    root = call.resolve(request.root).id if request.root is not None else None
    query = replace(request, root=None, rows=max(0, min(request.rows, MAX_ROWS)))
    found = _select(call.runtime, Page(query, within=root or call.peer.run))
    call.reply(RunList(id=call.id, runs=totalled(call.runtime, found.runs), next=found.reached or None))


def _select(runtime: Runtime, page: Page) -> Selection:
    # the ledger's writer may be behind, so live and recent runs are taken from memory
    older = runtime.ledger.select(page.query, within=page.within)
    runs = {info.id: info for info in older.runs if info.id not in runtime.live}
    runs |= {run: entry.info for run, entry in runtime.recent.items() if fits(page, entry.info, entry.chain)}
    runs |= {info.id: info for info in _live(runtime, page)}
    return Selection.of(runs.values(), page.query.rows, older.reached)


def _live(runtime: Runtime, page: Page) -> Iterator[RunInfo]:
    now, loads = trio.current_time(), runtime.launcher.loads(runtime.live) if page.query.live else {}
    for run, live in runtime.live.items():
        load = loads.get(run)
        known = {} if load is None else {"processes": load.processes, "memory_bytes": load.memory_bytes}
        info = live.info(now, **known)
        if fits(page, info, live.chain):
            yield info
