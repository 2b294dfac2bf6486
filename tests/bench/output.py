"""W5: a run writes 200 MB to its stdout, unread, with its bound, and with a meter.

What follows the file is a process of its own that has nothing else to do, so that its processor time is the cost of tail.
`late` is by how much its other tasks were woken too late meanwhile, at worst.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import trio

from sfad import meters
from sfad.metering.tail import Tail
from sfad.output import OutputFiles

SIZE = 200_000_000
RUN = "a1"
LIMIT = 64 << 20
RECORDING = Path(__file__).parents[1] / "meters/streams/claude-success.jsonl"

# 64 KiB at a time, as `cat` and node write
WRITER = """
import os, sys, time
block = sys.stdin.buffer.read()
began = time.perf_counter()
for _ in range(int(sys.argv[1]) // len(block)):
    os.write(1, block)
print(time.perf_counter() - began, file=sys.stderr)
"""

WAYS = {
    "nobody": [],
    "told only": ["--unbound"],
    "bound": ["--limit"],
    "bound, meter": ["--limit", "--meter"],
    "meter, every 10 ms": ["--limit", "--meter", "--tick"],
}


def main(repeats: int = 3) -> None:
    """Print a line for each way and kind of output: medians of interleaved repeats."""
    events = RECORDING.read_bytes()
    kinds = {"text": b"x" * 99 + b"\n", "events": events}
    for kind, content in kinds.items():
        block = (content * (65536 // len(content) + 1))[:65536]
        taken: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        for _ in range(repeats):
            for way, options in WAYS.items():
                taken[way].append(once(block, options))
        floor = _median(taken["nobody"], "seconds")
        for way, results in taken.items():
            seconds = _median(results, "seconds")
            figures = [f"{name} {_median(results, name):.4g}" for name in sorted(results[0]) if name != "seconds"]
            print(f"output        {kind:7} {way:20} {SIZE / 1e6 / seconds:6.0f} MB/s ({floor / seconds:.2f}x)", *figures, sep="  ")


def once(block: bytes, options: list[str]) -> dict[str, float]:
    """Measure one run, in memory: a disk is slower than everything that is measured."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_OUTPUT", base)) as directory:
        store = OutputFiles(Path(directory))
        out, err = store.open_for_run(RUN)
        follower = _follower(directory, options) if options else None
        writer = [sys.executable, "-c", WRITER, str(SIZE)]
        done = subprocess.run(writer, input=block, stdout=out, stderr=subprocess.PIPE, check=True)
        os.close(out)
        os.close(err)
        result: dict[str, float] = {"seconds": float(done.stderr)}
        if follower is not None:
            said, _ = follower.communicate()
            result |= json.loads(said)
        return result


def _follower(directory: str, options: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.bench.output", directory, *options]
    follower = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert follower.stdout is not None
    assert follower.stdout.readline() == b"ready\n"
    return follower


def _median(results: list[dict[str, float]], name: str) -> float:
    return statistics.median(result[name] for result in results)


class Daemon:
    """A process that only follows a run. Its stdin ends when the run does."""

    def __init__(self, directory: str, options: list[str]) -> None:
        self._lost = 0
        self._seen = 0
        self._late = 0.0
        self._options = options
        self._tail = Tail(OutputFiles(Path(directory)), seen=self._on_seen, lost=self._on_lost, trouble=print)

    def _on_seen(self, *_: object) -> None:
        self._seen += 1

    def _on_lost(self, _run: str, message: str) -> None:
        # `12345 bytes of its stdout were …`: all that were lost so far
        first = message.partition(" ")[0]
        self._lost = max(self._lost, int(first) if first.isdecimal() else 0)

    async def main(self) -> dict[str, Any]:
        """Follow until the run has ended, and print what that took."""
        program = meters.named("claude")
        assert program is not None
        meter = partial(program.meter, []) if "--meter" in self._options else None
        async with trio.open_nursery() as nursery:
            await nursery.start(self._tail.serve)
            self._tail.follow(RUN, limit=None if "--unbound" in self._options else LIMIT, meter=meter)
            self._tail.begin_attempt(RUN)
            if "--tick" in self._options:
                nursery.start_soon(self._tick)
            print("ready", flush=True)
            began = time.process_time()
            await trio.lowlevel.wait_readable(0)
            self._tail.drain((RUN,))
            self._tail.forget(RUN)
            nursery.cancel_scope.cancel()
        spent = time.process_time() - began
        return {"cpu_s": spent, "seen": self._seen, "lost_mb": self._lost / 1e6, "late_ms": 1000 * self._late}

    async def _tick(self) -> None:
        while True:
            due = trio.current_time() + 0.01
            await trio.sleep_until(due)
            self._late = max(self._late, trio.current_time() - due)


if __name__ == "__main__":
    print(json.dumps(trio.run(Daemon(sys.argv[1], sys.argv[2:]).main)))
