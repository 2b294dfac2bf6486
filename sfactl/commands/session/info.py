from typing import Annotated

from ... import output
from ...options.shared import TIME, Json, Run, Socket
from ...sessions import asking as sessions
from ...sessions import options as session_options
from . import app


@app.command()
def info(
    run: Run,
    socket: Socket = None,
    json: Json = False,
    wait: Annotated[
        float | None,
        TIME.option("Wait for the session's end at most so long: 90 (seconds), 90s, 5m"),
    ] = None,
) -> int:
    """Show a session, and its answer if it has ended; with --wait, wait for that.

    Exit codes: as the session ended (see `sfactl --help`); if it has not, 75 after --wait, else
    0.
    """
    session = sessions.info(run, socket=socket, wait=wait or 0.0)
    if wait is not None:
        return session_options.show(session, json=json)
    output.answer(json, session, "\n".join(sessions.described(session)))
    return session.exit
