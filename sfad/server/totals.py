"""What live and ended runs have used together with their descendants."""

from __future__ import annotations

from collections.abc import Sequence

from ..ledger.totals import used_by, with_totals
from ..loop.runtime import Runtime
from ..protocol.types import RunInfo


def totalled(runtime: Runtime, runs: Sequence[RunInfo]) -> list[RunInfo]:
    """Return the runs with their totals."""
    roots = {info.root_id for info in runs if info.descendants}
    if not roots:
        return with_totals(runs, {})
    used = runtime.ledger.used_below(roots)
    for live in runtime.live.values():
        parent = live.run.parent
        if parent is not None and live.run.root.id in roots:
            used[live.run.id] = used_by(parent.id, live.usage())
    return with_totals(runs, used)
