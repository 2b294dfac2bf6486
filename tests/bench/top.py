"""`sfactl top` with 1000 live runs, 50 of which write and report: from key to changed screen, and
what top costs the daemon."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from sfad.protocol import messages as m
from tests.bench import ours
from tests.harness import Daemon, started
from tests.top.terminal import DOWN, Terminal, top

RUNS, WRITING = 1000, 50
KEYS = 60
EVERY = 0.5
"""Seconds between two lines, and two reports, of a run that writes."""
SECONDS = 10.0


def main() -> None:
    """Print a line for each size of the terminal."""
    with ours.daemon() as one, one.client() as client:
        writing = ["sh", "-c", f"while :; do echo a line of output; sleep {EVERY}; done"]
        for _ in range(RUNS - WRITING):
            started(client, ["sleep", "1000"], name="idle", log=False)
        writers = [
            started(client, writing, name="writer", meter="report").id for _ in range(WRITING)
        ]
        with reporting(one, writers):
            alone = share(one, SECONDS)
            for columns, lines in ((80, 24), (200, 60)):
                with top(one.env, columns=columns, lines=lines) as terminal:
                    terminal.until(f"{RUNS} live")
                    watched = share(one, SECONDS, terminal)
                    own = psutil.Process(terminal.pid)
                    used = sum(own.cpu_times()[:2])
                    began = time.perf_counter()
                    taken = sorted(answered(terminal) for _ in range(KEYS))
                    busy = (sum(own.cpu_times()[:2]) - used) / (time.perf_counter() - began)
                    figures = (
                        f"key to screen: median {statistics.median(taken):.0f} ms, "
                        f"95 % {taken[int(KEYS * 0.95)]:.0f}"
                    )
                    cost = (
                        f"daemon {100 * alone:.1f} % of a CPU without, "
                        f"{100 * watched:.1f} % with it; top {100 * busy:.0f} %"
                    )
                    print(
                        f"top {columns}x{lines}",
                        f"{figures}, slowest {taken[-1]:.0f}",
                        cost,
                        sep="  ",
                        flush=True,
                    )


@contextmanager
def reporting(one: Daemon, runs: list[str]) -> Iterator[None]:
    """Report a token of each run every half second."""
    over = threading.Event()

    def work() -> None:
        with one.client() as client:
            while not over.wait(EVERY):
                for run in runs:
                    client.call(m.Report(id=0, run=run, input_tokens=1), m.RunReply)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def share(one: Daemon, seconds: float, terminal: Terminal | None = None) -> float:
    """Return the CPUs that the daemon keeps busy, while what top writes is read."""
    process = psutil.Process(one.pid)
    used, began = sum(process.cpu_times()[:2]), time.perf_counter()
    while (left := began + seconds - time.perf_counter()) > 0:
        if terminal is None:
            time.sleep(left)
        else:
            terminal.skip(left)
    return (sum(process.cpu_times()[:2]) - used) / (time.perf_counter() - began)


def answered(terminal: Terminal) -> float:
    """Return the milliseconds from a key that moves the cursor until the words below the tree are
    those of another run."""
    while terminal.skip(0.05):
        """Until what is under way was drawn."""
    began = time.perf_counter()
    terminal.press(DOWN)
    while b": running" not in terminal.skip(5.0):
        assert time.perf_counter() - began < 5, "the key was not answered"
    return 1000 * (time.perf_counter() - began)
