"""`sfactl deny RUN`

Stops a run that a limit with the action request_increase has frozen, and everything below it, as if the limit had terminated
it. Returns as soon as it is being stopped; `sfactl wait RUN` waits for the end. Only from outside any run.

Exit codes: 0 it is being stopped; 1 it does not wait for approval; 66 no such run; 77 not permitted.
"""

from __future__ import annotations

from sfad.protocol.messages import Deny, RunReply

from .. import output
from ..connection import connect
from ..exits import Exit
from ..options import COMMON, RUN, Parameter

PARAMETERS: tuple[Parameter, ...] = (*COMMON, RUN)


def main(*, run: str, socket: str | None = None, json: bool = False) -> int:
    """Denies an increase."""
    with connect(socket) as client:
        found = client.call(Deny(id=client.next_id(), run=run), RunReply).run
    if json:
        output.print_json(found)
    else:
        output.note(f"{found.id} is {found.status.value}")
    return Exit.DONE
