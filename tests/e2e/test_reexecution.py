"""A daemon that re-executes itself, in place: no client and no run notices."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from sfad.protocol import messages as m
from sfad.protocol.types import Status
from tests.conftest import Start
from tests.harness import Daemon, ended, started, stopped, wait_until
from tests.tiers import variant

from .agents import info, limit, turns, until_over, watched
from .test_recovery import MANY, every, printed, ticking


@pytest.mark.rest("keeps a processor busy for seconds")
def test_reexecution_under_load_loses_neither_a_status_nor_a_line(start: Start) -> None:
    daemon = start(config=MANY)
    with daemon.client() as client:
        long = [
            started(client, ["sh", "-c", "i=0; while :; do echo $i; i=$((i+1)); sleep 0.5; done"])
            for _ in range(90)
        ]
        coded = [
            started(
                client, ["sh", "-c", f"sleep {1 + n / 10}; echo bye; exit {n + 1}"], name=f"c{n}"
            )
            for n in range(20)
        ]
    pid = daemon.pid
    clients = [daemon.client() for _ in range(20)]
    asked = [
        one.send(m.Wait(id=one.next_id(), run=run.id))
        for one, run in zip(clients, coded, strict=True)
    ]
    daemon.reexecute()
    codes = [
        one.answer(number, m.RunReply)[0].run.exit_code
        for one, number in zip(clients, asked, strict=True)
    ]
    assert codes == list(range(1, 21))
    assert daemon.pid == pid
    daemon.reexecute()
    with daemon.client() as client:
        runs = {run.id: run for run in every(client)}
        assert all(
            runs[run.id].status is Status.RUNNING and runs[run.id].pid == run.pid for run in long
        )
        stopped(client, everything=True)
        assert {ended(client, run.id).status for run in long} == {Status.CANCELLED}
    for run in long:
        numbers = printed(daemon, run.id)
        assert numbers == list(range(len(numbers)))
    assert all(daemon.output(run.id) == "bye\n" for run in coded)
    for one in clients:
        one.close()


def test_connections_and_what_they_wait_for_outlive_a_reexecution(start: Start) -> None:
    daemon = start(config="[stop]\ngrace = 1\n[quotas]\ntrees_per_user = 4")
    with daemon.client() as client, daemon.client() as other:
        run, watch = watched(client, turns(2, then="time.sleep(60)"), limit("turns", 50))
        stubborn = started(
            client, ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"]
        )
        wait_until(lambda: daemon.output(stubborn.id), "the trap is set")
        tied = ticking(client, tied=True)
        stop = other.send(m.Stop(id=other.next_id(), runs=[stubborn.id]))
        wait_until(
            lambda: info(client, stubborn.id).status is Status.STOPPING, "it is being stopped"
        )
        part = m.pack_message(m.Info(id=99, run=run.id))
        os.write(client.fileno(), part[:7])
        daemon.reexecute()
        assert other.answer(stop, m.Stopped)[0].stopped == [stubborn.id]
        os.write(client.fileno(), part[7:])
        assert client.answer(99, m.RunReply)[0].run.id == run.id
        assert info(client, tied.id).status is Status.RUNNING
        other.call(m.Stop(id=other.next_id(), runs=[run.id]), m.Stopped)
        _, events = until_over(client, run.id)
        assert "run_cancelled" in {event.type for event in events}
        assert watch
    with daemon.client() as client:
        assert ended(client, tied.id).status is Status.CANCELLED


def test_stdin_outlives_a_reexecution_and_ends_with_a_crash(start: Start) -> None:
    daemon = start()
    with daemon.client() as client:
        run = started(client, ["cat"], stdin="pipe")
        client.call(m.Send(id=client.next_id(), run=run.id, data=b"one\n"), m.Done)
        daemon.reexecute()
        client.call(m.Send(id=client.next_id(), run=run.id, data=b"two\n"), m.Done)
        output = daemon.state_dir / "output" / f"{run.id}.out"
        wait_until(lambda: output.read_text() == "one\ntwo\n", "both arrive")
    daemon.kill()
    daemon.restart()
    with daemon.client() as client:
        assert ended(client, run.id).status in {Status.LOST, Status.COMPLETED}


def test_a_daemon_whose_next_start_would_fail_is_not_reexecuted(daemon: Daemon) -> None:
    with daemon.client() as client:
        run = ticking(client)
        good = daemon.config.read_text()
        daemon.config.write_text("nonsense")
        daemon.process.send_signal(signal.SIGUSR2)
        wait_until(lambda: "was not re-executed" in daemon.log.read_text(), "it says why not")
        assert "not TOML" in daemon.log.read_text()
        assert info(client, run.id).status is Status.RUNNING
        daemon.config.write_text(good)
        daemon.reexecute()
        assert info(client, run.id).pid == run.pid


@variant
def test_a_ledger_newer_than_the_installed_version_does_not_end_the_daemon(daemon: Daemon) -> None:
    with daemon.client() as client:
        run = ticking(client)
        with closing(
            sqlite3.connect(daemon.state_dir / "ledger.db", isolation_level=None)
        ) as ledger:
            known = ledger.execute("PRAGMA user_version").fetchone()[0]
            ledger.execute("PRAGMA user_version = 99")
            daemon.process.send_signal(signal.SIGUSR2)
            wait_until(lambda: "was not re-executed" in daemon.log.read_text(), "it says why not")
            ledger.execute(f"PRAGMA user_version = {known}")
        assert info(client, run.id).status is Status.RUNNING
        stopped(client, run.id)


@pytest.mark.rest("keeps a processor busy for seconds")
def test_nothing_leaks_over_many_reexecutions(daemon: Daemon) -> None:
    with daemon.client() as client:
        ticking(client)
        daemon.reexecute()
        before, times = daemon.descriptors(), 6
        for _ in range(times):
            daemon.reexecute()
        # threads open and close their connections to the ledger meanwhile, which are three at most
        assert daemon.descriptors() - before <= times // 2


@variant
def test_a_reexecution_ignores_a_package_in_the_working_directory(
    start: Start, tmp_path: Path
) -> None:
    daemon = start()
    daemon.stop()
    project = tmp_path / "project"
    project.mkdir()
    daemon.restart(
        command=["sh", "-c", 'cd "$0" && exec "$@"', str(project), sys.executable, "-m", "sfad"]
    )
    planted = "import pathlib\npathlib.Path(__file__).with_name('executed').touch()\n"
    with daemon.client() as client:
        script = 'mkdir sfad && touch sfad/__init__.py && printf %s "$0" > sfad/__main__.py'
        ended(client, started(client, ["sh", "-c", script, planted], cwd=bytes(project)).id)
    daemon.reexecute()
    assert (project / "sfad" / "__main__.py").read_text() == planted
    assert not (project / "sfad" / "executed").exists()
