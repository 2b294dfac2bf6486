import signal as signals
from typing import Annotated

import typer

from sfad.protocol.requests.steering import Stop, Stopped
from sfad.protocol.units import parse_whole

from .. import exits, output, selection
from ..app import OverFleet, app
from ..connection import connect
from ..options import DURATION, AllLive, Json, LiveLabels, LiveNames, LiveRuns, Socket, reader
from ..selection import RunSelection


def _signal(text: str) -> int:
    named = signals.Signals.__members__.get("SIG" + text.upper().removeprefix("SIG"))
    try:
        return named or parse_whole(text, 1, 64)
    except ValueError:
        raise ValueError(
            f"unknown signal {text[:80]!r}; give TERM, INT, HUP, … or a number from 1 to 64"
        ) from None


@app.command(cls=OverFleet)
def stop(
    runs: LiveRuns = [],
    socket: Socket = None,
    json: Json = False,
    everything: AllLive = False,
    name: LiveNames = [],
    label: LiveLabels = [],
    grace: Annotated[
        float | None,
        typer.Option(
            "--grace",
            metavar="TIME",
            help="Time between the signal and SIGKILL, at most 60s (default: the run's own)",
            parser=DURATION,
        ),
    ] = None,
    signal: Annotated[
        int,
        typer.Option(
            "--signal", metavar="NAME", help="First signal (default: TERM)", parser=reader(_signal)
        ),
    ] = 15,
) -> int:
    """Stop runs and everything below them, to the last process.

    Returns when no process of the runs and of what they started is alive. All runs share one
    grace. If a run does not exist or is not yours, prints an error and stops the others.

    Exit codes: 0 stopped; 5 processes survived SIGKILL, and are listed; 66 no such run; 77 not
    permitted.
    """
    stopping = RunSelection("stop", runs, everything, name, label).checked()
    wanted = Stop(
        id=0,
        runs=list(stopping.runs),
        everything=stopping.everything,
        name=list(stopping.name) or None,
        labels=selection.labels(stopping.label),
        signal=signal,
        grace=grace,
    )
    code: int = exits.ExitCode.DONE
    with connect(socket) as client:
        if len(wanted.runs) > 1:  # one that cannot be stopped must not keep the others alive
            wanted.runs, code = stopping.without_failures(client)
            wanted.name, wanted.labels = None, {}
            if not wanted.runs:
                return code
        stopped = client.call(wanted, Stopped)
    return exits.worst([code, output.stopped(stopped, json=json)])
