import time
from typing import Annotated

from sfad.protocol.requests.base import RunReply
from sfad.protocol.requests.following import Wait
from sfad.protocol.types import RunInfo

from .. import exits, output
from ..app import OverFleet, app
from ..connecting.connection import Client, Unreachable
from ..options.selection import LiveSelection
from ..options.shared import TIME
from ..options.spreading import spread
from ..showing.waiting import left_behind


@app.command(cls=OverFleet)
@spread(LiveSelection)
def wait(
    chosen: LiveSelection,
    timeout: Annotated[
        float | None,
        TIME.option("Maximum time to wait: 90 (seconds), 90s, 5m, 1h (default: no maximum)"),
    ] = None,
) -> int:
    """Wait for runs to end.

    Prints id, status and reason of each run when it has ended, in the order given. If the
    daemon restarts, waits for it.

    Exit codes: the outcome of the first run that did not complete; 66 or 77 if one of several
    does not exist or is not yours; 75 if a run has not ended within --timeout.
    """
    give_up = None if timeout is None else time.monotonic() + timeout
    ended: list[RunInfo] = []

    def wait(client: Client, run: str) -> None:
        left = None if give_up is None else max(give_up - time.monotonic(), 0)
        try:
            ended.append(client.call(Wait(id=0, run=run, timeout=left), RunReply).run)
        except Unreachable as error:
            if give_up is not None and time.monotonic() >= give_up:
                raise exits.Quit(
                    exits.ExitCode.UNAVAILABLE, f"{run} may not have ended: {error.message}"
                ) from None
            raise
        _show(ended[-1], chosen.json)

    failed = chosen.each("wait", wait)
    return failed or next((code for code in map(exits.of_run, ended) if code), exits.ExitCode.DONE)


def _show(run: RunInfo, json: bool) -> None:
    if json:
        output.print_json(run)
    elif run.status.terminal:
        why = f": {words}" if (words := output.why_ended(run)) else ""
        print(f"{run.id}  {run.name}  {output.outcome(run)}{why}", flush=True)
        for words in left_behind(run):
            output.note(f"{run.id}: {words}")
    else:
        output.note(f"{run.id} is not over: {run.status.value}")
