"""A program with an agent within it, for tests that kill one of the two.

    python -m tests.features.admitted.program SOCKET [HOW...]

It prints the id of the agent, and ends it when a line comes. Words of HOW: `forks`, a process of it
has its connections; `terminates`, a stop ends it; `ignores`, it ignores SIGTERM; `deaf`, it does
not end its agent when that is stopped; `spawns`, a process below the agent.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from sfactl import Daemon


def main(socket: str, *how: str) -> None:
    if "ignores" in how:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    on_limit = {"on_limit": "terminate_process"} if "terminates" in how else {}
    with (
        Daemon(socket) as daemon,
        daemon.admit("within", limits={"time": "1h"}, **on_limit) as agent,  # type: ignore[arg-type]
    ):
        below = agent.spawn(["sleep", "1000"]) if "spawns" in how else None
        child = 0
        if "forks" in how and not (child := os.fork()):
            time.sleep(1000)
        print(agent.id, below.id if below is not None else "", child, flush=True)
        while "deaf" in how:
            time.sleep(1000)
        for _ in sys.stdin:
            break
        agent.check()


if __name__ == "__main__":
    main(*sys.argv[1:])
