from sfad.protocol.requests.base import RunReply
from sfad.protocol.requests.steering import Resume

from .. import output
from ..app import OverFleet, app
from ..options import limits
from ..options.selection import LiveSelection
from ..options.shared import NewLimits
from ..options.spreading import spread


@app.command(cls=OverFleet)
@spread(LiveSelection)
def resume(chosen: LiveSelection, limit: NewLimits = []) -> int:
    """Resume paused runs, with a new limit if a limit paused them.

    If a limit has paused a run, --limit sets the new limit, which counts from the start of the
    run and is at most an ancestor's; without --limit, the old limit only warns from now on.
    Inside a run, --limit is not permitted.

    Exit codes: 0 it runs; 1 it is not paused, or has ended; 2 a limit outside its range; 66 no
    such run; 77 not permitted.
    """
    room = limits.once(limit)
    return chosen.each(
        "resume",
        lambda client, run: output.changed(
            client.call(Resume(id=0, run=run, limits=room), RunReply).run, chosen.json
        ),
    )
