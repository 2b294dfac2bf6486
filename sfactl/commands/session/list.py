from collections.abc import Callable
from typing import Annotated

from ... import output
from ...options.shared import COUNT, Json, Socket
from ...sessions import asking as sessions
from ...sessions.asking import LISTED, SessionView
from ...showing import table
from . import app


@app.command("list")
def list_(
    socket: Socket = None,
    json: Json = False,
    rows: Annotated[
        int, COUNT.option(f"Sessions that have ended, at most (default: {LISTED})")
    ] = LISTED,
) -> None:
    """List the live sessions, and those that ended last.

    In a run: the sessions below it. Else: the user's.
    """
    found = sessions.list_sessions(socket=socket, rows=rows)
    output.answer(json, {"sessions": found}, table.of(_COLUMNS, found))


_COLUMNS: dict[str, Callable[[SessionView], str]] = {
    "ID": lambda session: session.run_id,
    "NAME": lambda session: session.name,
    "STATUS": lambda session: session.status,
    "TIME": lambda session: output.seconds(session.elapsed_s),
    "TURNS": lambda session: output.short(session.turns),
    "TOKENS": output.tokens,
    "USD": output.cost,
}
