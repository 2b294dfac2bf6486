"""A copy of a ledger in use shows one moment, is private, and is there whole or not at all."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import trio

from sfad.protocol.types import Event, Status
from sfad.storage.ledger import LedgerError, OpenedLedger, back_up, backup
from sfad.storage.ledger.backup import BACKUP
from tests.template import run_forked

from .samples import PLAIN, WHEN, run, started


def filled(directory: Path, count: int = 1000) -> None:
    ledger = OpenedLedger(directory)
    ledger.upsert([(run(number, status=Status.COMPLETED), PLAIN) for number in range(1, count + 1)])
    ledger.close()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    filled(tmp_path / "state")
    return tmp_path / "state"


def test_a_copy_without_a_daemon(state: Path, tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        made = back_up(state, tmp_path / "copy.db", replace=False)
    finally:
        os.umask(old)
    assert (made.path, made.size_bytes) == (
        tmp_path / "copy.db",
        (tmp_path / "copy.db").stat().st_size,
    )
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o600
    assert names(tmp_path) == ["copy.db", "state"]
    with pytest.raises(FileExistsError):
        back_up(state, tmp_path / "copy.db", replace=False)
    (tmp_path / "new").mkdir()
    made.path.rename(tmp_path / "new" / "ledger.db")
    again = OpenedLedger(tmp_path / "new")
    assert (again.next_number, again.notes, again.is_new) == (1001, [], False)
    again.close()


async def test_a_copy_shows_one_moment_and_ends_while_others_write(
    state: Path, tmp_path: Path
) -> None:
    steps = 0

    def write() -> None:
        nonlocal steps
        steps += 1
        trio.from_thread.run_sync(ledger.admit, run(2000 + steps), PLAIN)
        trio.from_thread.run_sync(ledger.record_event, Event(type="x", time=WHEN))
        trio.from_thread.run(ledger.flush)

    with started(state) as ledger:
        await trio.to_thread.run_sync(
            lambda: back_up(state, tmp_path / "copy.db", replace=False, between=write)
        )
        pages = ledger.records.size_bytes // 4096
    assert pages / 64 <= steps <= pages / 64 + 5
    with closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        assert copy.execute("SELECT count(*), max(number) FROM runs").fetchone() == (1000, 1000)
        assert copy.execute("SELECT count(*) FROM events").fetchone() == (0,)


def test_cancelling_leaves_the_earlier_copy_only(state: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    for replace in (False, True):
        with pytest.raises(ZeroDivisionError):
            back_up(state, target, replace=replace, between=lambda: 1 // 0)
        assert names(tmp_path) == ["state"]
    back_up(state, target, replace=True)
    before = target.read_bytes()
    with pytest.raises(ZeroDivisionError):
        back_up(state, target, replace=True, between=lambda: 1 // 0)
    assert (target.read_bytes(), names(tmp_path)) == (before, ["copy.db", "state"])


def test_a_killed_copy_does_not_block_the_next(state: Path, tmp_path: Path) -> None:
    (tmp_path / "copy.db.part").write_text("half")
    back_up(state, tmp_path / "copy.db", replace=True)
    assert names(tmp_path) == ["copy.db", "state"]


def test_a_damaged_ledger_makes_no_backup(state: Path, tmp_path: Path) -> None:
    content = bytearray((state / "ledger.db").read_bytes())
    content[4096 * 40 : 4096 * 50] = os.urandom(40960)
    (state / "ledger.db").write_bytes(content)
    with pytest.raises(LedgerError, match="the copy is damaged"):
        back_up(state, tmp_path / "copy.db", replace=True)
    assert names(tmp_path) == ["state"]


def test_a_file_that_is_not_a_ledger_is_not_copied(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="there is no ledger in"):
        back_up(tmp_path, tmp_path / "copy.db", replace=True)
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as other:
        other.execute("CREATE TABLE theirs (x)")
    with pytest.raises(LedgerError, match="of another program"):
        back_up(tmp_path, tmp_path / "copy.db", replace=True)
    assert names(tmp_path) == ["ledger.db"]


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    where = tmp_path / "tiny"
    where.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", where]).returncode
    ):
        pytest.skip("mounting a tmpfs needs root")
    yield where
    subprocess.run(["umount", where], check=True)


def test_a_disk_without_room_is_not_filled(
    state: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LedgerError, match=r"needs .* MiB in .*tiny; only .* are free"):
        back_up(state, tiny / "copy.db", replace=True)
    # another process takes the room during the copy
    monkeypatch.setattr(backup, "LEFT_FREE", -(1 << 40))
    for replace in (True, False):
        with pytest.raises((sqlite3.OperationalError, OSError), match=r"full|No space"):
            back_up(state, tiny / "copy.db", replace=replace)
        assert names(tiny) == []


def test_the_newest_backup_is_found_by_its_file(state: Path) -> None:
    (state / "backup").mkdir()
    made = back_up(state, state / BACKUP, replace=True)
    ledger = OpenedLedger(state)
    assert ledger.file.backup == made
    ledger.close()


def test_the_backup_of_a_lost_ledger_is_kept_and_its_numbers_are_not_given_again(
    state: Path,
) -> None:
    (state / "backup").mkdir()
    made = back_up(state, state / BACKUP, replace=True)
    (state / "ledger.db").write_bytes(b"garbage" * 1000)
    ledger = OpenedLedger(state, floor_number=7)
    assert (ledger.is_new, ledger.file.backup, ledger.next_number, len(ledger.notes)) == (
        True,
        None,
        1001,
        2,
    )
    ledger.close()
    [kept] = (state / "backup").iterdir()
    assert kept.stat().st_size == made.size_bytes
    assert kept.name in ledger.notes[1]


def command(*words: object) -> subprocess.CompletedProcess[str]:
    return run_forked("sfad", ["backup", *map(str, words)], os.environ, timeout=60)


async def test_the_command_copies_during_writes_and_overwrites_nothing(
    state: Path, tmp_path: Path
) -> None:
    target = tmp_path / "copy.db"
    with started(state) as ledger:
        ledger.admit(run(1001), PLAIN)
        await ledger.flush()
        done = await trio.to_thread.run_sync(command, target, "--state-dir", state)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{target}: {target.stat().st_size} bytes\n"
    with closing(sqlite3.connect(target)) as copy:
        assert copy.execute("SELECT count(*) FROM runs").fetchone() == (1001,)
    again = command(target, "--state-dir", state)
    assert (again.returncode, again.stderr) == (2, f"sfad: {target} exists; choose another name\n")


def test_the_command_reports_errors(state: Path, tmp_path: Path) -> None:
    nothing = command(tmp_path / "copy.db", "--state-dir", tmp_path)
    assert (nothing.returncode, nothing.stderr) == (69, f"sfad: there is no ledger in {tmp_path}\n")
    nowhere = command(tmp_path / "none" / "copy.db", "--state-dir", state)
    assert (nowhere.returncode, "No such file or directory" in nowhere.stderr) == (74, True)
    (state / "ledger.db").write_bytes(b"garbage" * 1000)
    damaged = command(tmp_path / "copy.db", "--state-dir", state)
    assert (damaged.returncode, "file is not a database" in damaged.stderr) == (74, True)
    assert names(tmp_path) == ["state"]
