"""`python -m tests.soak.flat --minutes 10`: an hour's load of one daemon, as fast as it goes, and
what it leaves in the daemon.

An hour's load is 24 000 runs of every kind, with the clients that ask about them: four hundred
agents a minute. After each round nothing lives. From half of it on, memory, descriptors, threads,
children and cgroups must not grow. Exit code 0 if they do not.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import psutil

from sfactl.connecting.connection import Client
from sfad.features.metrics.messages import Metrics, MetricsText
from sfad.protocol import messages as m
from sfad.protocol.types import RunInfo
from tests import surroundings
from tests.e2e.agents import limit, turns
from tests.harness import Daemon, ended, running, spawn, started, stopped, wait_until

ROUND = 400
"""Runs of a round."""
HOUR = 24_000
GROWTH = 0.05
"""The share by which private memory may be above that of the first half: what is kept of the newest
ended runs varies."""

CONFIG = """
[quotas]
spawns_per_hour = 1000000
trees = 64
trees_per_user = 64
queued_per_user = 5000
[stop]
grace = 1
polite = 0.1
"""


def short(client: Client, count: int) -> None:
    """Start runs that end at once, all requested before the first answer is read."""
    ids = [client.next_id() for _ in range(count)]
    for number in ids:
        words = (
            [b"true"]
            if number % 2
            else [b"sh", b"-c", b"echo out; echo '[agent:x] step' >&2; exit 3"]
        )
        client.send(
            m.Spawn(id=number, argv=words, cwd=b"/", env=[b"PATH=/bin:/usr/bin", b"X=%d" % number])
        )
    runs: list[str] = []
    while len(runs) < count:
        runs += [
            answer.reply.run.id
            for answer in client.arrived()
            if isinstance(answer.reply, m.RunReply)
        ]
    for run in runs:
        ended(client, run)


def trees(client: Client) -> None:
    """Stop runs that leave their session, pause and resume them, and change their limits."""
    script = "(setsid sleep 100 &); (setsid sleep 100 &); sleep 100 & sleep 100"
    runs = [started(client, ["sh", "-c", script]).id for _ in range(20)]
    for run in runs[:10]:
        client.call(m.Pause(id=client.next_id(), run=run), m.Reply)
        client.call(m.Resume(id=client.next_id(), run=run), m.Reply)
        client.call(
            m.ChangeLimits(id=client.next_id(), run=run, limits=[limit("time", 90)]), m.Reply
        )
    stopped(client, *runs)


def failures(client: Client) -> None:
    """Have runs fail in each way: no such program, no such directory, a limit, an attempt after the
    other, a refusal."""
    for _ in range(10):
        spawn(client, ["/no/such/program"])
        spawn(client, ["true"], cwd=b"/no/such/directory")
        spawn(client, ["true"], limits=[limit("time", 1e9)])
    runs = [
        started(client, ["sh", "-c", "exit 1"], attempts=2, retry_delay=0.01).id for _ in range(10)
    ]
    runs += [
        started(client, turns(9), meter="jsonl", limits=[limit("turns", 2)]).id for _ in range(2)
    ]
    for run in runs:
        ended(client, run)


def watchers(daemon: Daemon) -> None:
    """Connect clients that watch all runs and hang up, some in the middle of a frame, and one whose
    run ends with it."""
    for number in range(20):
        with daemon.client() as client:
            client.send(m.WatchRuns(id=client.next_id(), rows=10))
            client.send(m.Events(id=client.next_id(), follow=True))
            if number % 4 == 0:
                client.send(
                    m.Spawn(
                        id=client.next_id(), argv=[b"sleep", b"100"], cwd=b"/", env=[], tied=True
                    )
                )
                client.arrived()
            os.write(client.fileno(), b"\0\0")


def questions(client: Client) -> None:
    """Ask what people and programs ask."""
    for _ in range(10):
        page = client.call(m.List(id=client.next_id(), rows=200), m.RunList)
        client.call(m.Info(id=client.next_id(), run=page.runs[-1].id), m.RunReply)
        client.call(m.Logs(id=client.next_id(), run=page.runs[-1].id), m.Reply)
        client.call(Metrics(id=client.next_id()), MetricsText)


def left(daemon: Daemon) -> dict[str, int]:
    """Return what the daemon has when nothing lives."""
    process = psutil.Process(daemon.pid)
    base = next((path for path in daemon.leftovers() if not path.startswith("process")), None)
    return {
        "private KiB": process.memory_full_info().uss >> 10,
        "descriptors": daemon.descriptors(),
        "threads": process.num_threads(),
        "children": len(process.children()),
        "cgroups": sum(entry.is_dir() for entry in os.scandir(base)) if base is not None else 0,
    }


def grown(rounds: Sequence[dict[str, int]]) -> list[str]:
    """Return what is more after the last rounds than after the first half."""
    first, last = rounds[len(rounds) // 2], rounds[-3:]
    spare: Callable[[str], float] = lambda what: (  # noqa: E731
        GROWTH * first[what] if what == "private KiB" else 0
    )
    return [what for what in first if min(each[what] for each in last) > first[what] + spare(what)]


def play(daemon: Daemon) -> None:
    """Play one round, and wait until nothing of it is left to be done."""
    with daemon.client() as client:
        short(client, ROUND - 72)
        trees(client)
        failures(client)
        questions(client)
    watchers(daemon)
    with daemon.client() as client:
        wait_until(lambda: all(run.ended_at for run in shown(client)), "the last runs have ended")


def shown(client: Client) -> list[RunInfo]:
    """Return the live runs and the newest ended ones."""
    return client.call(m.List(id=client.next_id()), m.RunList).runs


def main() -> int:
    """Play rounds for that time, or until an hour's load was played."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.flat", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    options = parser.parse_args()
    until = time.monotonic() + 60 * options.minutes
    rounds: list[dict[str, int]] = []
    with tempfile.TemporaryDirectory(prefix="sfad-flat-") as directory, ExitStack() as stack:
        surroundings.enter(Path(directory, "surroundings"))
        daemon = stack.enter_context(running(Path(directory), config=CONFIG))
        while time.monotonic() < until and len(rounds) * ROUND < HOUR:
            play(daemon)
            time.sleep(0.5)
            rounds.append(left(daemon))
            print(
                len(rounds) * ROUND,
                "runs:",
                ", ".join(f"{what} {count}" for what, count in rounds[-1].items()),
                flush=True,
            )
    wrong = grown(rounds)
    print("WRONG: these grow:" if wrong else "flat", *wrong)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
