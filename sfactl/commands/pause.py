from sfad.protocol.requests.base import RunReply
from sfad.protocol.requests.steering import Pause

from .. import output
from ..app import OverFleet, app
from ..connecting.connection import Client
from ..options.selection import LiveSelection
from ..options.spreading import spread


@app.command(cls=OverFleet)
@spread(LiveSelection)
def pause(chosen: LiveSelection) -> int:
    """Pause runs and everything below them: freeze processes and stop clocks.

    Returns when all processes are frozen.

    The provider goes on with a reply that is under way, and bills it. The gateway reads it
    meanwhile and counts it; without the gateway its cost is known after the resume. A pause of
    more than about 4 minutes in the middle of a reply makes Claude Code fail and Codex repeat
    the call. Between calls a pause may take any time.
    """

    def pause(client: Client, run: str) -> None:
        paused = client.call(Pause(id=0, run=run), RunReply).run
        output.changed(paused, chosen.json)
        if words := output.pause_warning(paused):
            output.note(f"sfactl: {words}")

    return chosen.each("pause", pause)
