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

FEW, MANY = 50, 250

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
    figures = {"Python calls": calls, "C calls": c_calls, "bytes written": each((written(FEW), written(MANY)))}
    if shutil.which("strace"):
        figures |= {f"system calls ({what})": each((a, b)) for what, (a, b) in system_calls().items()}
    for what, figure in figures.items():
        print(f"{'counts':12}  {what}: {figure:.1f} a run", flush=True)


def each(counted: tuple[float, float]) -> float:
    """Return the cost of a run, from the totals of few and of many."""
    return (counted[1] - counted[0]) / (MANY - FEW)


def after(runs: int, look: Callable[[Daemon], object], environment: Mapping[str, str] | None = None) -> None:
    """Start a daemon, let it have so many runs, one at a time, and `look` at it before it ends."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=base) as directory:
        before = dict(os.environ)
        os.environ.update(environment or {})
        try:
            daemon = Daemon(Path(directory), config=CONFIG)
        finally:
            os.environ.clear()
            os.environ.update(before)
        try:
            with daemon.client() as client:
                for _ in range(runs):
                    ended(client, started(client, ["/bin/true"], cwd=b"/", env=[b"PATH=/bin"]).id)
            look(daemon)
        finally:
            if daemon.process.poll() is None:
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


def system_calls() -> dict[str, tuple[int, int]]:
    """Return the calls of the daemon alone, and with those of the run's own process before and after its execve(2)."""
    alone, together = zip(*(_traced(runs) for runs in (FEW, MANY)), strict=True)
    return {"daemon": (alone[0], alone[1]), "daemon and command": (together[0], together[1])}


def _traced(runs: int) -> tuple[int, int]:
    totals = []
    for follow in (False, True):
        with tempfile.TemporaryDirectory() as place:
            totals.append(_strace(runs, Path(place, "calls"), follow=follow))
    return totals[0], totals[1]


def _strace(runs: int, file: Path, *, follow: bool) -> int:
    def look(daemon: Daemon) -> None:
        threads = os.listdir(f"/proc/{daemon.pid}/task")
        which = ["-f", "-p", str(daemon.pid)] if follow else [word for thread in threads for word in ("-p", thread)]
        with subprocess.Popen(["strace", "-q", "-c", "-o", file, *which], stderr=subprocess.DEVNULL) as strace:
            while not all("TracerPid:\t0" not in Path(f"/proc/{daemon.pid}/task/{t}/status").read_text() for t in threads):
                assert strace.poll() is None, "strace ended"
            with daemon.client() as client:
                for _ in range(runs):
                    ended(client, started(client, ["/bin/true"], cwd=b"/", env=[b"PATH=/bin"]).id)
            daemon.stop()  # strace ends with what it traces; SIGTERM may reach it just before it waits, and is lost then

    after(1, look)
    return int(re.findall(r"^100\.00\s.*?(\d+)(?:\s+\d+)?\s+total$", file.read_text(), re.MULTILINE)[0])


if __name__ == "__main__":
    main()
