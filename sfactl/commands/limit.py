from collections.abc import Sequence
from typing import Annotated, Any

from msgspec.structs import replace

from sfad.protocol.requests.base import RunReply
from sfad.protocol.requests.steering import ChangeLimits
from sfad.protocol.types import Limit, RunInfo

from .. import output
from ..app import OverFleet, app
from ..connecting.connection import Client
from ..exits import UsageError
from ..options import limits
from ..options.selection import LiveSelection
from ..options.shared import Value
from ..options.spreading import spread


def _run_or_limit(text: str) -> str | Limit:
    return limits.of_flag(text, "sfactl limit") if isinstance(text, str) and "=" in text else text


@app.command(cls=OverFleet)
@spread(LiveSelection, without=["runs"])
def limit(
    words: Annotated[
        list[Any],
        Value("RUN|KIND=VALUE", _run_or_limit, words="limit").argument(
            "Runs, then limits: turns=50, time=2h, cost=5:pause"
        ),
    ],
    chosen: LiveSelection,
) -> int:
    """Change the limits of live runs, up or down.

    The value counts from the start of the run; without an action, the old action stays. If a
    run has already used more, the action follows at once. A run that the limit has paused
    continues if it is below the new limit; a run that is queued or paused by hand stays so.
    Runs below keep their own limits.

    Exit codes: 0 changed; 1 a run has ended or is being stopped; 2 a limit outside its range,
    or above an ancestor's; 66 no such run; 77 a run may only lower limits, its own and those of
    runs below it.
    """
    wanted = limits.once(word for word in words if isinstance(word, Limit))
    if not wanted:
        raise UsageError("say which limits, as in: sfactl limit a1 turns=50 time=2h cost=5:pause")
    runs = [word for word in words if isinstance(word, str)]

    def limit(client: Client, run: str) -> None:
        request = ChangeLimits(id=0, run=run, limits=wanted)
        _show(client.call(request, RunReply).run, wanted, chosen.json)

    return replace(chosen, runs=runs).each("limit", limit)


def _show(run: RunInfo, wanted: Sequence[Limit], json: bool) -> None:
    if json:
        output.print_json(run)
        return
    kinds = {limit.kind for limit in wanted}
    output.note(f"{run.id} is {output.outcome(run)}")
    for state in run.limits:
        if state.kind in kinds:
            output.note(f"  limit {limits.describe(state)}")
