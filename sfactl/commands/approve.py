from sfad.protocol.requests.base import RunReply
from sfad.protocol.requests.steering import Approve

from .. import output
from ..app import app
from ..options import limits
from ..options.selection import RunSelection
from ..options.shared import NewLimits
from ..options.spreading import spread


@app.command()
@spread(RunSelection)
def approve(chosen: RunSelection, limit: NewLimits = []) -> int:
    """Approve the increase that a run waits for, and let the run continue.

    For a run that is paused by a limit with the action request_increase; `sfactl why RUN` shows
    it. --limit sets the new limit, which counts from the start of the run and is at most an
    ancestor's; without --limit, the old limit only warns from now on. Works only outside any
    run: no agent approves its own increase.

    Exit codes: 0 it runs; 1 it does not wait for approval; 2 a limit outside its range; 66 no
    such run; 77 not permitted.
    """
    room = limits.once(limit)
    return chosen.each(
        "approve",
        lambda client, run: output.changed(
            client.call(Approve(id=0, run=run, limits=room), RunReply).run, chosen.json
        ),
    )
