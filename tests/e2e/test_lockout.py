"""An agent that takes as much of the daemon as it can get locks out neither its owner nor other
runs."""

from __future__ import annotations

import json
import re
import sys
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest

from sfactl.connecting.connection import DaemonError
from sfactl.exits import ExitCode
from sfad.host.linux.descriptors import soft_of
from sfad.protocol import messages as m
from sfad.protocol.types import ErrorCode
from tests.conftest import GENEROUS, Start
from tests.harness import Daemon, agent, ended, started, stopped, wait_until
from tests.tiers import first

from .agents import info

HOGS = [sys.executable, str(Path(__file__).with_name("hogs.py"))]


def limited(start: Start, containment: str, limit: int | None) -> Daemon:
    """Start a daemon that may open `limit` descriptors, beside those that it keeps back for
    stopping runs."""
    wrap: list[str] = []
    if limit is not None:
        hard = next(hard for hard in count(limit) if soft_of(hard) == limit)
        wrap = ["prlimit", f"--nofile={hard}:{hard}"]
    return start(mode=containment, config=GENEROUS, wrap=wrap)


def attacked(daemon: Daemon, attack: str, *options: str) -> tuple[str, dict[str, Any]]:
    """Start an attack, and wait until it has all that it can get. Return the run and what it
    printed."""
    spawned = daemon.sfactl("spawn", "--quiet", *options, "--", *HOGS, attack)
    assert spawned.returncode == 0, spawned
    run = spawned.stdout.strip()
    output = daemon.state_dir / "output" / f"{run}.out"
    said = wait_until(lambda: output.exists() and output.read_text(), "it has what it can get")
    return run, json.loads(said)


def owner_stops(daemon: Daemon, run: str, before: int) -> None:
    """Stop the run as its owner, and check that what it took is given back."""
    assert daemon.sfactl("status").returncode == 0
    stop = daemon.sfactl("stop", "--json", run)
    assert stop.returncode == 0, stop
    assert json.loads(stop.stdout)["survivors"] == []
    wait_until(lambda: daemon.descriptors() <= before, "descriptors are given back")


@first(1)
@pytest.mark.parametrize(
    ("attack", "containment", "limit"),
    [
        ("silent", "cgroup", None),
        ("silent", "tags", 80),
        ("descriptors", "cgroup", 1024),
        ("descriptors", "tags", 80),
        ("children", "cgroup", 80),
        ("children", "tags", 1024),
    ],
)
def test_an_agent_that_takes_descriptors(
    start: Start, attack: str, containment: str, limit: int | None
) -> None:
    daemon = limited(start, containment, limit)
    with daemon.client() as client:
        info(client, started(client, ["true"]).id)
    before = daemon.descriptors()
    run, said = attacked(daemon, attack, "--max-descendants", "1000")
    if attack == "silent":
        # of 80, what the daemon has open for a moment may take the last ones before its share is
        # full
        few = limit is not None and f"of {limit} descriptors are left" in said["why"]
        assert f"run {run} would have" in said["why"] or few
    if attack == "children":
        assert re.search(rf"only \d+ of {limit} descriptors are left", said["why"])
        assert limit is not None
        assert daemon.descriptors() < limit
    owner_stops(daemon, run, before)


@pytest.mark.rest("keeps a processor busy for seconds")
def test_children_do_not_multiply_what_an_agent_can_take(start: Start) -> None:
    daemon = limited(start, "cgroup", 1024)
    before = daemon.descriptors()
    run, _ = attacked(daemon, "silent", "--env", "CHILDREN=3")
    with daemon.client() as client:
        wait_until(
            lambda: len(client.call(m.List(id=client.next_id()), m.RunList).runs) == 4,
            "its children are there",
        )
        wait_until(
            lambda: (
                (client.call(m.DaemonInfo(id=client.next_id()), m.DaemonStatus).connections or 0)
                >= 129
            ),
            "all they can get",
        )
        # 512 / 4, and this one
        assert client.call(m.DaemonInfo(id=client.next_id()), m.DaemonStatus).connections == 128 + 1
        other = ended(
            client,
            started(
                client, [sys.executable, "-m", "sfactl", "run", "--name", "other", "--", "true"]
            ).id,
        )
        assert other.exit_code == 0  # a run of another tree is served
    owner_stops(daemon, run, before)


REFUSED = """
import json
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from sfactl.client import RequestFailed, Sfad
from sfactl.connecting.connection import Client, DaemonError
path = Path(os.environ["SFA_SOCKET"])
clients, why = [], ""
try:
    while True:
        clients.append(Client(path))
except DaemonError as error:
    why = error.message
command = sfactl("info", os.environ["SFA_RUN_ID"])
try:
    Sfad().info()
except RequestFailed as error:
    library = [str(error), error.code]
print(json.dumps([len(clients), why, command.returncode, command.stderr, library]))
"""


