"""Runs that give no sign of life, and runs that only look as if: real processes under real
daemons."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sfactl.connecting.connection import Client
from sfad.protocol import messages as m
from sfad.protocol.types import Action, Limit, LimitKind, RunInfo, Status
from tests.conftest import Start
from tests.harness import PYTHON, Daemon, ended, started, stopped, wait_until
from tests.tiers import variant

QUIET = 3.0
LATE = 5.0
"""Seconds after its limit within which a silence is found."""
BUSY = """
import subprocess, sys, time
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    began = time.monotonic()
    {work}
    time.sleep(min(0.5, 4 * (time.monotonic() - began)))
"""
"""Works for a fifth of the time: a hundredth of a CPU is a sign of life, and two CPUs at work would
hold up other tests. Beside them, the work may take so long that four times of it were a silence."""


def silence(seconds: float = QUIET, action: Action = Action.TERMINATE) -> list[Limit]:
    return [
        Limit(kind=LimitKind.SILENCE, threshold=seconds, action=action, source="--limit silence")
    ]


def begun(client: Client, argv: Sequence[str], **options: Any) -> RunInfo:
    return started(client, argv, **({"limits": silence()} | options))


@pytest.fixture
def daemon(share: Start, containment: str) -> Daemon:
    return share(mode=containment)


def test_hung_agents_are_found_and_working_ones_are_not(daemon: Daemon, tmp_path: Path) -> None:
    """One is blocked on a pipe, one stopped, one in a sleep of an hour. The others compile, print,
    or have a child that does."""
    os.mkfifo(tmp_path / "pipe")
    alone = BUSY.format(seconds=3 * QUIET, work="sum(range(500_000))")
    compiler = BUSY.format(
        seconds=3 * QUIET, work="subprocess.run([sys.executable, '-c', 'sum(range(5_000_000))'])"
    )
    parent = (
        f"{PYTHON} -m sfactl run -q --name child -- sh -c 'for i in 1 2 3 4 5 6; do echo $i; "
        "sleep 1; done' > /dev/null"
    )
    with daemon.client() as client:
        env = [f"{name}={value}".encode() for name, value in daemon.env.items()]
        hung = [
            begun(client, ["sh", "-c", f"echo begun; cat '{tmp_path}/pipe'"]),
            begun(client, ["sh", "-c", "kill -STOP $$; sleep 1000"]),
            begun(client, [sys.executable, "-c", "import time; time.sleep(3600)"]),
        ]
        working = [
            begun(client, [sys.executable, "-c", alone]),
            begun(client, [sys.executable, "-c", compiler]),
            begun(
                client,
                ["sh", "-c", f"for i in $(seq {3 * QUIET:.0f}); do echo $i >&2; sleep 1; done"],
            ),
            begun(client, ["sh", "-c", parent], env=env, cwd=os.fsencode(os.getcwd())),
        ]
        for run in [ended(client, run.id) for run in hung]:
            assert run.reason is not None
            assert (run.status, run.reason.limit_kind, run.reason.threshold) == (
                Status.FAILED,
                "silence",
                QUIET,
            )
            assert QUIET <= (run.reason.used or 0) <= QUIET + LATE, run.reason
        assert [(run.status, run.reason) for run in [ended(client, run.id) for run in working]] == [
            (Status.COMPLETED, None)
        ] * 4


def test_a_stopped_process_is_shown_as_such(start: Start) -> None:
    daemon = start()
    with daemon.client() as client:
        run = begun(client, ["sh", "-c", "echo begun; exec sleep 1000"], limits=silence(600))
        shown = wait_until(
            lambda: _info(client, run) if _info(client, run).last_heard_at else None, "it was heard"
        )
        assert not shown.stopped
        assert shown.pid is not None
        os.kill(shown.pid, signal.SIGSTOP)
        wait_until(lambda: _info(client, run).stopped, "it is shown as stopped")
        assert "stopped (by a signal)" in daemon.sfactl("list").stdout
        assert "HEARD" in daemon.sfactl("list", "--wide").stdout
        told = daemon.sfactl("info", run.id).stdout
        assert "last heard" in told
        assert "status       stopped" in told
        stopped(client, run.id)


def test_a_paused_run_is_not_silent(start: Start) -> None:
    daemon = start()
    with daemon.client() as client:
        run = begun(client, ["sleep", "1000"])
        client.call(m.Pause(id=client.next_id(), run=run.id), m.RunReply)
        time.sleep(1.5 * QUIET)  # nothing is to happen in this time
        assert _info(client, run).status is Status.PAUSED
        client.call(m.Resume(id=client.next_id(), run=run.id), m.RunReply)
        resumed = time.monotonic()
        assert ended(client, run.id).status is Status.FAILED
        assert time.monotonic() - resumed > 0.9 * QUIET, "its silence began when it was resumed"


def _info(client: Client, run: RunInfo) -> RunInfo:
    return client.call(m.Info(id=client.next_id(), run=run.id), m.RunReply).run


@variant
def test_the_next_daemon_looks_on(start: Start) -> None:
    daemon = start()
    with daemon.client() as client:
        run = begun(client, ["sleep", "1000"])
    daemon.kill()
    daemon.restart()
    with daemon.client() as client:
        found = ended(client, run.id)
    assert found.reason is not None
    assert found.reason.limit_kind == "silence"


def test_other_actions(start: Start) -> None:
    daemon = start()
    with daemon.client() as client:
        warned = begun(client, ["sleep", "7"], limits=silence(1.5, Action.WARN))
        paused = begun(client, ["sleep", "1000"], limits=silence(1.5, Action.PAUSE))
        wait_until(lambda: _info(client, paused).status is Status.PAUSED, "it is paused")
        assert ended(client, warned.id).status is Status.COMPLETED
        events = client.call(m.Events(id=client.next_id(), runs=[warned.id]), m.EventPage).events
        limits = [(event.type, event.limit_kind) for event in events if event.limit_kind]
        assert limits == [("limit_nearing", "silence"), ("limit_exceeded", "silence")]
        stopped(client, paused.id)
    told = daemon.sfactl("run", "--limit", "silence=9:continue", "--", "true")
    assert (told.returncode, "needs further attempts" in told.stderr) == (2, True)
    told = daemon.sfactl("run", "--limit", "turns=9:continue", "--attempts", "2", "--", "true")
    assert (told.returncode, "cannot continue a session" in told.stderr) == (2, True)
