"""When the machine runs short of something or another process interferes, the error is clear, no
run is lost, and it passes."""

from __future__ import annotations

import os
import resource
import select
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from sfactl.connecting.connection import Client
from sfad.protocol import messages as m
from sfad.protocol.types import ErrorCode, Status
from tests.conftest import Start
from tests.harness import (
    PATIENCE,
    Daemon,
    alive,
    ended,
    running,
    spawn,
    started,
    stopped,
    unanswered,
    wait_until,
    with_fuse,
)
from tests.template import run_forked
from tests.tiers import first, variant

from .agents import info, limit, until_event, watched

ROOM = 16 * 1024 * 1024
"""Bytes of the disk that a test fills."""


@contextmanager
def disk(directory: Path) -> Iterator[Path]:
    """Mount a small file system at `directory`/state."""
    if os.geteuid():
        pytest.skip("mounting a tmpfs takes root")
    state = directory / "state"
    state.mkdir(parents=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={ROOM},mode=0700", "sfad-test", state], check=True
    )
    try:
        yield state
    finally:
        subprocess.run(["umount", "--lazy", state], check=True)


@pytest.fixture
def cramped(tmp_path: Path) -> Iterator[Daemon]:
    """Start a daemon on a small disk."""
    directory = tmp_path / "cramped"
    with (
        disk(directory),
        running(directory, config="[quotas]\nspawns_per_hour = 100000\n") as daemon,
    ):
        yield daemon


def fill(state: Path) -> Path:
    """Write until no byte is free. Return the file."""
    filler = state / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                continue
    return filler


def refused(client: Client) -> m.Error:
    """Request a run that the daemon must refuse as unavailable. Return the error."""
    reply = spawn(client, ["true"])
    assert isinstance(reply, m.Error), reply
    assert reply.code is ErrorCode.UNAVAILABLE
    return reply


def test_a_full_disk_refuses_starts_and_keeps_what_runs(cramped: Daemon) -> None:
    with cramped.client() as client, cramped.client() as watcher:
        held = started(client, ["sh", "-c", "sleep 0.5; exit 7"])
        long, _ = watched(watcher, ["sleep", "60"], meter=None)
        filler = fill(cramped.state_dir)
        exhaust(client)
        assert until_event(watcher, "alert_disk_full").run_id == long.id
        said = refused(client)
        assert "disk is full" in said.message or "No space left" in said.message
        assert cramped.sfactl("spawn", "--", "true").returncode == 75
        done = ended(client, held.id)
        assert (done.status, done.exit_code) == (Status.FAILED, 7)
        assert info(client, long.id).status is Status.RUNNING
        filler.unlink()
        wait_until(lambda: isinstance(spawn(client, ["true"]), m.RunReply), "it takes runs again")
        stopped(client, long.id)
        ended(client, long.id)
    with closing(sqlite3.connect(cramped.state_dir / "ledger.db")) as ledger:
        wait_until(
            lambda: (
                ledger.execute("SELECT exit_code FROM runs WHERE id = ?", (held.id,)).fetchone()
                == (7,)
            ),
            "the end is on record",
        )


