"""`sfactl pause RUN…`

Freezes each run's whole tree and stops its clocks. Returns when everything stands still.
"""

from __future__ import annotations

from collections.abc import Sequence

from sfad.protocol.messages import Pause, RunReply

from .. import output
from ..connection import connect
from ..options import COMMON, RUNS, Parameter
from ..several import CHOICE, Choice

PARAMETERS: tuple[Parameter, ...] = (*COMMON, RUNS._replace(required=False, complete="live"), *CHOICE)


def main(
    *,
    runs: Sequence[str] = (),
    everything: bool = False,
    name: str | None = None,
    label: Sequence[str] = (),
    socket: str | None = None,
    json: bool = False,
) -> int:
    """Pauses runs."""
    choice = Choice("pause", runs, everything, name, label)
    choice.check()
    with connect(socket) as client:
        return choice.each(client, lambda run: output.changed(client.call(Pause(id=client.next_id(), run=run), RunReply).run, json))
