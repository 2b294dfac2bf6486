"""Change the limits of live runs, up or down.

The value counts from the start of the run; without an action, the old action stays. If a run has already used more, the action
follows at once. A run that the limit has paused continues if it is below the new limit; a run that is queued or paused by hand
stays so. Runs below keep their own limits.

Exit codes: 0 changed; 1 a run has ended or is being stopped; 2 a limit outside its range, or above an ancestor's; 66 no such run;
77 a run may only lower limits, its own and those of runs below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from msgspec.structs import replace

from sfad.protocol.requests.base import RunReply
from sfad.protocol.requests.steering import ChangeLimits
from sfad.protocol.types import Limit, RunInfo

from .. import limits, output, selection
from ..connection import connect
from ..exits import UsageError
from ..options import COMMON, FLEET, RUNS, Parameter
from ..selection import RunSelection, SelectionOptions

PARAMETERS: tuple[Parameter, ...] = (
    *COMMON,
    FLEET,
    replace(
        RUNS, target="words", metavar="RUN|KIND=VALUE", help="Runs, then limits: turns=50, time=2h, cost=5:pause", complete="limit"
    ),
    *selection.FILTERS,
)


def main(*, words: Sequence[str], socket: str | None = None, json: bool = False, **chosen: Unpack[SelectionOptions]) -> int:
    wanted = limits.of_flags([word for word in words if "=" in word], "sfactl limit")
    if not wanted:
        raise UsageError("say which limits, as in: sfactl limit a1 turns=50 time=2h cost=5:pause")
    chosen["runs"] = [word for word in words if "=" not in word]
    limited = RunSelection("limit", **chosen).checked()
    with connect(socket) as client:
        return limited.each(
            client,
            lambda run: _show(client.call(ChangeLimits(id=0, run=run, limits=wanted), RunReply).run, wanted, json),
        )


def _show(run: RunInfo, wanted: Sequence[Limit], json: bool) -> None:
    if json:
        output.print_json(run)
        return
    kinds = {limit.kind for limit in wanted}
    output.note(f"{run.id} is {output.outcome(run)}")
    for state in run.limits:
        if state.kind in kinds:
            output.note(f"  limit {limits.describe(state)}")
