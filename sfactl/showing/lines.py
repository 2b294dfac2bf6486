"""The line of a run: the runs that have continued each other's session, and what they have cost
together."""

from __future__ import annotations

from msgspec import Struct

from sfad.protocol.requests.base import RunReply
from sfad.protocol.requests.listing import Info
from sfad.protocol.types import ErrorCode, RunId, RunInfo

from .. import output
from ..connecting.connection import Client, DaemonError

MAX_LINE = 100
"""Runs before, and after, the one that is shown."""


class Line(Struct, frozen=True, kw_only=True):
    runs: list[RunId]
    """The first run, the one that continues it, and so on."""
    total_cost_usd: float | None
    """Of all, with their descendants; `None` if it is known of none."""
    total_tokens: int | None
    partial: bool
    """The sums may still grow, or lack a run."""
    at_most: bool = False

    @property
    def words(self) -> str:
        cost = output.bounded(output.usd(self.total_cost_usd), self)
        in_all = f"; {cost} USD in all" if self.total_cost_usd is not None else ""
        return f"{' → '.join(self.runs)}{in_all}"


def line_of(client: Client, run: RunInfo) -> Line | None:
    """Return the line of a run; `None` if it continues no run, and none continues it."""
    if run.continues is None and run.continued_by is None:
        return None
    found, lacks = [run], False
    while found[0].continues is not None and len(found) < MAX_LINE:
        before = _info(client, found[0].continues)
        if before is None:
            lacks = True
            break
        found.insert(0, before)
    for _ in range(MAX_LINE):
        if (next_ := found[-1].continued_by) is None:
            break
        after = _info(client, next_)
        if after is None:
            lacks = True
            break
        found.append(after)
    return line(found, lacks=lacks)


def line(runs: list[RunInfo], *, lacks: bool = False) -> Line:
    """Return the line of these runs, the first one first. `lacks`: a run of it is not known any
    more."""
    whole = [run.in_all for run in runs]
    costs = [each.cost_usd for each in whole if each.cost_usd is not None]
    tokens = [each.tokens for each in whole if each.tokens is not None]
    return Line(
        runs=[run.id for run in runs],
        total_cost_usd=round(sum(costs), 9) if costs else None,
        total_tokens=sum(tokens) if tokens else None,
        partial=lacks or any(each.partial for each in whole),
        at_most=any(each.at_most for each in whole),
    )


def _info(client: Client, run: RunId) -> RunInfo | None:
    try:
        return client.call(Info(id=0, run=run), RunReply).run
    except DaemonError as error:
        if error.error not in (ErrorCode.NO_SUCH_RUN, ErrorCode.NOT_PERMITTED):
            raise
        return None
