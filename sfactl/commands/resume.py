"""`sfactl resume RUN`

Thaws a run that was paused; its clocks go on where they stopped.
"""

from __future__ import annotations

from sfad.protocol.messages import Resume, RunReply

from .. import output
from ..client import connect
from ..exits import Exit
from ..options import COMMON, RUN, Parameter

PARAMETERS: tuple[Parameter, ...] = (*COMMON, RUN)


def main(*, run: str, socket: str | None = None, json: bool = False) -> int:
    """Resumes a run."""
    with connect(socket) as client:
        found = client.call(Resume(id=client.next_id(), run=run), RunReply).run
    if json:
        output.print_json(found)
    else:
        output.note(f"{found.id} is {found.status.value}")
    return Exit.DONE
