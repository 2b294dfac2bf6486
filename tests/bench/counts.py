"""What one run costs the daemon in counts, which the load of the machine does not touch: system calls, calls of Python functions,
bytes written.

Each figure is a difference: the same daemon with many runs and with few, divided by the runs between. So start and end of the
daemon are not in it. The runs are asked for one at a time, each when the one before has ended.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.harness import Daemon, ended, started

FEW, MANY = 20, 120

CONFIG = "[quotas]\nspawns_per_hour = 1000000\n"

COUNTER = """
import atexit, os, sys, threading
if os.environ.get("BENCH_CALLS"):
    # one counter a thread: they count at the same time
    counters = []
    def count(*, _list=counters):
        own = [0, 0]
        _list.append(own)
        def called(frame, event, _argument):
            if event == "call":
                own[0] += 1
            elif event == "c_call":
                own[1] += 1
        return called
    def in_thread(frame, event, argument):
        sys.setprofile(count())
    pid = os.getpid()
    def tell():
        if os.getpid() == pid:
            sys.setprofile(None)
            with open(os.environ["BENCH_CALLS"], "w") as file:
                print(sum(own[0] for own in counters), sum(own[1] for own in counters), file=file)
    atexit.register(tell)
    threading.setprofile(in_thread)
    sys.setprofile(count())
"""
"""`sitecustomize` of a daemon whose calls are counted. It writes the sums when the interpreter ends."""


def main() -> None:
    """Print a line for each figure."""
    calls, c_calls = (each(one) for one in zip(python_calls(FEW), python_calls(MANY), strict=True))
    say("Python calls", calls)
    say("C calls", c_calls)
    say("bytes written", each((written(FEW), written(MANY))))
    if shutil.which("strace"):
        say("system calls", each((system_calls(FEW), system_calls(MANY))))


def say(what: str, figure: float) -> None:
    """Print one figure."""
    print(f"{'counts':12}  {what}: {figure:.1f} a run", flush=True)


def each(counted: tuple[float, float]) -> float:
    """Return the cost of a run, from the totals of few and of many."""
    return (counted[1] - counted[0]) / (MANY - FEW)


def after(
    runs: int,
    look: Callable[[Daemon], object],
    environment: Mapping[str, str] | None = None,
    before: Callable[[Daemon], object] = lambda _: None,
) -> None:
    """Start a daemon, let it have so many runs, one at a time, and `look` at it before it ends."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=base) as directory:
        own = dict(os.environ)
        os.environ.update(environment or {})
        try:
            daemon = Daemon(Path(directory), config=CONFIG, executed=True)
        finally:
            os.environ.clear()
            os.environ.update(own)
        try:
            before(daemon)
            with daemon.client() as client:
                for _ in range(runs):
                    ended(client, started(client, ["/bin/true"], cwd=b"/", env=[b"PATH=/bin"]).id)
            look(daemon)
        finally:
            daemon.stop()


def python_calls(runs: int) -> tuple[int, int]:
    """Return how often the daemon called functions of Python, and of C."""
    with tempfile.TemporaryDirectory() as place:
        Path(place, "sitecustomize.py").write_text(COUNTER)
        file = Path(place, "calls")
        path = os.pathsep.join([place, str(Path(__file__).parents[2])])
        after(runs, lambda _: None, {"PYTHONPATH": path, "BENCH_CALLS": str(file)})
        calls, c_calls = file.read_text().split()
        return int(calls), int(c_calls)


def written(runs: int) -> int:
    """Return the bytes that the daemon gave to write(2) and its like: the ledger, the spool, the log."""
    found = 0

    def look(daemon: Daemon) -> None:
        nonlocal found
        found = int(re.findall(r"wchar: (\d+)", Path(f"/proc/{daemon.pid}/io").read_text())[0])

    after(runs, look)
    return found


def system_calls(runs: int) -> int:
    """Return the system calls of the daemon and of its runs' processes, before and after their execve(2)."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place, "calls")
        tracers: list[subprocess.Popen[bytes]] = []

        def trace(daemon: Daemon) -> None:
            command = ["strace", "-f", "-q", "-c", "-o", str(file), "-p", str(daemon.pid)]
            tracers.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
            while "TracerPid:\t0" in Path(f"/proc/{daemon.pid}/status").read_text():
                assert tracers[0].poll() is None, "strace ended"

        after(runs, lambda _: None, before=trace)
        tracers[0].wait()  # it ends with what it traces
        return int(re.findall(r"^100\.00\s.*?(\d+)(?:\s+\d+)?\s+total$", file.read_text(), re.MULTILINE)[0])


if __name__ == "__main__":
    main()
