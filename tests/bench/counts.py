"""What the daemon does for each run of /bin/true, and for each row of a list, in counts: the load
of the machine does not touch them. `python -m tests.bench --only counts` takes some ten seconds.

Runs that are asked for one by one cost more than those of a batch, which share commits. A first
load warms the daemon up.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sfactl.connecting.connection import Client
from sfad.protocol import messages as m
from sfad.protocol.framing import HEADER, SUPPORTED
from tests.bench import ours
from tests.bench.native import COMPILER, compiled
from tests.harness import Daemon, wait_until

LOADS: dict[str, tuple[Callable[[Client, int], None], int]] = {
    "one by one": (ours.one_by_one, 100),
    "in a batch": (ours.at_once, 200),
}
ROWS = 20, 220
"""Rows of a short and of a long list: their difference is what the rows cost."""
SIZE = 1 << 16
"""Bytes of the file of counters: two of 8 bytes for each thread."""

COUNTER = """
import ctypes, itertools, mmap, os, sys, threading
path, library = os.environ.get("BENCH_COUNTERS"), os.environ.get("BENCH_LIBRARY")
if os.environ.get("BENCH_ONLY") not in (None, *sys.orig_argv):
    path = None
if path:
    with open(path, "r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
if path and library:
    ctypes.PyDLL(library).install(ctypes.byref(ctypes.c_uint64.from_buffer(mapped)))
    # the interpreter allocates until its very end
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(mapped))
elif path:
    def counting(counters=memoryview(mapped).cast("Q"), slots=itertools.count(0, 2)):
        own = next(slots)  # one pair for each thread: they count at the same time
        def called(frame, event, _argument):
            if event == "call":
                counters[own] += 1
            elif event == "c_call":
                counters[own + 1] += 1
        return called
    threading.setprofile(lambda *_: sys.setprofile(counting()))
    sys.setprofile(counting())
"""
"""`sitecustomize` of a process whose calls or allocations are counted, in a file that others can
read meanwhile."""

Costs = dict[str, dict[str, float]]
"""What is counted, then under which load, then how often for each run or row."""


def main() -> Costs:
    """Count everything that can be counted here."""
    missing = {"strace": shutil.which("strace"), "a C compiler": COMPILER}
    for what in (name for name, there in missing.items() if not there):
        print(f"{what} is missing: not everything is counted", file=sys.stderr)
    return system_calls() | calls() | allocations()


def each(client: Client, look: Callable[[], Counter[str]]) -> Costs:
    """Return by how much the counts that `look` returns grow with each run."""
    found: Costs = {}
    ours.one_by_one(client, 20)
    for name, (load, runs) in LOADS.items():
        before = look()
        load(client, runs)
        for what, count in (look() - before).items():
            found.setdefault(what, {})[name] = count / runs
    return found


class Counters:
    """Counters that another process writes to a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        file.write_bytes(bytes(SIZE))

    def read(self) -> tuple[int, int]:
        """Return how often functions of Python and of C were called, by all threads."""
        counters = struct.unpack(f"{SIZE // 8}Q", self._file.read_bytes())
        return sum(counters[::2]), sum(counters[1::2])


@contextmanager
def counting(library: Path | None = None, **more: str) -> Iterator[tuple[dict[str, str], Counters]]:
    """Yield the environment of a process that counts its calls, and its counters. With a `library`,
    it counts allocations instead. With `BENCH_ONLY`, only processes with this word in their command
    line count."""
    with ours.directory() as place:
        (place / "sitecustomize.py").write_text(COUNTER)
        path = os.pathsep.join([str(place), str(Path(__file__).parents[2])])
        more |= {"BENCH_LIBRARY": str(library)} if library else {}
        yield (
            {"PYTHONPATH": path, "BENCH_COUNTERS": str(place / "counters")} | more,
            Counters(place / "counters"),
        )


