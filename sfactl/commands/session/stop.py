"""Stop sessions and everything below them, to the last process.

Only for sessions: `sfactl stop` stops any run.

Exit codes: 0 stopped; 5 processes survived SIGKILL, and are listed; 66 no such run; 77 not permitted.
"""

from collections.abc import Sequence

from ... import output, sessions
from ...options import COMMON, RUNS, Option, Parameter, seconds

PARAMETERS: tuple[Parameter, ...] = (
    *COMMON,
    RUNS._replace(complete="live"),
    Option(("--grace",), "grace", "Time between SIGTERM and SIGKILL, at most 60s (default: the run's own)", "TIME"),
)


def main(*, runs: Sequence[str], grace: str | None = None, socket: str | None = None, json: bool = False) -> int:
    wait = seconds("--grace", grace)
    stopped = sessions.stop(*runs, socket=socket, grace=wait)
    return output.stopped(stopped, json=json)
