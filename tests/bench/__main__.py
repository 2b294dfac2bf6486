"""`make bench`: the daemon against the floor of bare system calls, in one run, so that the ratios mean something.

    python -m tests.bench [--only ROW,…]

    rows: latency throughput list status stop restart idle cli core output counts gateway top
The floor is this interpreter's `os.posix_spawn` and `waitpid`, without guard, ledger, containment or output. Absolute
figures move with the machine; compare ratios, and runs of the same hour.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from sfactl.connection import Client
from sfad.protocol import messages as m
from tests.bench import core, counts, gateway, output, top
from tests.e2e import programs
from tests.harness import Daemon, ended, running, started, stopped, wait_until

CONFIG = """
[quotas]
spawns_per_hour = 1000000
trees = 1000
trees_per_user = 1000
[limits]
max_time = "2h"
[defaults]
timeout = "1h"
"""
TRUE = "/bin/true"


def main() -> None:
    """Print a line for each row."""
    rows: dict[str, Callable[[], object]] = {
        "latency": latency,
        "throughput": throughput,
        "list": listing,
        "status": status,
        "stop": stop,
        "restart": restart,
        "idle": idle,
        "cli": command_line,
        "core": core.main,
        "output": output.main,
        "counts": counts.main,
        "gateway": gateway.main,
        "top": top.main,
    }
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("--only", help="rows, separated by commas")
    only = parser.parse_args().only
    for row in only.split(",") if only else rows:
        rows[row]()


@contextmanager
def daemon() -> Iterator[Daemon]:
    """Start a daemon whose state is in memory if there is room: deleting files on a disk slows the next measurement."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=base) as directory, running(Path(directory), config=CONFIG, executed=True) as one:
        yield one


def milliseconds(call: Callable[[], object], times: int) -> float:
    """Return the median of `times` calls, after a few that do not count."""
    taken = []
    for _ in range(times + 3):
        began = time.perf_counter()
        call()
        taken.append(1000 * (time.perf_counter() - began))
    return statistics.median(taken[3:])


def floor() -> None:
    """Start and reap `/bin/true` by bare system calls."""
    os.waitpid(os.posix_spawn(TRUE, [TRUE], {}), 0)  # noqa: TID251 - our own child, by pid


def say(row: str, *figures: str) -> None:
    """Print one line."""
    print(f"{row:12}", *figures, sep="  ", flush=True)


def latency() -> None:
    """Measure one run at a time, from its request until its end is known."""
    with daemon() as one, one.client() as client:
        bare = milliseconds(floor, 200)
        begun = milliseconds(lambda: started(client, [TRUE]), 200)
        known = milliseconds(lambda: ended(client, started(client, [TRUE]).id), 200)
        ratios = [f"{what} {took:.2f} ms ({took / bare:.1f}x)" for what, took in (("started", begun), ("ended", known))]
        say("latency", f"floor {bare:.2f} ms", *ratios)


def throughput(count: int = 1000) -> None:
    """Measure a thousand short runs over one connection."""
    with daemon() as one, one.client() as client:
        began = time.perf_counter()
        for _ in range(count):
            floor()
        bare = count / (time.perf_counter() - began)
        cpu = sum(psutil.Process(one.pid).cpu_times()[:2])
        rate = count / pipelined(client, count)
        cpu = sum(psutil.Process(one.pid).cpu_times()[:2]) - cpu
        spent = f"{1000 * cpu / count:.2f} ms CPU a run"
        say("throughput", f"floor {bare:.0f}/s", f"sfad {rate:.0f}/s ({rate / bare:.2f}x)", spent)


def pipelined(client: Client, count: int) -> float:
    """Return the seconds for `count` runs that are all requested before the first answer is read."""
    began = time.perf_counter()
    runs = submitted(client, count, TRUE)
    sender = threading.Thread(target=lambda: [client.send(m.Wait(id=client.next_id(), run=run)) for run in runs])
    sender.start()
    assert all(reply.run.status == "completed" for reply in answers(client, count))
    sender.join()
    return time.perf_counter() - began


def submitted(client: Client, count: int, *argv: str) -> list[str]:
    """Start `count` runs of a command, all requested before the first answer is read."""
    words = [word.encode() for word in argv]
    asked = [m.Spawn(id=client.next_id(), argv=words, cwd=b"/", env=[b"PATH=/bin"]) for _ in range(count)]
    sender = threading.Thread(target=lambda: [client.send(spawn) for spawn in asked])
    sender.start()
    runs = [reply.run.id for reply in answers(client, count)]
    sender.join()
    return runs


