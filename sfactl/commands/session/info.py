"""Show a session, and its answer if it has ended; with --wait, wait for that.

Exit codes: as the session ended (see `sfactl --help`); if it has not, 75 after --wait, else 0.
"""

from ... import output, session_options, sessions
from ...options import COMMON, RUN, Option, Parameter, seconds

PARAMETERS: tuple[Parameter, ...] = (
    *COMMON,
    RUN,
    Option(("--wait",), "wait", "Wait for the session's end at most so long: 90 (seconds), 90s, 5m", "TIME"),
)


def main(*, run: str, wait: str | None = None, socket: str | None = None, json: bool = False) -> int:
    longest = seconds("--wait", wait)
    session = sessions.info(run, socket=socket, wait=longest or 0.0)
    if longest is not None:
        return session_options.show(session, json=json)
    if json:
        output.print_json(session)
    else:
        output.write("".join(f"{line}\n" for line in sessions.described(session)).encode())
    return session.exit
