from typing import Annotated

from ... import output
from ...options.shared import COUNT, Json, Run, Socket
from ...sessions import asking as sessions
from . import app


@app.command()
def log(
    run: Run,
    socket: Socket = None,
    json: Json = False,
    tail: Annotated[int, COUNT.option("The newest N lines (default: 100)")] = 100,
) -> None:
    """Print the transcript of a session: its events and output, made safe for a language model.

    Lines are in their order within stdout and within stderr, and stand between the events as
    the daemon saw them.
    """
    found = sessions.log(run, socket=socket, tail=tail)
    if json:
        output.print_json(output.content(found))
    else:
        output.write(found.text.encode())
