"""Approve the increase that a run waits for, and continue the run.

Continues a run that a limit with the action request_increase has frozen. --limit sets how much it may use in all, never more
than an ancestor has; without --limit, that limit only warns from now on. Works only outside any run: no agent approves its own
increase. `sfactl why RUN` says what a run waits for.

Exit codes: 0 it runs; 1 it does not wait for approval; 2 a limit outside its range; 66 no such run; 77 not permitted.
"""

from collections.abc import Sequence

from sfad.protocol.messages import Approve, RunReply

from .. import limits, output
from ..connection import connect
from ..options import COMMON, RUNS, Parameter
from ..selection import RunSelection

PARAMETERS: tuple[Parameter, ...] = (*COMMON, RUNS, limits.OPTION)


def main(*, runs: Sequence[str], limit: Sequence[str] = (), socket: str | None = None, json: bool = False) -> int:
    """Approve increases."""
    room = limits.of_flags(limit)
    with connect(socket) as client:
        return RunSelection("approve", runs).each(
            client, lambda run: output.changed(client.call(Approve(id=0, run=run, limits=room), RunReply).run, json)
        )
