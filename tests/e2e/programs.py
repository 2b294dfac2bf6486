"""Process trees that do not want to be stopped. Plain Python, so that no compiler is needed.

    python programs.py crowd N       N processes, half of them double-forked into sessions of
                                     their own
    python programs.py hoppers K     K lineages that fork, change session and exit without pause,
                                     ignoring SIGTERM
    python programs.py stubborn N    N children that ignore SIGTERM and SIGINT
    python programs.py obedient N    N plain children

Each prints `ready` once everything is there, and gives up by itself after two minutes.
"""

from __future__ import annotations

import os
import signal
import sys
import time

LIFE = 120


def nap() -> None:
    """Sleep until a signal ends the process."""
    signal.alarm(LIFE)
    while True:
        signal.pause()


def fork_away() -> None:
    """Fork an orphan: double-forked, in a session of its own."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            nap()
        os._exit(0)
    os.wait()


def obedient(count: int) -> None:
    """Fork plain children."""
    for _ in range(count):
        if os.fork() == 0:
            nap()


def crowd(count: int) -> None:
    """Fork plain children and as many orphans."""
    for _ in range(count // 2):
        fork_away()
    obedient(count - count // 2)


def stubborn(count: int) -> None:
    """Fork children that ignore SIGTERM."""
    for _ in range(count):
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            nap()


def hop(end: float) -> None:
    """Fork and exit without end, so that the process is always a new one."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while time.monotonic() < end:
        if os.fork():
            os._exit(0)
        os.setsid()
        time.sleep(0.0005)
    os._exit(0)


def hoppers(count: int) -> None:
    """Start lineages that fork and exit without end."""
    end = time.monotonic() + LIFE
    for _ in range(count):
        if os.fork() == 0:
            hop(end)


def main() -> None:
    """Carry out the command line: pairs of a kind and a number."""
    words = sys.argv[1:]
    for what, count in zip(words[::2], words[1::2], strict=True):
        {"crowd": crowd, "hoppers": hoppers, "stubborn": stubborn, "obedient": obedient}[what](
            int(count)
        )
    print("ready", flush=True)
    nap()


if __name__ == "__main__":
    main()
