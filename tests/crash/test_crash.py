"""A sample of the points of `make crash`, and what it has found."""

from __future__ import annotations

import secrets
import signal
import time
from pathlib import Path

import pytest

from sfactl.connecting.connection import Unreachable
from sfad.protocol import messages as m
from sfad.protocol.types import RunInfo, Status
from tests.conftest import Start
from tests.harness import PATIENCE, Daemon, ended, other_boot, spawn, started, stopped, wait_until

from .point import Point, crash
from .promises import all_runs
from .scenario import fork_away
from .victim import Agents, Victim

SAMPLE = [
    *(
        Point("scenario", mode, number)
        for mode, first in (("cgroup", 20), ("tags", 75))
        for number in range(first, 340, 220)
    ),
    *(Point("recovery", mode, number) for mode, number in (("cgroup", 12), ("tags", 25))),
    *(Point("reexec", mode, number) for mode, number in (("cgroup", 2), ("tags", 9))),
]


@pytest.mark.parametrize(
    "point", SAMPLE, ids=lambda point: f"{point.kind}-{point.mode}-{point.number}"
)
def test_every_promise_holds_wherever_the_daemon_dies(tmp_path: Path, point: Point) -> None:
    outcome = crash(tmp_path, point)
    assert outcome.effect is not None
    assert outcome.wrong == [], outcome.log


def info(daemon: Daemon, run: str) -> RunInfo:
    with daemon.client() as client:
        return client.call(m.Info(id=client.next_id(), run=run), m.RunReply).run


def kill(daemon: Daemon) -> None:
    daemon.kill()
    daemon.restart()


def test_the_key_of_a_run_that_has_ended_starts_nothing_after_a_crash(share: Start) -> None:
    """Its answer may have been lost with the daemon before the last."""
    daemon, key = share(), secrets.token_hex(8)
    with daemon.client() as client:
        first = started(client, ["true"], key=key)
        ended(client, first.id)
    for _ in range(2):
        kill(daemon)
        with daemon.client() as client:
            assert started(client, ["true"], key=key).id == first.id
            assert started(client, ["true"], key=secrets.token_hex(8)).id != first.id


@pytest.mark.parametrize("after", [0.0, 0.1, 0.3])
def test_sigterm_during_a_reexecution_is_not_lost(start: Start, after: float) -> None:
    daemon = start()
    with daemon.client() as client:
        started(client, ["sleep", "60"])
    daemon.process.send_signal(signal.SIGUSR2)
    time.sleep(after)
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(PATIENCE) == 0


def test_the_remains_of_a_main_process_are_not_mistaken_for_it(
    share: Start, tmp_path: Path, containment: str
) -> None:
    """It has ended and said how, and what it left is a session of its own; the daemon dies while it
    stops that."""
    agents = Agents(tmp_path)
    left = "( trap '' TERM; setsid sh -c \"trap '' TERM; while :; do sleep 1; done\" & )"
    daemon = share(mode=containment)
    with daemon.client() as client:
        run = started(client, agents.argv("left", f"{left}; sleep 0.2; end 4"), grace=2)
        wait_until(
            lambda: info(daemon, run.id).status is Status.STOPPING, "its remains are being stopped"
        )
        kill(daemon)
    with daemon.client() as client:
        final = ended(client, run.id)
    assert (final.status, final.exit_code, final.signal) == (Status.FAILED, 4, None)


def test_the_remains_of_an_unreported_start_are_not_mistaken_for_the_run(
    tmp_path: Path, containment: str
) -> None:
    """Its main process has ended before the next daemon looked: how is not known, and the run is
    over."""
    agents = Agents(tmp_path)
    daemon = Victim(tmp_path, config="", mode=containment, crash_at="launched+1")
    try:
        with daemon.client() as client:
            client.be_patient(PATIENCE)
            with pytest.raises(Unreachable):
                spawn(client, agents.argv("left", f"{fork_away(60)}; end 4"))
        wait_until(
            lambda: daemon.fallen and agents.read().codes,
            "the daemon is dead and the agent has ended",
        )
        daemon.start_again()
        with daemon.client() as client:
            run = next(iter(all_runs(client)))
            final = client.call(
                m.Wait(id=client.next_id(), run=run, timeout=PATIENCE), m.RunReply
            ).run
        assert final.status in {Status.LOST, Status.FAILED}
        assert final.reason is None or "nothing of it has run" not in final.reason.message
    finally:
        with daemon.client() as client:
            stopped(client, everything=True)
        assert daemon.stop() == 0


@pytest.mark.parametrize("effect", ["spawned", "main noted"])
def test_a_start_that_a_crash_interrupted_has_executed_nothing(
    tmp_path: Path, containment: str, effect: str
) -> None:
    agents = Agents(tmp_path)
    daemon = Victim(tmp_path, config="", mode=containment, crash_at=f"{effect}+1")
    try:
        with daemon.client() as client:
            client.be_patient(PATIENCE)
            with pytest.raises(Unreachable):
                spawn(client, agents.argv("early", "end 4"))
        wait_until(lambda: daemon.fallen, "the daemon is dead")
        daemon.start_again()
        with daemon.client() as client:
            (run,) = all_runs(client)
            final = ended(client, run)
        assert agents.read().begun == []
        assert (final.exit_code, final.signal, final.reason is not None and final.reason.kind) == (
            None,
            None,
            "daemon",
        )
        if effect == "spawned":  # else it may be too late to tell
            assert final.status is Status.FAILED
            assert "nothing of it has run" in (final.reason.message if final.reason else "")
    finally:
        assert daemon.stop() == 0


@pytest.mark.parametrize(("what", "containment"), [("power cut", "cgroup"), ("damage", "tags")])
def test_an_incomplete_spool_does_not_prove_that_a_command_was_not_executed(
    tmp_path: Path, containment: str, what: str
) -> None:
    daemon = Victim(tmp_path, config="", mode=containment, crash_at="spawned+1")
    try:
        with daemon.client() as client:
            client.be_patient(PATIENCE)
            with pytest.raises(Unreachable):
                spawn(client, ["true"])
        wait_until(lambda: daemon.fallen, "the daemon is dead")
        if what == "power cut":
            other_boot(daemon.state_dir)
        else:
            with (daemon.state_dir / "spool" / "runs").open("ab") as file:
                file.write(b"damage" * 100)
        daemon.start_again()
        with daemon.client() as client:
            (run,) = all_runs(client)
            assert ended(client, run).status is Status.LOST
    finally:
        assert daemon.stop() == 0
