"""Pause runs and everything below them: freeze processes and stop clocks.

Returns when all processes are frozen.

The provider goes on with a reply that is under way, and bills it. The gateway reads it meanwhile and counts it; without the gateway
its cost is known after the resume. A pause of more than about 4 minutes in the middle of a reply makes Claude Code fail and Codex
repeat the call. Between calls a pause may take any time.
"""

from __future__ import annotations

from typing import Unpack

from sfad.protocol.requests.base import RunReply
from sfad.protocol.requests.steering import Pause

from .. import output, selection
from ..connection import connect
from ..selection import RunSelection, SelectionOptions

PARAMETERS = selection.PARAMETERS


def main(*, socket: str | None = None, json: bool = False, **chosen: Unpack[SelectionOptions]) -> int:
    pausing = RunSelection("pause", **chosen).checked()

    def pause(run: str) -> None:
        paused = client.call(Pause(id=0, run=run), RunReply).run
        output.changed(paused, json)
        if words := output.pause_warning(paused):
            output.note(f"sfactl: {words}")

    with connect(socket) as client:
        return pausing.each(client, pause)
