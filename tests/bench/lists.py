"""What people type, in a ledger of a million runs: `python -m tests.bench --only lists`.

It prints the seconds until the first and the last byte of each command, the processor time of the
client and of the daemon, and the most memory that each has taken. The goals are 0.1 s for the first
page on an idle machine, and 60 MiB in the client.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping

import psutil

from tests.bench.ours import CONFIG, directory
from tests.harness import running
from tests.ledger import big

RUNS, EVENTS = 1_000_000, 2_000_000
LINES = (
    "list",
    "list --status failed",
    "list --status failed --jsonl",
    "list --status failed -n 1000",
    "list --status failed --since 1h",
    "list --status lost --since 20d",
    "list --status lost --label team=t7",
    "list --label team=t3 --user eve",
    "list --name name7 --status failed",
    "list --name name7 -n 5000",
    "list --name rare",
    "list --user eve",
    "list --model gpt-5 --user eve",
    "list --group nightly",
    "list --type none",
    "list --root a1",
    "events",
    "events --run a1",
    "events --type limit_exceeded --since 20d",
    "summary",
    "summary --since 20d",
    "prune --older-than 22d --dry-run",
)


def main() -> None:
    """Print a line for each command."""
    with directory() as path:
        big.fill(path / "state", RUNS, EVENTS)
        with running(path, config=CONFIG, executed=True) as daemon:
            process = psutil.Process(daemon.pid)
            for line in LINES:
                print(f"{line:44}{_measured(line, daemon.env, process)}", flush=True)


def _measured(line: str, env: Mapping[str, str], daemon: psutil.Process) -> str:
    before, began, first, size = _seconds(daemon), time.perf_counter(), 0.0, 0
    with subprocess.Popen(
        [sys.executable, "-m", "sfactl", *line.split()],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as client:
        assert client.stdout is not None
        while data := os.read(client.stdout.fileno(), 1 << 20):
            first, size = first or time.perf_counter() - began, size + len(data)
        _, client.returncode, used = os.wait4(client.pid, 0)
    took, cpu = time.perf_counter() - began, used.ru_utime + used.ru_stime
    return (
        f"first {first:6.3f} s  whole {took:6.2f} s  {size / 1e6:6.1f} MB"
        f"  client {cpu:5.2f} s {used.ru_maxrss / 1024:4.0f} MiB"
        f"  daemon {_seconds(daemon) - before:5.2f} s {_peak(daemon.pid):4.0f} MiB"
    )


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _peak(pid: int) -> float:
    """Return the most MiB of memory that a process has had."""
    with open(f"/proc/{pid}/status") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
