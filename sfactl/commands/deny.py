from sfad.protocol.requests.base import RunReply
from sfad.protocol.requests.steering import Deny

from .. import output
from ..app import app
from ..connection import connect
from ..options import Json, Runs, Socket
from ..selection import RunSelection


@app.command()
def deny(runs: Runs, socket: Socket = None, json: Json = False) -> int:
    """Deny the increase that a run waits for, and stop the run.

    The run and everything below it is stopped as if the limit had terminated it. Returns when
    the stop has begun; `sfactl wait RUN` waits for the end. Works only outside any run.

    Exit codes: 0 it is being stopped; 1 it does not wait for approval; 66 no such run; 77 not
    permitted.
    """
    with connect(socket) as client:
        return RunSelection("deny", runs).each(
            client, lambda run: output.changed(client.call(Deny(id=0, run=run), RunReply).run, json)
        )
