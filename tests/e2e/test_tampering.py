"""An agent has the daemon's uid and reaches its files. What it does to them costs no live run and
is told (docs/durability.md)."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import pytest

from sfad.core.state.run import run_id, run_number
from sfad.protocol import messages as m
from sfad.protocol.types import Status
from tests.conftest import Start
from tests.harness import IMPATIENT, Daemon, ended, spawn, started, stopped, wait_until
from tests.tiers import first, variant

from .agents import info, limit

Attack = Callable[[Path], None]


def directory(path: Path) -> None:
    while not path.is_dir():  # the daemon may be faster, and write its file again
        path.unlink(missing_ok=True)
        with suppress(FileExistsError):
            path.mkdir()


def fifo(path: Path) -> None:
    os.mkfifo(path.with_name("fifo"))
    path.with_name("fifo").replace(path)


def link_to_directory(path: Path) -> Path:
    elsewhere = path.parent.with_name("elsewhere")
    elsewhere.mkdir()
    while not path.is_symlink():
        shutil.rmtree(path)
        with suppress(FileExistsError):
            path.symlink_to(elsewhere)
    return elsewhere


def symlink(path: Path) -> None:
    path.unlink()
    path.symlink_to(decoy(path))


def decoy(path: Path) -> Path:
    """A file that no daemon may touch, outside of the state directory."""
    state = next(parent for parent in path.parents if parent.name == "state")
    found = state.with_name("decoy")
    found.touch()
    found.chmod(0o640)
    return found


def nothing(path: Path) -> None:
    path.unlink()


def other_file(path: Path) -> None:
    path.with_name("other").write_bytes(b"forged\n")
    path.with_name("other").replace(path)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def dropped(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.executescript("DROP TABLE runs; DROP TABLE events;")


def of_another_program(path: Path) -> None:
    nothing(path)
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE theirs (x)")


def unreadable(path: Path) -> None:
    path.chmod(0)


def by_name(attack: Attack) -> str:
    return attack.__name__


@first(2)
@pytest.mark.parametrize("attack", [directory, fifo, symlink, nothing, other_file], ids=by_name)
def test_a_replaced_output_file_is_not_shown(common: Daemon, attack: Attack) -> None:
    daemon = common
    with daemon.client() as client:
        live = started(client, ["sh", "-c", "echo secret; exec sleep 60"])
        over = ended(client, started(client, ["echo", "secret"]).id)
        for run in (live, over):
            out = daemon.state_dir / "output" / f"{run.id}.out"
            wait_until(partial(os.path.getsize, out), "it has written")
            attack(out)
            for verb in ("logs", "result"):
                said = daemon.sfactl(verb, run.id)
                assert (said.returncode, said.stdout) == (1, ""), said
                if verb == "result" and run is live:
                    assert f"run {run.id} is running" in said.stderr
                elif attack is nothing and run is over:
                    assert f"the output of run {run.id} is not there" in said.stderr
                else:
                    assert (
                        f"{run.id}.out is not the file that the daemon made for run "
                        f"{run.id}: another process"
                    ) in said.stderr
        # planted for the runs to come
        following = run_number(over.id) + 1
        (daemon.state_dir / "output" / f"{run_id(following)}.out").mkdir()
        os.mkfifo(daemon.state_dir / "output" / f"{run_id(following + 1)}.out")
        for _ in range(2):
            assert ended(client, started(client, ["true"]).id).status is Status.COMPLETED
        stopped(client, live.id)


def test_an_output_directory_that_was_removed_is_made_again(start: Start) -> None:
    daemon = start(program=IMPATIENT)
    output = daemon.state_dir / "output"
    with daemon.client() as client:
        live = started(client, ["sh", "-c", "echo secret; exec sleep 60"])
        wait_until((output / f"{live.id}.out").exists, "it has written")
        for where in (None, output.with_name("moved")):
            shutil.rmtree(output) if where is None else output.rename(where)
            wait_until(output.is_dir, "it is made again, without a run that needs it")
            done = daemon.sfactl("run", "--", "echo", "hello")
            assert (done.returncode, done.stdout) == (0, "hello\n"), done
        elsewhere = link_to_directory(output)
        assert daemon.sfactl("run", "--", "echo", "hello").stdout == "hello\n"
        assert (output.is_symlink(), list(elsewhere.iterdir())) == (False, [])
        assert (
            "was removed or replaced by another process; it was made again"
            in daemon.log.read_text()
        )
        growing = started(
            client,
            ["sh", "-c", "while :; do echo xxxxxxxxxxxxxxxx; done"],
            limits=[limit("output", 1 << 20)],
        )
        path = output / f"{growing.id}.out"
        wait_until(lambda: path.stat().st_size > 4 << 20, "it writes")
        wait_until(
            lambda: path.stat().st_blocks * 512 < path.stat().st_size / 2,
            "it is bounded in the new directory",
        )
        stopped(client, growing.id, live.id, grace=0)


@first(2)
@pytest.mark.parametrize(
    "attack",
    [directory, fifo, symlink, nothing, empty, dropped, of_another_program, unreadable],
    ids=by_name,
)
def test_live_runs_are_adopted_in_whatever_state_the_ledger_is(
    start: Start, attack: Attack
) -> None:
    daemon = start()
    with daemon.client() as client:
        live = started(client, ["sleep", "60"])
        before = ended(client, started(client, ["sh", "-c", "exit 7"]).id)
    daemon.kill()
    attack(daemon.state_dir / "ledger.db")
    daemon.restart()
    with daemon.client() as client:
        assert (info(client, live.id).pid, info(client, live.id).status) == (
            live.pid,
            Status.RUNNING,
        )
        assert (info(client, before.id).status, info(client, before.id).exit_code) == (
            Status.FAILED,
            7,
        )
        new = started(client, ["true"])
        assert ended(client, new.id).status is Status.COMPLETED
        assert new.id > before.id
        stopped(client, live.id)
    said = daemon.log.read_text()
    aside = [
        *daemon.state_dir.glob("ledger.db.foreign-*"),
        *daemon.state_dir.glob("ledger.db.corrupt-*"),
    ]
    assert (bool(aside), "set aside" in said) == (attack is not unreadable,) * 2
    outside = decoy(daemon.state_dir / "ledger.db")
    assert (outside.read_bytes(), outside.stat().st_mode & 0o777) == (b"", 0o640)


@first(1)
@pytest.mark.parametrize("attack", [nothing, other_file, directory, fifo], ids=by_name)
def test_a_ledger_that_was_removed_is_put_back(start: Start, attack: Attack) -> None:
    daemon = start()
    with daemon.client() as client:
        before = ended(client, started(client, ["sh", "-c", "exit 6"]).id)
        live = started(client, ["sleep", "60"])
        for suffix in ("-wal", "-shm"):
            (daemon.state_dir / f"ledger.db{suffix}").unlink()
        attack(daemon.state_dir / "ledger.db")
        after = ended(client, started(client, ["sh", "-c", "exit 7"]).id)
        wait_until(lambda: "daemon_ledger_replaced" in daemon.log.read_text(), "it is said")
        assert client.call(m.DaemonInfo(id=client.next_id()), m.DaemonStatus).ledger_trouble is None
    shutil.rmtree(daemon.state_dir / "spool")  # what is on record now was recorded
    daemon.kill()
    with closing(sqlite3.connect(daemon.state_dir / "ledger.db")) as ledger:
        rows = dict(ledger.execute("SELECT id, exit_code FROM runs").fetchall())
    assert rows == {before.id: 6, live.id: None, after.id: 7}
    daemon.restart()
    with daemon.client() as client:
        assert ended(client, live.id).status is Status.LOST


def test_an_idle_daemon_puts_its_files_back(start: Start) -> None:
    daemon = start(program=IMPATIENT)
    with daemon.client() as client:
        over = ended(client, started(client, ["sh", "-c", "exit 7"]).id)
        live = started(client, ["sleep", "60"])
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
        (daemon.state_dir / name).unlink()
    shutil.rmtree(daemon.state_dir / "spool")
    wait_until((daemon.state_dir / "ledger.db").exists, "the ledger is put back")
    wait_until((daemon.state_dir / "spool" / "runs").exists, "the spool is written again")
    daemon.kill()
    daemon.restart()
    with daemon.client() as client:
        assert info(client, live.id).pid == live.pid
        assert info(client, over.id).exit_code == 7
        stopped(client, live.id)


@variant
def test_a_spool_that_was_replaced_by_a_link_is_written_again(start: Start) -> None:
    daemon = start(config="[quotas]\ntrees = 1\ntrees_per_user = 1\n")
    spool = daemon.state_dir / "spool"
    with daemon.client() as client:
        live = started(client, ["sleep", "60"])
        queued = spawn(client, ["sh", "-c", "exit 7"])
        assert isinstance(queued, m.RunReply)
        elsewhere = link_to_directory(spool)
        other = spawn(client, ["sh", "-c", "exit 8"])
        assert isinstance(other, m.RunReply)
        wait_until(
            (spool / f"{queued.run.id}.spawn").exists, "with what it takes to start what is queued"
        )
    assert (spool.is_symlink(), list(elsewhere.iterdir())) == (False, [])
    daemon.kill()
    daemon.restart()
    with daemon.client() as client:
        assert info(client, live.id).pid == live.pid
        stopped(client, live.id)
        assert [ended(client, run.run.id).exit_code for run in (queued, other)] == [7, 8]


def garbage(log: Path) -> None:
    content = log.read_bytes()
    log.write_bytes(content[:9000] + os.urandom(4096) + content[9000 + 4096 :])


def cut(log: Path) -> None:
    os.truncate(log, 32 + 4120 * 3)


def rubbish(log: Path) -> None:
    log.write_bytes(os.urandom(log.stat().st_size))


@first(1)
@pytest.mark.parametrize("attack", [garbage, cut, rubbish, nothing], ids=by_name)
def test_damage_to_the_log_of_the_ledger_loses_no_end(start: Start, attack: Attack) -> None:
    daemon = start(config="[quotas]\nspawns_per_hour = 100000")
    with daemon.client() as client:
        codes = {
            ended(client, started(client, ["sh", "-c", f"exit {n}"], name=f"n{n}").id).id: n
            for n in range(1, 21)
        }
        live = started(client, ["sleep", "60"])
    for _ in range(2):
        daemon.kill()
        attack(daemon.state_dir / "ledger.db-wal")
        daemon.restart()
        with daemon.client() as client:
            assert {run: info(client, run).exit_code for run in codes} == codes
            assert info(client, live.id).pid == live.pid
            codes[ended(client, started(client, ["sh", "-c", "exit 33"]).id).id] = 33
    with daemon.client() as client:
        stopped(client, live.id)


@variant
def test_a_fifo_in_place_of_any_file_delays_no_daemon(start: Start) -> None:
    daemon = start(config="[gateway]\nenabled = true")
    with daemon.client() as client:
        live = started(client, ["sleep", "60"])
        wait_until((daemon.state_dir / "gateway.calls").exists, "the gateway serves")
    daemon.kill()
    for name in (
        "lock",
        "config.kept",
        "gateway.json",
        "gateway.calls",
        "spool/runs.new",
        "backup",
        "ledger.db-journal",
    ):
        path = daemon.state_dir / name
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    daemon.restart()
    with daemon.client() as client:
        assert info(client, live.id).pid == live.pid
        assert "gateway.json cannot be read" in daemon.log.read_text()
        assert daemon.sfactl("doctor").returncode in (0, 1)
        assert ended(client, started(client, ["true"]).id).status is Status.COMPLETED
        stopped(client, live.id)


@variant
def test_a_file_in_place_of_output_while_no_daemon_runs(start: Start) -> None:
    """It may be any file of the machine: it is not shown, and nothing of it is freed, whatever the
    run may keep."""
    daemon = start()
    precious, size = daemon.directory / "precious", 4 << 20
    precious.write_bytes(b"x" * size)
    with daemon.client() as client:
        live = started(client, ["sleep", "60"], limits=[limit("output", 1 << 16)])
        other = started(client, ["sh", "-c", "echo secret; exec sleep 60"])
        wait_until(
            lambda: (daemon.state_dir / "output" / f"{other.id}.out").stat().st_size,
            "it has written",
        )
    daemon.kill()
    output = daemon.state_dir / "output"
    for suffix in (".out", ".err"):
        (output / f"{live.id}{suffix}").unlink()
        os.link(precious, output / f"{live.id}{suffix}")
    (output / f"{other.id}.err").rename(output / "moved")
    (output / f"{other.id}.out").rename(output / f"{other.id}.err")
    daemon.restart()
    with daemon.client() as client:
        wait_until(
            lambda: daemon.log.read_text().count("was taken away: it is not bounded any more") >= 2,
            "it is told",
        )
        for run in (live, other):
            said = daemon.sfactl("logs", run.id)
            assert (said.returncode, said.stdout) == (1, ""), said
        stopped(client, live.id, other.id)
    assert daemon.stop() == 0
    assert precious.stat().st_blocks * 512 >= size
    assert set(precious.read_bytes()) == {ord("x")}


@variant
def test_a_table_that_another_process_drops_is_no_internal_error(start: Start) -> None:
    daemon = start()
    with daemon.client() as client:
        live = started(client, ["sleep", "60"])
        with closing(sqlite3.connect(daemon.state_dir / "ledger.db")) as other:
            other.execute("DROP TABLE calls")
        client.send(m.Info(id=client.next_id(), run=live.id))
        said = daemon.sfactl("info", live.id)
        assert said.returncode == 75, said
        assert "no such table: calls" in said.stderr
    daemon.kill()
    daemon.restart()
    with daemon.client() as client:
        assert info(client, live.id).pid == live.pid
        stopped(client, live.id)


@pytest.mark.rest("at scale")
def test_thousands_of_foreign_files(start: Start) -> None:
    daemon = start()
    with daemon.client() as client:
        live = started(client, ["sleep", "60"])
        for place in (daemon.state_dir, daemon.state_dir / "output", daemon.state_dir / "spool"):
            for number in range(10_000):
                os.close(
                    os.open(
                        place / f"{run_id(1_000_000 + number)}.{'out' if number % 2 else 'spawn'}",
                        os.O_CREAT,
                    )
                )
        assert ended(client, started(client, ["true"]).id).status is Status.COMPLETED
    (daemon.state_dir / "output" / "zvvvvvvvvvvvvvvvvvvvvvvvvvv.out").touch()
    (daemon.state_dir / "ballast").unlink()
    os.mkfifo(daemon.state_dir / "ballast")
    (daemon.state_dir / "spool" / "runs.new").mkdir()
    (daemon.state_dir / "spool" / "a9.spawn.new").mkdir()
    daemon.kill()
    daemon.restart()
    with daemon.client() as client:
        assert info(client, live.id).pid == live.pid
        assert ended(client, started(client, ["true"]).id).status is Status.COMPLETED
        stopped(client, live.id)