def answers(client: Client, count: int) -> list[m.RunReply]:
    """Return the runs of the next `count` replies."""
    found: list[m.RunReply] = []
    while len(found) < count:
        for answer in client.arrived():
            assert isinstance(answer.reply, m.RunReply), answer.reply
            found.append(answer.reply)
    return found


def listing() -> None:
    """Measure the default page and a full list, with a thousand and with five thousand runs in the ledger."""
    with daemon() as one, one.client() as client:
        for total in (1000, 4000):
            pipelined(client, total)
            page = milliseconds(lambda: client.call(m.List(id=client.next_id()), m.RunList), 100)
            full = milliseconds(lambda: client.call(m.List(id=client.next_id(), rows=20_000), m.RunList), 5)
            say("list", f"{total} more runs", f"page {page:.2f} ms", f"full {full:.1f} ms")


def status() -> None:
    """Measure a question about one run."""
    with daemon() as one, one.client() as client:
        run = ended(client, started(client, [TRUE]).id).id
        alone = milliseconds(lambda: client.call(m.Info(id=client.next_id(), run=run), m.RunReply), 1000)
        say("status", f"{alone:.3f} ms")


def stop() -> None:
    """Measure the stop of a tree of 201 processes, half of them double-forked into sessions of their own."""
    with daemon() as one, one.client() as client:
        run = started(client, [sys.executable, str(Path(programs.__file__)), "crowd", "200"])
        output = one.state_dir / "output" / f"{run.id}.out"
        wait_until(lambda: b"ready" in output.read_bytes(), "the crowd")
        reply = stopped(client, run.id)
        say("stop", f"{1000 * reply.elapsed_s:.1f} ms", f"{len(one.leftovers()) - 1} left")


def restart() -> None:
    """`kill -9` with a thousand live runs, then with five thousand queued behind them: until the next daemon serves, which is
    when it has adopted all of them."""
    bare = milliseconds(lambda: subprocess.run([sys.executable, "-c", "import sfad.serving"], check=True), 5)
    with daemon() as one:
        for count in (1000, 5000):
            with one.client() as client:
                submitted(client, count, "/bin/sleep", "3600")
            one.kill()
            began = time.perf_counter()
            one.restart()
            serving = time.perf_counter() - began
            with one.client() as client:
                found = client.call(m.DaemonInfo(id=client.next_id()), m.DaemonStatus)
            cpu = sum(psutil.Process(one.pid).cpu_times()[:2])
            figures = f"{found.adopted} adopted, {found.queued} queued", f"serving after {serving:.2f} s", f"{cpu:.2f} s CPU"
            say("restart", f"imports {bare / 1000:.2f} s", *figures)


def idle() -> None:
    """Measure the daemon while nothing happens."""
    with daemon() as one, one.client() as client:
        for runs in (0, 500):
            for _ in range(runs):
                started(client, ["sleep", "3600"])
            time.sleep(2)
            process = psutil.Process(one.pid)
            before = sum(process.cpu_times()[:2])
            time.sleep(10)
            cpu = sum(process.cpu_times()[:2]) - before
            say("idle", f"{runs} runs", f"{process.memory_info().rss / 2**20:.0f} MiB", f"{10 * cpu:.2f} % CPU")
        stopped(client, everything=True)


def command_line() -> None:
    """Measure one call of `sfactl`, and an interpreter that does nothing."""
    with daemon() as one:
        bare = milliseconds(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True), 15)
        for words in (["list"], ["spawn", "--", TRUE], ["run", "-q", "--", TRUE]):
            command = [sys.executable, "-m", "sfactl", *words]
            taken = milliseconds(lambda: subprocess.run(command, env=one.env, check=True, stdout=subprocess.DEVNULL), 15)  # noqa: B023
            say("cli", f"python {bare:.0f} ms", f"{' '.join(words)}: {taken:.0f} ms")
        one.sfactl("shim", "install", "true")
        inside = one.env | {"SFA_RUN_ID": "a1", "SFA_SOCKET": str(one.socket)}
        shim = one.state_dir / "shims" / "true"
        taken = milliseconds(lambda: subprocess.run([shim], env=inside, check=True), 15)
        direct = milliseconds(lambda: subprocess.run([TRUE], check=True), 15)
        say("cli", f"python {bare:.0f} ms", f"true: {direct:.0f} ms", f"through its shim: {taken:.0f} ms")


if __name__ == "__main__":
    main()