def test_a_client_that_is_refused_says_what_the_daemon_said(start: Start, tmp_path: Path) -> None:
    daemon = limited(start, "auto", 1024)
    done = daemon.sfactl("run", "--quiet", "--", *agent(tmp_path, "refused", REFUSED))
    count, why, code, stderr, library = json.loads(done.stdout)
    assert count == 64
    assert why == (
        "run a1 would have 65 connections and descriptors, at most 64 are allowed; "
        "close some, or try again later"
    )
    assert (code, stderr) == (ExitCode.UNAVAILABLE, f"sfactl: {why}\n")
    assert library == [why, ErrorCode.UNAVAILABLE]


def test_an_agent_that_leaves_requests_unfinished(daemon: Daemon) -> None:
    before = daemon.descriptors()
    run, said = attacked(daemon, "halves")
    assert "bytes of requests unfinished; at most 8388608 are held" in said["why"]
    with daemon.client() as client:
        assert ended(client, started(client, ["true", *["x" * 100_000] * 10]).id).exit_code == 0
        inside = [
            sys.executable,
            "-m",
            "sfactl",
            "run",
            "--name",
            "inside",
            "--",
            "true",
            *["y" * 100_000] * 10,
        ]
        assert ended(client, started(client, inside).id).exit_code == 0
    owner_stops(daemon, run, before)


def test_an_agent_that_watches_and_never_reads(daemon: Daemon) -> None:
    before = daemon.descriptors()
    run, said = attacked(daemon, "watchers")
    assert said["granted"] == 256
    assert said["why"] == (
        f"run {run} would have 257 open watches, at most 256 are allowed; "
        "close some, or try again later"
    )
    storm(daemon, run, 50)
    owner_stops(daemon, run, before)


def storm(daemon: Daemon, run: str, count: int) -> None:
    """Pause and resume a run `count` times, for its events."""
    with daemon.client() as client:
        for _ in range(count):
            client.call(m.Pause(id=client.next_id(), run=run), m.RunReply)
            client.call(m.Resume(id=client.next_id(), run=run), m.RunReply)


@pytest.mark.rest("keeps a processor busy for seconds")
def test_watchers_that_never_read_cost_the_daemon_little_memory(daemon: Daemon) -> None:
    """30 connections with 20 watches each once took 1.44 GB: each event is 6 KiB for each
    connection."""
    with daemon.client() as client, ExitStack() as stack:
        run = started(client, ["sleep", "60"])
        process = psutil.Process(daemon.pid)
        before = process.memory_info().rss
        for _ in range(30):
            watcher = stack.enter_context(daemon.client())
            for _ in range(20):
                watcher.call(m.Watch(id=watcher.next_id(), run=run.id), m.Done)
        storm(daemon, run.id, 300)
        assert process.memory_info().rss - before < 80 * 1024 * 1024
        assert "dropped a slow client: the owner of the daemon left" in daemon.log.read_text()
        stopped(client, run.id)


def test_watches_of_one_connection_are_bounded(daemon: Daemon) -> None:
    with daemon.client() as client:
        run = started(client, ["sleep", "60"])
        for _ in range(64):
            client.call(m.Watch(id=client.next_id(), run=run.id), m.Done)
        with pytest.raises(DaemonError, match="64 open watches, at most 64 are allowed"):
            client.call(m.Watch(id=client.next_id(), run=run.id), m.Done)
        stopped(client, run.id)
        run = started(client, ["sleep", "60"])  # those of the ended run are over
        client.call(m.Watch(id=client.next_id(), run=run.id), m.Done)
        stopped(client, run.id)


@pytest.mark.rest("keeps a processor busy for seconds")
def test_an_agent_that_connects_in_a_loop(start: Start) -> None:
    daemon = start(mode="tags")
    before = daemon.descriptors()
    run, _ = attacked(daemon, "knocking")
    with daemon.client() as client:
        for _ in range(15):
            client.call(m.DaemonInfo(id=client.next_id()), m.DaemonStatus)
    owner_stops(daemon, run, before)


@pytest.mark.rest("keeps a processor busy for seconds")
def test_an_agent_that_asks_without_pause_takes_turns_with_its_owner(start: Start) -> None:
    """200 clients of one run ask for starts that are refused. The refusals between two answers to
    the owner tell how long the owner waits."""
    daemon = start()
    before = daemon.descriptors()
    run, _ = attacked(daemon, "asking", "--leaf")
    with daemon.client() as client:

        def refusals() -> int:
            return client.call(m.DaemonInfo(id=client.next_id()), m.DaemonStatus).refused or 0

        wait_until(lambda: refusals() > 200, "each of the run's clients asks")
        between: list[int] = []
        while len(between) < 9:
            before_turn = refusals()
            # 0 if only the owner had the processor meanwhile
            if waited_for := refusals() - before_turn:
                between.append(waited_for)
    assert sorted(between)[4] < 1000  # turns by connection would be 200 times 16
    owner_stops(daemon, run, before)
