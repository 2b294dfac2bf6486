from sfad.protocol.requests.base import RunReply
from sfad.protocol.requests.steering import Approve

from .. import output
from ..app import app
from ..exits import UsageError
from ..options import limits
from ..options.selection import RunSelection, one_call
from ..options.shared import NewLimits
from ..options.spreading import spread


@app.command()
@spread(RunSelection)
def approve(chosen: RunSelection, limit: NewLimits = []) -> int:
    """Approve the increase that a run waits for, and let the run continue; or a call of a tool.

    RUN CALL, as in a4 call-1, allows one call of a tool that the agent of the run asks for
    (spawn --approvals); sfactl why RUN shows what it is.

    For a run that is paused by a limit with the action request_increase; `sfactl why RUN` shows
    it. --limit sets the new limit, which counts from the start of the run and is at most an
    ancestor's; without --limit, the old limit only warns from now on. Works only outside any
    run: no agent approves its own increase.

    Exit codes: 0 it runs; 1 it does not wait for approval; 2 a limit outside its range; 66 no
    such run; 77 not permitted.
    """
    room = limits.once(limit)
    if one_call(chosen):
        from ..showing.approving import answer

        if room:
            raise UsageError("--limit is for an increase: leave it out, or the call")
        return answer(chosen, allow=True)
    return chosen.each(
        "approve",
        lambda client, run: output.changed(
            client.call(Approve(id=0, run=run, limits=room), RunReply).run, chosen.json
        ),
    )
