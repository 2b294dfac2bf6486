"""Thaw paused runs, with more room if a limit paused them.

Thaws runs that were paused; their clocks go on where they stopped. If a limit has paused one, --limit says how much it may use
from now on in all, never more than an ancestor has; without --limit, that limit only warns from now on. More room is only
given from outside any run.

Exit codes: 0 it runs; 1 it is not paused, or has ended; 2 a limit outside its range; 66 no such run; 77 not permitted.
"""

from __future__ import annotations

from collections.abc import Sequence

from sfad.protocol.messages import Resume, RunReply

from .. import limits, output
from ..choice import CHOICE, Choice
from ..connection import connect
from ..options import COMMON, RUNS, Parameter

PARAMETERS: tuple[Parameter, ...] = (*COMMON, RUNS._replace(required=False, complete="live"), *CHOICE, limits.OPTION)


def main(
    *,
    runs: Sequence[str] = (),
    everything: bool = False,
    name: Sequence[str] = (),
    label: Sequence[str] = (),
    limit: Sequence[str] = (),
    socket: str | None = None,
    json: bool = False,
) -> int:
    """Resumes runs."""
    room = limits.of_flags(limit)
    choice = Choice("resume", runs, everything, name, label)
    choice.check()
    with connect(socket) as client:
        return choice.each(
            client, lambda run: output.changed(client.call(Resume(id=client.next_id(), run=run, limits=room), RunReply).run, json)
        )
