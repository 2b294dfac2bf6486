from typing import Annotated

from ... import output
from ...options.shared import Json, LiveRun, Socket, Value
from ...sessions import asking as sessions
from . import app


@app.command()
def send(
    run: LiveRun,
    words: Annotated[list[str], Value("MESSAGE").argument("The line to send")],
    socket: Socket = None,
    json: Json = False,
) -> None:
    """Write a line to the stdin of a session, or continue one that has ended.

    The agent of a live session must keep its stdin open: `stdin = true` in its entry of the
    config. Fails if it does not read what was sent before. A session that has ended is
    continued in a new one, with the message as its task; its id is printed.
    """
    message = " ".join(words)
    new = sessions.send(run, message, socket=socket)
    if json:
        output.print_json(
            {"run": run, "sent": message} | ({} if new is None else {"continued_by": new.run_id})
        )
    elif new is not None:
        print(new.run_id)
