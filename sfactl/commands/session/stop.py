from typing import Annotated

from ... import exits, output
from ...connecting.connection import connect
from ...options.selection import RunSelection
from ...options.shared import TIME, Json, LiveRuns, Socket
from ...sessions import asking as sessions
from . import app


@app.command()
def stop(
    runs: LiveRuns,
    socket: Socket = None,
    json: Json = False,
    grace: Annotated[
        float | None,
        TIME.option("Time between SIGTERM and SIGKILL, at most 60s (default: the run's own)"),
    ] = None,
) -> int:
    """Stop sessions and everything below them, to the last process.

    Only for sessions: `sfactl stop` stops any run. If a session does not exist or is not yours,
    prints an error and stops the others.

    Exit codes: 0 stopped; 5 processes survived SIGKILL, and are listed; 66 no such run; 77 not
    permitted.
    """
    code: int = exits.ExitCode.DONE
    if len(runs) > 1:  # one that cannot be stopped must not keep the others alive
        with connect(socket) as client:
            runs, code = RunSelection(runs).without_failures(client, "stop")
        if not runs:
            return code
    stopped = sessions.stop(*runs, socket=socket, grace=grace)
    return exits.worst([code, output.stopped(stopped, json=json)])
