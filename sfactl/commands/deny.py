from sfad.protocol.requests.base import RunReply
from sfad.protocol.requests.steering import Deny

from .. import output
from ..app import app
from ..options.selection import RunSelection
from ..options.spreading import spread


@app.command()
@spread(RunSelection)
def deny(chosen: RunSelection) -> int:
    """Deny the increase that a run waits for, and stop the run.

    The run and everything below it is stopped as if the limit had terminated it. Returns when
    the stop has begun; `sfactl wait RUN` waits for the end. Works only outside any run.

    Exit codes: 0 it is being stopped; 1 it does not wait for approval; 66 no such run; 77 not
    permitted.
    """
    return chosen.each(
        "deny",
        lambda client, run: output.changed(
            client.call(Deny(id=0, run=run), RunReply).run, chosen.json
        ),
    )
