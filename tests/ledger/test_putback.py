"""Another process removes or replaces an open ledger: all of it is written again, and nothing is
lost."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from sfad.core.state.access import EVERYTHING
from sfad.protocol.messages import List
from sfad.protocol.types import Event, Status
from sfad.storage.ledger import OpenedLedger
from sfad.storage.ledger.queries import Page
from tests.tiers import first

from .samples import PLAIN, WHEN, Answers, run, runs_of, started

FILE = "ledger.db"


def remove(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    with closing(sqlite3.connect(path.with_name("other"))) as other:
        other.execute("CREATE TABLE theirs (x)")
    path.with_name("other").replace(path)


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link(path: Path) -> None:
    path.unlink()
    path.with_name("decoy").touch()
    path.symlink_to(path.with_name("decoy"))


def remove_all(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(f"{path.name}{suffix}").unlink()


def remove_log(path: Path) -> None:
    path.with_name(f"{path.name}-wal").unlink()


def remove_index(path: Path) -> None:
    path.with_name(f"{path.name}-shm").unlink()


ATTACKS = [remove, replace, make_directory, make_fifo, link, remove_all, remove_log, remove_index]


@first(2)
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
async def test_a_write_is_reported_when_the_ledger_is_in_its_place_again(
    tmp_path: Path, attack: Callable[[Path], None]
) -> None:
    answers = Answers()
    with started(tmp_path, answers) as ledger:
        for number in range(1, 101, 2):
            ledger.admit(run(number), PLAIN)
            assert await ledger.flush()
            attack(tmp_path / FILE) if number % 20 == 1 else None
            ledger.admit(run(number + 1), PLAIN)
            ledger.record_event(Event(type="run_started", time=WHEN))
            assert await ledger.flush()
            with closing(sqlite3.connect(f"file:{tmp_path / FILE}?mode=ro", uri=True)) as other:
                assert other.execute("SELECT count(*), max(number) FROM runs").fetchone() == (
                    number + 1,
                    number + 1,
                )
        assert (answers.failed, ledger.trouble) == ([], None)
        assert len(runs_of(ledger.records, Page(List(id=1, rows=1000), EVERYTHING))) == 100
        assert len(answers.notes) == 5
        assert all(
            "was removed or replaced by another process; all of it was written again" in note
            for note in answers.notes
        )
        names = [
            os.path.basename(os.readlink(f"/proc/self/fd/{fd.name}"))
            for fd in os.scandir("/proc/self/fd")
            if fd.is_symlink()
        ]
        assert sum("ledger.db" in name for name in names) < 10
    assert not (tmp_path / f"{FILE}-wal").exists()
    again = OpenedLedger(tmp_path)
    assert (again.notes, again.next_number, again.last_event) == ([], 101, 50)
    again.close()


async def test_an_idle_ledger_is_looked_after(tmp_path: Path) -> None:
    answers = Answers()
    with started(tmp_path, answers) as ledger:
        ledger.admit(run(1), PLAIN)
        await ledger.flush()
        ledger.look_after()
        await ledger.flush()
        assert answers.notes == []
        remove_all(tmp_path / FILE)
        ledger.look_after()
        await ledger.flush()
        assert len(answers.notes) == 1
        assert (tmp_path / FILE).stat().st_size > 4096


async def test_a_ledger_that_cannot_be_put_back_reports_nothing_as_recorded(tmp_path: Path) -> None:
    answers = Answers()
    state = tmp_path / "state"
    with started(state, answers) as ledger:
        ledger.admit(run(1), PLAIN)
        assert await ledger.flush()
        state.rename(tmp_path / "away")
        ledger.admit(run(2), PLAIN)
        ledger.record(run(1, status=Status.COMPLETED), PLAIN)
        assert not await ledger.flush()
        [(failed, error)] = answers.failed
        assert failed == "a2"
        assert (
            f"the ledger {state / FILE} was removed or replaced by another process, "
            "and cannot be put back"
        ) in error
        assert (answers.ended, ledger.trouble, answers.notes) == ([], error, [])
        state.mkdir()
        await answers.until(lambda: ledger.trouble is None)
        assert (answers.ended, len(answers.notes)) == (["a1"], 1)
    again = OpenedLedger(state)
    assert [info.status for info in runs_of(again.records, Page(List(id=1), EVERYTHING))] == [
        Status.COMPLETED
    ]
    again.close()


async def test_a_put_back_that_fails_leaves_no_copies_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Answers()
    with started(tmp_path, answers) as ledger:
        ledger.admit(run(1), PLAIN)
        await ledger.flush()
        with monkeypatch.context() as patch:
            patch.setattr(
                "sfad.storage.ledger.backup.configure",
                lambda _: (_ for _ in ()).throw(sqlite3.OperationalError("no")),
            )
            remove_all(tmp_path / FILE)
            for _ in range(3):
                ledger.look_after()
                await ledger.flush()
            assert ledger.trouble is not None
            assert "cannot be put back" in ledger.trouble
            assert os.listdir(tmp_path) == []
        ledger.look_after()
        await ledger.flush()
        assert (len(answers.notes), bool(ledger.trouble)) == (1, False)


KILLED = """
import os, sys, trio
from pathlib import Path
from tests.ledger.samples import PLAIN, run, started
from tests.ledger.test_putback import remove_all

async def main():
    with started(Path(sys.argv[1])) as ledger:
        for number in range(1, 2001):
            ledger.admit(run(number), PLAIN)
            await ledger.flush()
            if number % 500 == 0:
                remove_all(Path(sys.argv[1]) / "ledger.db")
        ledger.admit(run(2001), PLAIN)
        await ledger.flush()
        os.kill(os.getpid(), 9)

trio.run(main)
"""


@pytest.mark.rest("kills many times")
def test_a_kill_after_a_put_back_loses_nothing_that_was_reported(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path], env={"PYTHONPATH": os.getcwd()}, timeout=60
    )
    assert done.returncode == -9
    ledger = OpenedLedger(tmp_path)
    assert (ledger.next_number, len(ledger.left), ledger.notes) == (2002, 2001, [])
    ledger.close()
