"""Stop sessions and everything below them, to the last process.

Only for sessions: `sfactl stop` stops any run. If a session does not exist or is not yours, prints an error and stops the others.

Exit codes: 0 stopped; 5 processes survived SIGKILL, and are listed; 66 no such run; 77 not permitted.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ... import exits, output, sessions
from ...connection import connect
from ...options import COMMON, RUNS, Option, Parameter, seconds
from ...selection import RunSelection

PARAMETERS: tuple[Parameter, ...] = (
    *COMMON,
    replace(RUNS, complete="live"),
    Option(("--grace",), "grace", "Time between SIGTERM and SIGKILL, at most 60s (default: the run's own)", "TIME"),
)


def main(*, runs: Sequence[str], grace: str | None = None, socket: str | None = None, json: bool = False) -> int:
    wait = seconds("--grace", grace)
    code: int = exits.ExitCode.DONE
    if len(runs) > 1:  # one that cannot be stopped must not keep the others alive
        with connect(socket) as client:
            runs, code = RunSelection("stop", runs).without_failures(client)
        if not runs:
            return code
    stopped = sessions.stop(*runs, socket=socket, grace=wait)
    return exits.worst([code, output.stopped(stopped, json=json)])
