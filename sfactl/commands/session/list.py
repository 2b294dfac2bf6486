"""List the live sessions, and those that ended last.

In a run: the sessions below it. Else: the user's.
"""

from ... import output, sessions, table
from ...exits import ExitCode
from ...options import COMMON, Option, Parameter, count
from ...sessions import LISTED, SessionView

PARAMETERS: tuple[Parameter, ...] = (
    *COMMON,
    Option(("--rows",), "rows", f"Sessions that have ended, at most (default: {LISTED})", "N"),
)
HEADER = ("ID", "NAME", "STATUS", "TIME", "TURNS", "TOKENS", "USD")


def main(*, rows: str | None = None, socket: str | None = None, json: bool = False) -> int:
    most = count("--rows", rows)
    found = sessions.list_sessions(socket=socket, rows=LISTED if most is None else most)
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
        output.bounded(output.short(session.tokens), partial=session.partial, at_most=session.at_most),
        output.bounded(output.usd(session.cost_usd), partial=session.partial, at_most=session.at_most),
    )