@variant
def test_a_ledger_that_is_locked_at_a_start_does_not_prevent_adoption(start: Start) -> None:
    """No agent is left unmanaged while an operator's shell has an open transaction when the daemon
    dies."""
    daemon = start(config="[quotas]\nspawns_per_hour = 100000")
    with daemon.client() as client:
        run = started(client, ["sleep", "300"])
        late = started(client, ["sleep", "300"], limits=[limit("time", 1)])
    daemon.kill()
    with closing(sqlite3.connect(daemon.state_dir / "ledger.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        daemon.restart()
        with daemon.client() as client:
            assert (info(client, run.id).pid, info(client, run.id).status) == (
                run.pid,
                Status.RUNNING,
            )
            wait_until(lambda: not alive(late.pid), "its deadline is kept")
            assert "locked" in refused(client).message
            assert stopped(client, run.id).survivors == []
            other.execute("ROLLBACK")
            wait_until(
                lambda: isinstance(spawn(client, ["true"]), m.RunReply), "it takes runs again"
            )
            ends = {one: info(client, one).status for one in (run.id, late.id)}
    assert daemon.stop() == 0
    with closing(sqlite3.connect(daemon.state_dir / "ledger.db")) as ledger:
        on_record = dict(
            ledger.execute("SELECT id, status FROM runs WHERE id IN (?, ?)", tuple(ends))
        )
    assert on_record == ends == {run.id: Status.CANCELLED, late.id: Status.TIMEOUT}


def exhaust(client: Client) -> None:
    """Request runs until one cannot be saved: the daemon uses up what it has allocated first."""
    wait_until(lambda: isinstance(spawn(client, ["true"]), m.Error), "the disk is full")


@variant
def test_a_crash_on_a_full_disk_loses_no_run(cramped: Daemon) -> None:
    with cramped.client() as client:
        run = started(client, ["sleep", "60"])
        gone = started(client, ["sh", "-c", "sleep 0.3; exit 7"])
        filler = fill(cramped.state_dir)
        exhaust(client)
        ended(client, gone.id)
    cramped.kill()
    cramped.restart()
    with cramped.client() as client:
        assert info(client, run.id).pid == run.pid
        assert (info(client, gone.id).status, info(client, gone.id).exit_code) == (Status.FAILED, 7)
        filler.unlink()
        stopped(client, run.id)


def test_a_run_loses_only_its_output_when_the_disk_is_full(cramped: Daemon) -> None:
    with cramped.client() as client:
        script = f"head -c {2 * ROOM} /dev/zero | tr '\\\\0' x; echo $? >&2; exit 3"
        done = ended(client, started(client, ["sh", "-c", script]).id)
        assert done.exit_code == 3
        assert (cramped.state_dir / "output" / f"{done.id}.out").stat().st_size > ROOM // 4
        (cramped.state_dir / "output" / f"{done.id}.out").unlink()
        wait_until(lambda: isinstance(spawn(client, ["true"]), m.RunReply), "it takes runs again")


@contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """Mount the directory over itself, read-only: a file system with files that are open for
    writing cannot become so."""
    if os.geteuid():
        pytest.skip("mounting takes root")
    subprocess.run(["mount", "--bind", directory, directory], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", directory], check=True)
        yield
    finally:
        subprocess.run(["umount", directory], check=True)


def test_a_state_directory_that_becomes_read_only(daemon: Daemon) -> None:
    with daemon.client() as client:
        run = started(client, ["sleep", "60"])
        with read_only(daemon.state_dir / "output"):
            failed = ended(client, started(client, ["true"]).id)
            assert failed.status is Status.FAILED
            assert failed.reason is not None
            assert "Read-only file system" in failed.reason.message
            assert info(client, run.id).status is Status.RUNNING
        with read_only(daemon.state_dir / "spool"):
            said = spawn(client, ["true"], attempts=2)
            assert isinstance(said, m.Error)
            assert said.code is ErrorCode.UNAVAILABLE
            assert "Read-only file system" in said.message
        assert ended(client, started(client, ["true"], attempts=2).id).exit_code == 0
        stopped(client, run.id)


def test_a_read_only_state_directory_is_reported_at_the_start(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    with disk(directory) as state:
        subprocess.run(["mount", "-o", "remount,bind,ro", state], check=True)
        words = ["serve", "--socket", str(tmp_path / "s"), "--state-dir", str(state)]
        found = run_forked("sfad", words, os.environ, timeout=PATIENCE)
    assert found.returncode == 69
    assert str(state) in found.stderr
    assert "Read-only file system" in found.stderr
    assert "Traceback" not in found.stderr


def test_a_ledger_that_another_process_locks_for_seconds(daemon: Daemon) -> None:
    with daemon.client() as client:
        run = started(client, ["sh", "-c", "sleep 1; exit 7"])
        with closing(
            sqlite3.connect(daemon.state_dir / "ledger.db", isolation_level=None)
        ) as other:
            other.execute("BEGIN IMMEDIATE")
            assert "locked; end what else holds the ledger open" in refused(client).message
            assert "locked" in daemon.sfactl("status").stdout
            assert "BAD    ledger: it cannot be written" in daemon.sfactl("doctor").stdout
            done = ended(client, run.id)
            assert done.exit_code == 7
            with daemon.client() as asking:
                number = asking.send(m.Spawn(id=0, argv=[b"true"], cwd=b"/", env=[]))
                # while the daemon waits for the ledger a second time, it answers
                while not select.select([asking], [], [], 0.05)[0]:
                    assert info(client, run.id).exit_code == 7
                (answer,) = asking.arrived()
                assert (answer.reply.id, isinstance(answer.reply, m.Error)) == (number, True)
            other.execute("ROLLBACK")
        wait_until(lambda: isinstance(spawn(client, ["true"]), m.RunReply), "it takes runs again")
        assert "LEDGER" not in daemon.sfactl("status").stdout
    with closing(sqlite3.connect(daemon.state_dir / "ledger.db")) as ledger:
        wait_until(
            lambda: (
                ledger.execute("SELECT exit_code FROM runs WHERE id = ?", (run.id,)).fetchone()
                == (7,)
            ),
            "the end is on record",
        )


def test_no_descriptors_left(daemon: Daemon) -> None:
    with daemon.client() as client, daemon.client() as other:
        run = started(client, ["sleep", "60"])
        soft, hard = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)

        def refused_for_descriptors() -> m.Error | None:
            # the daemon may still close what an earlier request had opened
            resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (daemon.descriptors(), hard))
            reply = spawn(client, ["true"])
            return reply if isinstance(reply, m.Error) else None

        try:
            refusal = wait_until(refused_for_descriptors, "it has no descriptor left for a run")
            assert refusal.code is ErrorCode.UNAVAILABLE
            assert "descriptors are left" in refusal.message
            assert info(other, run.id).status is Status.RUNNING
            # with those that are kept back for it
            assert stopped(other, run.id, grace=0).stopped == [run.id]
        finally:
            resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (soft, hard))
        assert ended(client, started(client, ["true"]).id).exit_code == 0


@with_fuse
def test_runs_on_a_mount_that_does_not_answer(start: Start, tmp_path: Path) -> None:
    daemon = start(config="[stop]\ngrace = 0.5")
    mount = tmp_path / "mount"

    def starting() -> list[str]:
        with daemon.client() as client:
            return [
                run.id
                for run in client.call(m.List(id=client.next_id()), m.RunList).runs
                if run.status is Status.STARTING
            ]

    with unanswered(mount):
        late = daemon.sfactl("run", "--timeout", "1", "--cwd", str(mount), "--", "true")
        assert late.returncode == 3
        assert "its command was not executed within 1 s" in late.stderr
        spawned = daemon.sfactl("spawn", "--timeout", "1", "--cwd", str(mount), "--", "true")
        assert (spawned.returncode, spawned.stdout) == (3, "a2\n")
        assert "a2 ended as timeout: its command was not executed within 1 s" in spawned.stderr
        words = [sys.executable, "-m", "sfactl", "run", "--cwd", str(mount), "--", "true"]
        with subprocess.Popen(words, env=daemon.env, stderr=subprocess.DEVNULL) as told:
            (third,) = wait_until(starting, "it is being started")
            told.send_signal(signal.SIGTERM)
            assert told.wait(PATIENCE) == 143
        with daemon.client() as client:
            asked = m.Spawn(id=client.next_id(), argv=[b"true"], cwd=os.fsencode(mount), env=[])
            client.send(asked)
            (stuck,) = wait_until(starting, "it is being started")
            assert ended(client, started(client, ["true"]).id).status is Status.COMPLETED
        daemon.kill()
        daemon.restart()
        with daemon.client() as client:
            assert ended(client, stuck).status is Status.LOST
            ends = {
                run.id: run.status
                for run in client.call(m.List(id=client.next_id()), m.RunList).runs
            }
    assert [ends[run] for run in ("a1", "a2", third)] == [
        Status.TIMEOUT,
        Status.TIMEOUT,
        Status.CANCELLED,
    ]


CLOCKED = """\
import datetime, sys
from pathlib import Path
from sfad.host import clock
shift = Path(sys.argv.pop(1))
now = clock.wall_clock
clock.wall_clock = lambda: now() + datetime.timedelta(seconds=float(shift.read_text() or 0))
from sfad.__main__ import main
sys.argv[0] = "sfad"
main()
"""
"""`sfad` with a wall clock that the test sets."""


def test_a_clock_that_is_set_back_and_forth_ends_nothing_and_loses_no_order(
    start: Start, tmp_path: Path
) -> None:
    daemon = start()
    daemon.stop()
    shift, program = tmp_path / "shift", tmp_path / "clocked.py"
    shift.write_text("0")
    program.write_text(CLOCKED)
    daemon.restart(command=[sys.executable, str(program), str(shift)])
    with daemon.client() as client:
        run = started(client, ["sleep", "60"], limits=[limit("time", 100)])
        seen = []
        for seconds in (86400 * 365, -86400 * 365, 0):
            shift.write_text(str(seconds))
            seen.append(ended(client, started(client, ["true"]).id))
            assert info(client, run.id).status is Status.RUNNING
        assert [one.status for one in seen] == [Status.COMPLETED] * 3
        assert [one.id for one in seen] == sorted(one.id for one in seen)
        assert seen[0].created_at > datetime.now(UTC) > seen[1].created_at
        listed = client.call(m.List(id=client.next_id()), m.RunList).runs
        assert [one.id for one in listed] == [run.id, *(one.id for one in seen)]
        shift.write_text(str(86400 * 365))
        daemon.kill()
        daemon.restart(command=[sys.executable, str(program), str(shift)])
    with daemon.client() as client:
        assert info(client, run.id).status is Status.RUNNING
        stopped(client, run.id)


@pytest.mark.rest("at scale")
def test_a_storm_of_children_and_a_thousand_zombies_of_unknown_parentage(daemon: Daemon) -> None:
    storm = (
        "import os\nfor _ in range(1000):\n    if os.fork() == 0:\n        os.fork()\n "
        "       os._exit(0)\n"
    )
    with daemon.client() as client:
        # the orphans of its children become children of the daemon, which has not started them
        run = started(client, [sys.executable, "-c", storm + "import time; time.sleep(60)"])
        mother = psutil.Process(daemon.pid)
        wait_until(lambda: len(psutil.Process(run.pid).children()) >= 1000, "a thousand zombies")
        stopped(client, run.id)
        wait_until(lambda: not mother.children(), "all of them are reaped")
        assert ended(client, started(client, ["sh", "-c", "exit 5"]).id).exit_code == 5


def test_the_cgroups_are_removed_under_the_daemon(start: Start) -> None:
    daemon = start(mode="auto")
    with daemon.client() as client:
        status = client.call(m.DaemonInfo(id=client.next_id()), m.DaemonStatus)
        if status.containment != "cgroup":
            pytest.skip("no cgroups here")
        ended(client, started(client, ["true"]).id)
        base = Path(status.containment_detail)
        wait_until(
            lambda: not [each for each in base.iterdir() if each.is_dir()],
            "the run's cgroup is gone",
        )
        base.rmdir()
        assert ended(client, started(client, ["sh", "-c", "exit 4"]).id).exit_code == 4


@variant
def test_a_burst_of_signals_to_the_daemon_itself(daemon: Daemon) -> None:
    with daemon.client() as client:
        run = started(client, ["sleep", "60"])

        def pelt() -> None:
            for _ in range(300):
                os.kill(daemon.pid, signal.SIGCHLD)
                os.kill(daemon.pid, signal.SIGHUP)

        thread = threading.Thread(target=pelt)
        thread.start()
        codes = [
            ended(client, started(client, ["sh", "-c", f"exit {n}"], name=f"n{n}").id).exit_code
            for n in range(20)
        ]
        thread.join()
        assert codes == list(range(20))
        assert info(client, run.id).status is Status.RUNNING
        stopped(client, run.id)


NO_INODES = "has no inodes left (df -i): delete files there"


@first(1)
@pytest.mark.parametrize("inodes", [2, 4, 8])
def test_a_daemon_without_inodes_says_what_is_used_up(tmp_path: Path, inodes: int) -> None:
    with disk(tmp_path) as state:
        subprocess.run(["mount", "-o", f"remount,nr_inodes={inodes}", state], check=True)
        words = ["serve", "--socket", str(tmp_path / "s"), "--state-dir", str(state)]
        found = run_forked("sfad", words, os.environ, timeout=PATIENCE)
        assert (found.returncode, NO_INODES in found.stderr) == (69, True), found.stderr
        assert "Traceback" not in found.stderr


@variant
def test_runs_without_inodes_say_what_is_used_up_and_start_again(tmp_path: Path) -> None:
    with disk(tmp_path) as state, running(tmp_path) as daemon:
        for name in range(100_000):
            if not os.statvfs(state).f_favail:
                break
            if name == 0:
                subprocess.run(["mount", "-o", "remount,nr_inodes=100", state], check=True)
            (state / f"file {name}").touch()
        done = daemon.sfactl("run", "-q", "--", "true")
        assert (done.returncode, NO_INODES in done.stderr) == (75, True), done.stderr
        assert NO_INODES in daemon.sfactl("run", "-q", "--gateway", "--", "true").stderr
        report = daemon.sfactl("doctor").stdout
        assert "BAD    state directory" in report
        assert "no inodes (df -i)" in report
        for file in state.glob("file *"):
            file.unlink()
        assert daemon.sfactl("run", "-q", "--", "true").returncode == 0
