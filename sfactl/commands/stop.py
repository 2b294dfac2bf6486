"""Stop runs and everything below them, to the last process.

Returns when no process of the runs and of what they started is alive. All runs share one grace. If a run does not exist or is not
yours, prints an error and stops the others.

Exit codes: 0 stopped; 5 processes survived SIGKILL, and are listed; 66 no such run; 77 not permitted.
"""

from __future__ import annotations

import signal as signals
from typing import Unpack

from sfad.protocol.requests.steering import Stop, Stopped
from sfad.protocol.units import parse_whole

from .. import exits, output, selection
from ..connection import connect
from ..options import Option, Parameter, seconds
from ..selection import RunSelection, SelectionOptions

PARAMETERS: tuple[Parameter, ...] = (
    *selection.PARAMETERS,
    Option(("--grace",), "grace", "Time between the signal and SIGKILL, at most 60s (default: the run's own)", "TIME"),
    Option(("--signal",), "signal", "First signal (default: TERM)", "NAME"),
)


def main(
    *,
    grace: str | None = None,
    signal: str | None = None,
    socket: str | None = None,
    json: bool = False,
    **chosen: Unpack[SelectionOptions],
) -> int:
    stopping = RunSelection("stop", **chosen).checked()
    wanted = Stop(
        id=0,
        runs=list(stopping.runs),
        everything=stopping.everything,
        name=list(stopping.name) or None,
        labels=selection.labels(stopping.label),
        signal=_signal(signal),
        grace=seconds("--grace", grace),
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


def _signal(text: str | None) -> int:
    if text is None:
        return 15  # SIGTERM
    named = signals.Signals.__members__.get("SIG" + text.upper().removeprefix("SIG"))
    try:
        return named or parse_whole(text, 1, 64)
    except ValueError:
        raise exits.UsageError(f"--signal: unknown signal {text[:80]!r}; give TERM, INT, HUP, … or a number from 1 to 64") from None
