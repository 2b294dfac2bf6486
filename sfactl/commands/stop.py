import signal as signals
from typing import Annotated

from sfad.protocol.requests.steering import Stop, Stopped
from sfad.protocol.texts.units import parse_whole

from .. import exits, output
from ..app import OverFleet, app
from ..connecting.connection import connect
from ..options import selection
from ..options.selection import LiveSelection
from ..options.shared import TIME, Value
from ..options.spreading import spread


def _signal(text: str) -> int:
    named = signals.Signals.__members__.get("SIG" + text.upper().removeprefix("SIG"))
    try:
        return named or parse_whole(text, 1, 64)
    except ValueError:
        raise ValueError(
            f"unknown signal {text[:80]!r}; give TERM, INT, HUP, … or a number from 1 to 64"
        ) from None


@app.command(cls=OverFleet)
@spread(LiveSelection)
def stop(
    chosen: LiveSelection,
    grace: Annotated[
        float | None,
        TIME.option("Time between the signal and SIGKILL, at most 60s (default: the run's own)"),
    ] = None,
    signal: Annotated[int, Value("NAME", _signal).option("First signal (default: TERM)")] = 15,
) -> int:
    """Stop runs and everything below them, to the last process.

    Returns when no process of the runs and of what they started is alive. All runs share one
    grace. If a run does not exist or is not yours, prints an error and stops the others.

    A run on a node of the fleet that does not answer is stopped when that is heard of, and at the
    latest at the end of its lease; this verb does not wait for it.

    Exit codes: 0 stopped; 5 processes survived SIGKILL, or runs are on nodes that do not answer,
    and are listed; 66 no such run; 77 not permitted.
    """
    chosen.check()
    wanted = Stop(
        id=0,
        runs=chosen.runs,
        everything=chosen.everything,
        name=chosen.name or None,
        labels=selection.labels(chosen.label),
        signal=signal,
        grace=grace,
    )
    code: int = exits.ExitCode.DONE
    with connect(chosen.socket) as client:
        if len(wanted.runs) > 1:  # one that cannot be stopped must not keep the others alive
            wanted.runs, code = chosen.without_failures(client, "stop")
            wanted.name, wanted.labels = None, {}
            if not wanted.runs:
                return code
        stopped = client.call(wanted, Stopped)
    return exits.worst([code, output.stopped(stopped, json=chosen.json)])
