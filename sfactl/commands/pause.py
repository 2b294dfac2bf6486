"""`sfactl pause RUN`

Freezes the run's whole tree and stops its clocks. Returns when everything stands still.
"""

from __future__ import annotations

from sfad.protocol.messages import Pause, RunReply

from .. import output
from ..connection import connect
from ..exits import Exit
from ..options import COMMON, RUN, Parameter

PARAMETERS: tuple[Parameter, ...] = (*COMMON, RUN)


def main(*, run: str, socket: str | None = None, json: bool = False) -> int:
    """Pauses a run."""
    with connect(socket) as client:
        found = client.call(Pause(id=client.next_id(), run=run), RunReply).run
    if json:
        output.print_json(found)
    else:
        output.note(f"{found.id} is {found.status.value}")
    return Exit.DONE
