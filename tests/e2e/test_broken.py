"""Promises of SPEC section 10 that are broken."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest

from sfad.protocol import messages as m
from sfad.protocol.types import Status
from tests.conftest import Start
from tests.harness import PATIENCE, Daemon, ended, spawn, started, stopped, strays, wait_until

from .agents import info, limit, until_over, watched
from .test_recovery import MANY, alive, every, other_boot, printed, spooled, ticking


def goes_on(daemon: Daemon) -> None:
    """SIGUSR2, after which the daemon says why it was not executed anew, or has been."""
    before = daemon.log.read_text().count('"message":"serving"')
    daemon.process.send_signal(signal.SIGUSR2)

    def decided() -> bool:
        log = daemon.log.read_text()
        return daemon.process.poll() is not None or "was not executed anew" in log or log.count('"message":"serving"') > before

    wait_until(decided, "it has decided", seconds=60)


def test_runs_have_the_same_descriptor_limit_after_a_reexecution(daemon: Daemon) -> None:
    """A run's soft RLIMIT_NOFILE is what the daemon was started with; after SIGUSR2 it is the daemon's own, raised one."""
    with daemon.client() as client:
        def ask() -> str:
            run = ended(client, started(client, ["sh", "-c", "ulimit -Sn"]).id)
            return (daemon.state_dir / "output" / f"{run.id}.out").read_text().strip()
        before = ask()
        daemon.reexecute()
        assert ask() == before


@pytest.mark.parametrize("setting", ["[log]\nfile = '/nonexistent/log'\n", "[containment]\nmode = 'cgroup'\ncgroup_parent = '/nonexistent'\n"])
def test_a_config_that_only_a_start_finds_wrong(daemon: Daemon, setting: str) -> None:
    """SIGUSR2: a daemon that would not come back is not executed anew."""
    good = daemon.config.read_text()
    with daemon.client() as client:
        run = ticking(client)
    daemon.config.write_text(setting)
    try:
        goes_on(daemon)
        assert daemon.process.poll() is None, daemon.log.read_text()[-1000:]
    finally:
        daemon.config.write_text(good)
        if daemon.process.poll() is not None:
            daemon.restart()


def test_the_script_that_it_was_started_by_is_gone(start: Start, tmp_path: Path) -> None:
    """What is checked (python -m sfad) is not what is executed (sys.orig_argv)."""
    daemon = start()
    daemon.stop()
    script = tmp_path / "sfad-script"
    script.write_text("from sfad.__main__ import app\napp()\n")
    daemon.process = daemon._start(command=[sys.executable, str(script)])
    with daemon.client() as client:
        ticking(client)
    script.unlink()
    try:
        goes_on(daemon)
        assert daemon.process.poll() is None, daemon.log.read_text()[-1000:]
    finally:
        if daemon.process.poll() is not None:
            daemon.restart()


@pytest.mark.parametrize("begin", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_a_locked_ledger_at_sigusr2(daemon: Daemon, begin: str) -> None:
    """Somebody holds the ledger's lock: the daemon would go on, but the one that it becomes gives up after 15 s."""
    with daemon.client() as client:
        run = ticking(client)
        ended(client, started(client, ["true"]).id)
        with closing(sqlite3.connect(daemon.state_dir / "ledger.db", isolation_level=None)) as outsider:
            outsider.execute(begin)
            goes_on(daemon)
            code = daemon.process.poll()
            outsider.execute("ROLLBACK")
    if code is not None:
        daemon.restart()
    assert code is None, daemon.log.read_text()[-1000:]


def test_two_requests_with_the_same_key_in_flight_are_both_answered(daemon: Daemon) -> None:
    """The second takes the first one's answer away, for ever."""
    with daemon.client() as client, daemon.client() as other:
        def request(c):
            return m.Spawn(id=c.next_id(), argv=[b"sleep", b"60"], cwd=b"/", env=[b"PATH=/bin:/usr/bin"], key="k")
        ids = [client.send(request(client)) for _ in range(2)]
        client.be_patient(5)
        got = set()
        while got != set(ids):
            got |= {answer.reply.id for answer in client.arrived()}


def test_a_watcher_is_told_of_an_end_during_the_exec(daemon: Daemon, tmp_path: Path) -> None:
    """A run ends while the daemon is in execve(2): its watcher never gets run_completed."""
    go = tmp_path / "go"
    os.mkfifo(go)
    with daemon.client() as client:
        run, _ = watched(client, ["sh", "-c", f"read x < {go}"], meter=None)
        wait_until(lambda: info(client, run.id).status is Status.RUNNING, "runs")
        daemon.process.send_signal(signal.SIGUSR2)
        wait_until(lambda: b"SFAD_HANDOVER" in Path(f"/proc/{daemon.pid}/environ").read_bytes(), "exec")
        daemon.process.send_signal(signal.SIGSTOP)
        go.write_text("now\n")
        wait_until(lambda: not alive(run.pid), "ended")
        daemon.process.send_signal(signal.SIGCONT)
        done, events = until_over(client, run.id)
        assert done.status is Status.COMPLETED
        assert "run_completed" in {event.type for event in events}, events


