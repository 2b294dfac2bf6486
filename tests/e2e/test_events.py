"""Events of the ledger, and each new one once: across deaths of the daemon, for many followers,
within the own subtree."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from sfactl.connecting.connection import Client
from sfad.protocol import messages as m
from sfad.protocol.types import Event
from tests.conftest import Start
from tests.harness import PYTHON, Daemon, ended, started, wait_until


@pytest.fixture
def daemon(common: Daemon) -> Daemon:
    return common


def failed(client: Client, name: str) -> str:
    """Return a run that has ended with exit code 1."""
    run = started(client, ["sh", "-c", "exit 1"], name=name).id
    ended(client, run)
    return run


def recorded(client: Client, **wanted: Any) -> list[Event]:
    return client.call(m.Events(id=0, **({"after": 0, "rows": 1000} | wanted)), m.EventPage).events


@contextmanager
def following(daemon: Daemon, into: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    with into.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "sfactl", "events", "-f", "--json", *words],
            env=daemon.env,
            stdout=file,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def seen(file: Path) -> list[dict[str, object]]:
    return [
        json.loads(line)
        for line in file.read_text().splitlines(keepends=True)
        if line.endswith("\n")
    ]


def test_a_follower_misses_nothing_and_gets_nothing_twice_when_the_daemon_dies(
    start: Start, tmp_path: Path
) -> None:
    daemon, out = start(), tmp_path / "out"
    with following(daemon, out, "--since", "0") as follower:
        with daemon.client() as client:
            first = failed(client, "first")
            wait_until(
                lambda: any(each["run_id"] == first for each in seen(out)), "it has begun to follow"
            )
            started(client, ["sh", "-c", "exit 1"], name="unlucky")
        daemon.kill()
        daemon.restart()
        with daemon.client() as client:
            failed(client, "second")
        daemon.reexecute()
        with daemon.client() as client:
            last = failed(client, "third")
            wait_until(
                lambda: any(
                    each["type"] == "run_failed" and each["run_id"] == last for each in seen(out)
                ),
                "it follows",
            )
            everything = recorded(client)
        follower.send_signal(signal.SIGINT)
        assert follower.wait() == 130
    assert [each["seq"] for each in seen(out)] == [event.number for event in everything]
    ends = [
        event.run_id
        for event in everything
        if event.type in ("run_failed", "run_lost", "run_completed")
    ]
    assert len(ends) == len(set(ends)) == 4


def test_an_end_that_a_killed_daemon_did_not_record_is_announced_by_the_next(start: Start) -> None:
    daemon = start()
    with daemon.client() as client:
        run = failed(client, "unlucky")
    daemon.kill()
    with closing(sqlite3.connect(daemon.state_dir / "ledger.db")) as ledger:
        ledger.execute("DELETE FROM events WHERE type = 'run_failed'")
        ledger.execute("UPDATE runs SET status = 'running', ended = 0")
        ledger.commit()
    daemon.restart()
    with daemon.client() as client:
        [end] = recorded(client, types=["run_[cf]*", "run_lost"])
    assert (end.type, end.run_id, end.severity, end.message) == (
        "run_failed",
        run,
        "medium",
        "exited with code 1",
    )
    assert end.channel == "cli"


def test_a_follower_that_does_not_read_keeps_no_other_waiting(daemon: Daemon) -> None:
    clients = [daemon.client() for _ in range(50)]
    try:
        for client in clients:
            client.call(m.Events(id=0, follow=True, types=["run_*"]), m.EventPage)
        with daemon.client() as client:
            runs = [started(client, ["true"]).id for _ in range(60)]
            for run in runs:
                ended(client, run)
        for client in reversed(clients):  # the first reads last, when all others have been served
            got: list[str | None] = []
            while len(got) < 3 * len(runs):
                got += [
                    answer.reply.event.run_id
                    for answer in client.arrived()
                    if isinstance(answer.reply, m.EventPush)
                ]
            assert sorted(filter(None, got)) == sorted(3 * runs)
    finally:
        for client in clients:
            client.close()


def test_milestones_are_shown_with_the_run_and_left_out_of_events_unless_asked_for(
    daemon: Daemon,
) -> None:
    writes = 'for n in 1 2 3; do echo "[agent:worker] step $n" >&2; done; exec sleep 60'
    with daemon.client() as client:
        run = started(client, ["sh", "-c", writes], name="worker").id
        wait_until(
            lambda: client.call(m.Info(id=0, run=run), m.RunReply).run.milestone == "step 3",
            "its milestone is known",
        )

        def progress(**wanted: Any) -> list[str]:
            return [
                event.message
                for event in recorded(client, runs=[run], **wanted)
                if event.type == "run_progress"
            ]

        assert progress()[-1] == "step 3"
        assert progress(milestones=False) == []
        assert progress(milestones=False, types=["run_progress"]) == progress()
        client.call(m.Stop(id=0, runs=[run]), m.Stopped)
        assert client.call(m.Info(id=0, run=run), m.RunReply).run.milestone == "step 3"


def test_filters_and_the_own_subtree(daemon: Daemon) -> None:
    with daemon.client() as client:
        other = failed(client, "other")
        words = (
            f"{PYTHON} -m sfactl spawn --name below -- false; "
            f"{PYTHON} -m sfactl events --json --since 0"
        )
        inside = started(client, ["sh", "-c", words], name="inside").id
        ended(client, inside)
        [child] = [run.id for run in client.call(m.List(id=0, name="below"), m.RunList).runs]
        ended(client, child)
        printed = (daemon.state_dir / "output" / f"{inside}.out").read_text().splitlines()[1:]
        assert {json.loads(line)["run_id"] for line in printed} == {inside, child}
        ours = recorded(client, runs=["inside"])
        assert [event.number for event in ours] == sorted(event.number for event in ours)
        assert {event.run_id for event in ours} == {inside, child}
        assert {
            event.run_id for event in recorded(client, runs=[other, child], severity="medium")
        } == {other, child}
        assert [
            event.run_id for event in recorded(client, after=None, rows=1, types=["run_failed"])
        ] == [child]
        assert recorded(client, since=3e9) == []
        more = client.call(m.Events(id=0, after=0, rows=2), m.EventPage)
        assert (len(more.events), more.more) == (2, True)
