"""Freeze runs with everything below them, and stop their clocks.

Freezes each run's whole tree and stops its clocks. Returns when all processes are frozen.

A pause of more than about 4 minutes in the middle of a model's reply breaks the reply: Claude Code fails, Codex repeats the call.
Between calls a pause may take any time.
"""

import os
from typing import Unpack

from sfad.protocol.known import METERED
from sfad.protocol.messages import Pause, RunReply
from sfad.protocol.types import RunInfo

from .. import output, selection
from ..connection import connect
from ..selection import RunSelection, SelectionOptions

PARAMETERS = selection.PARAMETERS


def main(*, socket: str | None = None, json: bool = False, **chosen: Unpack[SelectionOptions]) -> int:
    """Pause runs."""
    pausing = RunSelection("pause", **chosen).checked()
    with connect(socket) as client:
        return pausing.each(client, lambda run: _paused(client.call(Pause(id=0, run=run), RunReply).run, json))


def _paused(run: RunInfo, json: bool) -> None:
    output.changed(run, json)
    if words := caution(run):
        output.note(f"sfactl: {words}")


def caution(run: RunInfo) -> str | None:
    """Return a warning for a run that is known to call a model; `None` for another run.

    Measured with Claude Code 2.1 and Codex 0.169: after 240 s in the middle of a reply both continue; after 330 s Claude fails
    and Codex repeats the call."""
    program = os.path.basename(run.argv[0]) if run.argv else ""
    if program not in METERED and run.meter not in METERED:
        return None
    return f"{run.id}: a pause of more than 4 minutes in the middle of a reply makes the agent fail or repeat the call"
