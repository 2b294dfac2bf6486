"""`stop` answers when nothing is alive, and only then."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sfactl.connecting.connection import Client
from sfad.protocol import messages as m
from sfad.protocol.types import RunInfo, Status
from tests.conftest import Start
from tests.harness import Daemon, agent, ended, running, spawn, started, stopped, strays, wait_until
from tests.tiers import variant

from .agents import info

PROGRAMS = Path(__file__).with_name("programs.py")


def ready(daemon: Daemon, run: RunInfo) -> None:
    """Wait until the run has printed that it is ready."""
    output = daemon.state_dir / "output" / f"{run.id}.out"
    wait_until(lambda: "ready" in output.read_text(), f"{run.argv} ready")


def begun(daemon: Daemon, client: Client, *words: str, **options: object) -> RunInfo:
    """A run of `programs.py` that says it is ready."""
    run = started(client, [sys.executable, PROGRAMS, *words], **options)
    ready(daemon, run)
    return run


@pytest.fixture(scope="module", params=["cgroup", "tags"])
def containment(request: pytest.FixtureRequest) -> str:
    """The containment of `daemon`."""
    return str(request.param)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, containment: str) -> Iterator[Daemon]:
    """One daemon for the tests that stop all of their runs."""
    with running(tmp_path_factory.mktemp("daemon"), mode=containment) as daemon:
        yield daemon


def test_a_crowd_with_hoppers_and_stubborn_children_is_gone_after_one_grace(
    daemon: Daemon, containment: str
) -> None:
    # without a freezer, a daemon that may not go ahead of lineages that never stand still has to
    # hope
    hoppers = "20" if containment == "cgroup" or os.geteuid() == 0 else "4"
    with daemon.client() as client:
        run = begun(daemon, client, "crowd", "300", "stubborn", "5", "hoppers", hoppers)
        assert len(strays(daemon.instance)) > 300
        reply = stopped(client, run.id, grace=1.0)
        assert strays(daemon.instance) == []
        assert reply.survivors == []
        assert reply.stopped == [run.id]
        assert reply.elapsed_s >= 1.0  # the stubborn had their grace
        assert ended(client, run.id).status is Status.CANCELLED


def test_an_obedient_tree_needs_no_grace(share: Start, containment: str) -> None:
    daemon = share(mode=containment, config="[stop]\ngrace = 60")
    with daemon.client() as client:
        run = begun(daemon, client, "crowd", "200")
        reply = stopped(client, run.id)
        assert strays(daemon.instance) == []
        # half the grace: it ended with the last process, not with the clock
        assert reply.elapsed_s < 30


@variant
def test_ten_stubborn_runs_cost_one_grace(tmp_path: Path, start: Start, containment: str) -> None:
    daemon = start(mode=containment, config="[stop]\ngrace = 2")
    children = agent(
        tmp_path,
        "parent",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nfor i in range(10):\n "
        f"   sfactl('spawn', '--name', f'c{{i}}', '--', sys.executable, {str(PROGRAMS)!r}, "
        "'stubborn', '2')\nprint('ready', flush=True)\ntime.sleep(100)\n",
    )
    with daemon.client() as client:
        run = started(client, children)
        ready(daemon, run)
        reply = stopped(client, run.id)
        assert strays(daemon.instance) == []
        assert 2.0 <= reply.elapsed_s < 18.0  # ten times the grace would be 20
        rows = client.call(m.List(id=client.next_id(), root=run.id), m.RunList).runs
        assert [row.status for row in rows] == [Status.CANCELLED] * 11
        assert {row.reason.kind for row in rows if row.reason and row.id != run.id} == {"ancestor"}


def test_background_processes_of_a_finished_run_are_gone(daemon: Daemon) -> None:
    with daemon.client() as client:
        # a length of sleep that nobody else has: one of them can be found by its arguments only
        script = (
            "setsid sh -c 'setsid sleep 4321.25 & env -i sleep 4321.25 &' & sleep 4321.25 & exit 7"
        )
        run = ended(client, started(client, ["sh", "-c", script]).id)
        assert (run.status, run.exit_code) == (Status.FAILED, 7)
        assert daemon.leftovers() == [
            path for path in daemon.leftovers() if path.endswith(f"sfad-{daemon.instance}")
        ]
        assert (
            "4321.25"
            not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
        )


def test_a_timeout_is_reported_even_if_the_agent_exits_0(daemon: Daemon) -> None:
    done = daemon.sfactl(
        "run",
        "--timeout",
        "1",
        "--json",
        "--",
        "sh",
        "-c",
        "trap 'exit 0' TERM; while :; do sleep 0.05; done",
    )
    assert done.returncode == 3, done.stderr
    run = json.loads(done.stdout)
    assert (run["status"], run["exit_code"], run["reason"]["limit_kind"]) == ("timeout", 0, "time")
    assert run["reason"]["used"] >= run["reason"]["threshold"] == 1.0


def test_a_second_stop_skips_the_grace(share: Start, containment: str) -> None:
    daemon = share(mode=containment, config="[stop]\ngrace = 60")
    with daemon.client() as patient, daemon.client() as hasty:
        run = begun(daemon, patient, "stubborn", "3")
        patient.send(m.Stop(id=patient.next_id(), runs=[run.id]))
        now = wait_until(
            lambda: (seen := info(hasty, run.id)).status is not Status.RUNNING and seen,
            "the stop is handled",
        )
        assert now.status is Status.STOPPING, now
        assert stopped(hasty, run.id, grace=0).survivors == []
        (first,) = patient.arrived()
        assert isinstance(first.reply, m.Stopped)
        assert first.reply.elapsed_s < 50


def test_pause_holds_the_whole_tree_and_its_clock(daemon: Daemon) -> None:
    script = "(i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done) & wait"
    with daemon.client() as client:
        run = started(client, ["sh", "-c", script])
        output = daemon.state_dir / "output" / f"{run.id}.out"
        wait_until(lambda: output.stat().st_size > 20, "ticking")
        paused = client.call(m.Pause(id=client.next_id(), run=run.id), m.RunReply).run
        assert (paused.status, paused.deadline) == (Status.PAUSED, None)
        size, elapsed = output.stat().st_size, paused.usage.elapsed_s
        began = time.monotonic()
        wait_until(
            lambda: time.monotonic() - began > 0.5, "half a second in which nothing may happen"
        )
        assert output.stat().st_size == size
        assert (
            client.call(m.Info(id=client.next_id(), run=run.id), m.RunReply).run.usage.elapsed_s
            == elapsed
        )
        resumed = client.call(m.Resume(id=client.next_id(), run=run.id), m.RunReply).run
        assert resumed.status is Status.RUNNING
        wait_until(lambda: output.stat().st_size > size, "ticking again")
        client.call(m.Pause(id=client.next_id(), run=run.id), m.RunReply)
        assert stopped(client, run.id).survivors == []


def test_a_stopping_daemon_stops_every_tree(start: Start, containment: str) -> None:
    daemon = start(mode=containment, config="[stop]\ngrace = 1")
    with daemon.client() as client:
        begun(daemon, client, "crowd", "20")
        begun(daemon, client, "stubborn", "5")
        spawn(client, ["sleep", "300"])
        assert daemon.stop() == 0
    assert daemon.leftovers() == []


@pytest.mark.parametrize(("containment", "number"), [("cgroup", 15), ("tags", 2)])
def test_a_foreground_run_is_stopped_when_its_client_vanishes(
    start: Start, containment: str, number: int
) -> None:
    daemon = start(mode=containment)
    client = daemon.client()
    run = started(client, ["sleep", "300"], tied=True)
    kept = started(client, ["sleep", "300"])
    client.close()
    with daemon.client() as other:
        done = ended(other, run.id)
        assert (done.status, done.reason and done.reason.kind) == (Status.CANCELLED, "client")
        assert (
            other.call(m.Info(id=other.next_id(), run=kept.id), m.RunReply).run.status
            is Status.RUNNING
        )
    assert daemon.stop(number) == 0
