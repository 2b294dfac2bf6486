"""Thaw paused runs, with more room if a limit paused them.

Thaws paused runs; their clocks continue. If a limit has paused a run, --limit sets how much it may use in all, never more than an
ancestor has; without --limit, that limit only warns from now on. Only a client outside any run can give more room.

Exit codes: 0 it runs; 1 it is not paused, or has ended; 2 a limit outside its range; 66 no such run; 77 not permitted.
"""

from collections.abc import Sequence
from typing import Unpack

from sfad.protocol.messages import Resume, RunReply

from .. import limits, output, selection
from ..connection import connect
from ..options import Parameter
from ..selection import RunSelection, SelectionOptions

PARAMETERS: tuple[Parameter, ...] = (*selection.PARAMETERS, limits.OPTION)


def main(*, limit: Sequence[str] = (), socket: str | None = None, json: bool = False, **chosen: Unpack[SelectionOptions]) -> int:
    """Resume runs."""
    room = limits.of_flags(limit)
    resuming = RunSelection("resume", **chosen).checked()
    with connect(socket) as client:
        return resuming.each(
            client, lambda run: output.changed(client.call(Resume(id=0, run=run, limits=room), RunReply).run, json)
        )
