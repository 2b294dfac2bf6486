"""Resume paused runs, with a new limit if a limit paused them.

If a limit has paused a run, --limit sets the new limit, which counts from the start of the run and is at most an ancestor's;
without --limit, the old limit only warns from now on. Inside a run, --limit is not permitted.

Exit codes: 0 it runs; 1 it is not paused, or has ended; 2 a limit outside its range; 66 no such run; 77 not permitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from sfad.protocol.requests.base import RunReply
from sfad.protocol.requests.steering import Resume

from .. import limits, output, selection
from ..connection import connect
from ..options import Parameter
from ..selection import RunSelection, SelectionOptions

PARAMETERS: tuple[Parameter, ...] = (*selection.PARAMETERS, limits.OPTION)


def main(*, limit: Sequence[str] = (), socket: str | None = None, json: bool = False, **chosen: Unpack[SelectionOptions]) -> int:
    room = limits.of_flags(limit)
    resuming = RunSelection("resume", **chosen).checked()
    with connect(socket) as client:
        return resuming.each(
            client, lambda run: output.changed(client.call(Resume(id=0, run=run, limits=room), RunReply).run, json)
        )
