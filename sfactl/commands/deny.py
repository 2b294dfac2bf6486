"""Deny the increase that a run waits for, and stop the run.

The run and everything below it is stopped as if the limit had terminated it. Returns when the stop has begun; `sfactl wait RUN`
waits for the end. Works only outside any run.

Exit codes: 0 it is being stopped; 1 it does not wait for approval; 66 no such run; 77 not permitted.
"""

from __future__ import annotations

from collections.abc import Sequence

from sfad.protocol.requests.base import RunReply
from sfad.protocol.requests.steering import Deny

from .. import output
from ..connection import connect
from ..options import COMMON, RUNS, Parameter
from ..selection import RunSelection

PARAMETERS: tuple[Parameter, ...] = (*COMMON, RUNS)


def main(*, runs: Sequence[str], socket: str | None = None, json: bool = False) -> int:
    with connect(socket) as client:
        return RunSelection("deny", runs).each(
            client, lambda run: output.changed(client.call(Deny(id=0, run=run), RunReply).run, json)
        )