def test_a_spool_from_before_a_power_cut_starts_nothing_a_second_time(start: Start, tmp_path: Path) -> None:
    """The spool is not synced: after a power cut it may show a run as queued that the ledger shows as started."""
    daemon = start(config="[quotas]\ntrees_per_user = 1")
    count = tmp_path / "count"
    with daemon.client() as client:
        first = ticking(client)
        waiting = started(client, ["sh", "-c", f"echo once >> {count}; sleep 300"])
        spool = daemon.state_dir / "spool"
        shutil.copytree(spool, tmp_path / "older")
        stopped(client, first.id)
        ended(client, first.id)
        wait_until(lambda: info(client, waiting.id).status is Status.RUNNING, "it runs")
        wait_until(lambda: count.exists(), "it has begun")
        with closing(sqlite3.connect(daemon.state_dir / "ledger.db")) as ledger:
            wait_until(lambda: ledger.execute("SELECT status FROM runs WHERE id = ?", (waiting.id,)).fetchone() == ("running",), "recorded")
    daemon.kill()
    for stray in strays(daemon.instance):
        stray.kill()
    wait_until(lambda: not strays(daemon.instance), "gone")
    shutil.rmtree(spool)
    shutil.copytree(tmp_path / "older", spool)
    other_boot(spool / "runs", Path("/proc/sys/kernel/random/boot_id").read_text().strip().encode())
    daemon.restart()
    with daemon.client() as client:
        time.sleep(1)
        assert info(client, waiting.id).status is Status.LOST
    assert count.read_text() == "once\n"


def test_secrets_of_a_run_that_never_was_do_not_stay(start: Start) -> None:
    """Killed between the spawn file and the journal: nobody removes the environment."""
    daemon = start()
    daemon.stop()
    daemon.restart(SFAD_CRASH_AT="spawn kept+1")
    with daemon.client() as client, suppress(Exception):
        spawn(client, ["true"], attempts=2)
    daemon.process.wait()
    assert len(spooled(daemon)) == 1
    daemon.restart()
    assert spooled(daemon) == []


@pytest.mark.parametrize("change", ["mode = 'tags'", "cgroup_parent = '{}'"])
def test_a_changed_containment_leaves_nothing_unmanaged(start: Start, change: str) -> None:
    """A process of a run that cleared its environment is in its cgroup, whatever the config says at the next start."""
    daemon = start(mode="cgroup")
    with daemon.client() as client:
        status = client.call(m.DaemonInfo(id=client.next_id()), m.DaemonStatus)
        run = started(client, ["sh", "-c", "env -i setsid sleep 4242 & echo $!; sleep 300"])
        wait_until(lambda: printed(daemon, run.id), "child")
        wait_until(lambda: [p for p in psutil.process_iter() if p.info if False] or True, "")
    child = next(p for p in psutil.Process(run.pid).children(recursive=True) if "4242" in p.cmdline())
    daemon.kill()
    parent = Path(status.containment_detail).parent / "broken-test"
    parent.mkdir()
    try:
        good = daemon.config.read_text()
        daemon.config.write_text("[containment]\n" + change.format(parent) + "\n")
        daemon.restart()
        with daemon.client() as client:
            status = client.call(m.DaemonInfo(id=client.next_id()), m.DaemonStatus)
            print(status.containment, status.containment_detail)
            stopped(client, run.id)
        assert not alive(child.pid)
        daemon.stop()
        daemon.config.write_text(good)
    finally:
        with suppress(psutil.Error):
            child.kill()
        with suppress(OSError):
            parent.rmdir()


def test_a_state_directory_that_was_moved(start: Start, containment: str, tmp_path: Path) -> None:
    """Runs are named after its path: those of a moved one are given up for lost and live on unmanaged."""
    daemon = start(mode=containment)
    with daemon.client() as client:
        run = ticking(client)
    daemon.kill()
    old = daemon.instance
    moved = daemon.directory / "moved"
    daemon.state_dir.rename(moved)
    daemon.state_dir = moved
    daemon.restart()
    try:
        with daemon.client() as client:
            now = info(client, run.id)
            assert not (now.status.terminal and alive(run.pid)), now
    finally:
        for stray in strays(old):
            stray.kill()


def test_the_last_who_ties_keeps_it_over_a_reexecution(daemon: Daemon) -> None:
    """A wait that ties is carried out again after SIGUSR2, and takes the run from who has tied it since."""
    with daemon.client() as late, daemon.client() as early, daemon.client() as client:
        run = ticking(client)
        early.send(m.Wait(id=early.next_id(), run=run.id, tie=True))
        early.call(m.DaemonInfo(id=early.next_id()), m.DaemonStatus)
        late.send(m.Wait(id=late.next_id(), run=run.id, tie=True))
        late.call(m.DaemonInfo(id=late.next_id()), m.DaemonStatus)
        daemon.reexecute()
        early.close()
        client.call(m.DaemonInfo(id=client.next_id()), m.DaemonStatus)
        assert info(client, run.id).status is Status.RUNNING
        stopped(client, run.id)


def test_the_working_directory_is_gone(start: Start, tmp_path: Path) -> None:
    """SIGUSR2 in a removed directory."""
    daemon = start()
    daemon.stop()
    here = os.getcwd()
    there = tmp_path / "there"
    there.mkdir()
    os.chdir(there)
    try:
        daemon.restart()
    finally:
        os.chdir(here)
    with daemon.client() as client:
        run = ticking(client)
        there.rmdir()
        goes_on(daemon)
        assert info(client, run.id).pid == run.pid
        stopped(client, run.id)
