"""`sfactl resume RUN [--limit KIND=N]`

Thaws a run that was paused; its clocks go on where they stopped. If a limit has paused it, --limit says how much it may use
from now on in all, never more than an ancestor has; without --limit, that limit only warns from now on. More room is only
given from outside any run.

Exit codes: 0 it runs; 1 it is not paused, or has ended; 2 a limit outside its range; 66 no such run; 77 not permitted.
"""

from __future__ import annotations

from collections.abc import Sequence

from sfad.protocol.messages import Resume, RunReply

from .. import limits, output
from ..connection import connect
from ..exits import Exit
from ..options import COMMON, RUN, Parameter

PARAMETERS: tuple[Parameter, ...] = (*COMMON, RUN, limits.OPTION)


def main(*, run: str, limit: Sequence[str] = (), socket: str | None = None, json: bool = False) -> int:
    """Resumes a run."""
    room = limits.of_flags(limit)
    with connect(socket) as client:
        found = client.call(Resume(id=client.next_id(), run=run, limits=room), RunReply).run
    if json:
        output.print_json(found)
    else:
        output.note(f"{found.id} is {found.status.value}")
    return Exit.DONE