def calls(live: int = 0) -> Costs:
    """Count calls of the daemon for each run beside some that sleep; and for each row of a full
    list those of the daemon, of the library that reads it, and of `sfactl list`."""
    with (
        counting() as (environment, counters),
        ours.daemon(environment) as one,
        one.client() as client,
    ):
        ours.submitted(client, live, ours.SLEEP)
        found = each(
            client,
            lambda: Counter(dict(zip(("Python calls", "C calls"), counters.read(), strict=True))),
        )
        few, many = (_listed(one, client, counters, rows) for rows in ROWS)
        return found | {
            what: {"a row": (many[what] - few[what]) / (ROWS[1] - ROWS[0])} for what in few
        }


def _listed(one: Daemon, client: Client, counters: Counters, rows: int) -> dict[str, int]:
    request = m.List(id=0, rows=rows)
    before = counters.read()[0]
    size = reply_size(one, request)
    asked = counters.read()[0] - before
    own = profiled(lambda: client.call(request, m.RunList))
    with counting() as (environment, spent):
        words = [sys.executable, "-m", "sfactl", "list", "--limit-rows", str(rows)]
        subprocess.run(
            words,
            env=one.env | environment,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        printed = spent.read()[0]
    return {
        "bytes of a list": size,
        "Python calls, daemon": asked,
        "Python calls, library": own,
        "Python calls, sfactl list": printed,
    }


def reply_size(one: Daemon, request: m.Request) -> int:
    """Return the bytes of the daemon's reply, without those of its frame."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(one.socket))
        with connection.makefile("rb") as replies:
            for each in (m.Hello(id=1, versions=list(SUPPORTED)), request):
                connection.sendall(m.pack_message(each))
                size = int.from_bytes(replies.read(HEADER), "big")
                replies.read(size)
    return size


def profiled(call: Callable[[], object]) -> int:
    """Return how many functions of Python this thread calls in `call`."""
    count = 0

    def called(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(called)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


def allocations() -> Costs:
    """Count the blocks that the daemon allocates, where a C compiler is, and the bytes that it
    gives to write(2) and its like: the ledger, the spool, the log."""
    library = compiled("allocations.c", "-shared", "-fPIC")
    with (
        counting(library) as (environment, counters),
        ours.daemon(environment if library else {}) as one,
        one.client() as client,
    ):

        def look() -> Counter[str]:
            written = re.findall(r"wchar: (\d+)", Path(f"/proc/{one.pid}/io").read_text())[0]
            return Counter({"bytes written": int(written), "allocations": counters.read()[0]})

        return each(client, look)


def system_calls() -> Costs:
    """Count the system calls of the daemon, each kind that it makes at least every second run, and
    those of the runs' own processes, before and after their execve(2). Calls of futex(2) are
    hand-overs between threads."""
    if shutil.which("strace") is None:
        return {}
    with (
        ours.directory() as place,
        ours.daemon() as one,
        one.client() as client,
        traced(one, place / "log"),
    ):
        found = each(client, lambda: traced_calls((place / "log").read_text()))
    kinds = sorted(found, key=lambda what: (what.startswith("·"), -max(found[what].values())))
    return {what: found[what] for what in kinds if max(found[what].values()) >= 0.5}


@contextmanager
def traced(one: Daemon, log: Path) -> Iterator[None]:
    command = [
        "strace",
        "-f",
        "-qq",
        "-s",
        "0",
        "-e",
        "signal=none",
        "-o",
        str(log),
        "-p",
        str(one.pid),
    ]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as tracer:
        tasks = Path(f"/proc/{one.pid}/task")
        wait_until(
            lambda: (
                not any(
                    "TracerPid:\t0" in (task / "status").read_text() for task in tasks.iterdir()
                )
            ),
            "strace",
        )
        yield
        tracer.terminate()


def traced_calls(log: str) -> Counter[str]:
    made = re.findall(r"^(\d+) +(\w+)\(", log, re.MULTILINE)
    children = {pid for pid, name in made if name == "execve"}
    found = Counter(f"· {name}" for pid, name in made if pid not in children)
    return (
        Counter(
            {
                "system calls": found.total(),
                "system calls of its processes": len(made) - found.total(),
            }
        )
        + found
    )
