from typing import Annotated

from ... import output, sessions, table
from ...exits import ExitCode
from ...options import COUNT, Json, Socket
from ...sessions import LISTED, SessionView
from . import app

HEADER = ("ID", "NAME", "STATUS", "TIME", "TURNS", "TOKENS", "USD")


@app.command("list")
def list_(
    socket: Socket = None,
    json: Json = False,
    rows: Annotated[
        int, COUNT.option(f"Sessions that have ended, at most (default: {LISTED})")
    ] = LISTED,
) -> int:
    """List the live sessions, and those that ended last.

    In a run: the sessions below it. Else: the user's.
    """
    found = sessions.list_sessions(socket=socket, rows=rows)
    if json:
        output.print_json({"sessions": found})
    else:
        print(table.drawn(HEADER, map(_row, found)))
    return ExitCode.DONE


def _row(session: SessionView) -> tuple[str, ...]:
    return (
        session.run_id,
        session.name,
        session.status,
        output.seconds(session.elapsed_s),
        output.short(session.turns),
        output.bounded(
            output.short(session.tokens), partial=session.partial, at_most=session.at_most
        ),
        output.bounded(
            output.usd(session.cost_usd), partial=session.partial, at_most=session.at_most
        ),
    )
