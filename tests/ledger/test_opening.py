"""Ledgers in every state that a disk can leave them in: opened, set aside untouched, or refused with a reason."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import trio

from sfad.ledger import Ledger, LedgerError, opening
from sfad.ledger.opening import check, damaged
from sfad.protocol.types import Event, Status

from .samples import PLAIN, WHEN, run, started

FILE = "ledger.db"


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A state directory with a ledger of 2 000 runs."""
    trio.run(_fill, tmp_path, range(1, 2001), None)
    return tmp_path


@pytest.fixture
def killed(filled: Path) -> Path:
    """The same, of a daemon that was killed: 500 runs more are in the log only."""
    kept = filled / "kept"
    kept.mkdir()
    trio.run(_fill, filled, range(2001, 2501), kept)
    return kept


async def _fill(directory: Path, numbers: range, copy: Path | None) -> None:
    with started(directory) as ledger:
        for number in numbers:
            ledger.admit(run(number, status=Status.COMPLETED, labels={"n": str(number)}), PLAIN)
            ledger.event(Event(type="run_completed", time=WHEN, run_id=run(number).id))
        await ledger.flush()
        for name in (FILE, f"{FILE}-wal") if copy else ():
            (copy or directory).joinpath(name).write_bytes((directory / name).read_bytes())


def opened(directory: Path, **options: bool) -> tuple[int, bool, list[str]]:
    """How many runs are there, whether it was begun anew, and the notes."""
    ledger = Ledger(directory, **options)
    try:
        return ledger.next_number - 1, ledger.begun_anew, ledger.notes
    finally:
        ledger.close()


def aside(directory: Path) -> list[str]:
    return sorted(path.name.partition(".corrupt-")[2].lstrip("0123456789") for path in directory.glob("*.corrupt-*"))


def test_a_new_one_is_begun_anew_and_the_next_time_it_is_not(tmp_path: Path) -> None:
    assert opened(tmp_path) == (0, True, [])
    assert opened(tmp_path) == (0, False, [])


def test_what_a_killed_daemon_committed_is_there(killed: Path) -> None:
    assert opened(killed) == (2500, False, [])


def test_a_truncated_file_is_set_aside_as_it_is(filled: Path) -> None:
    whole = (filled / FILE).read_bytes()
    for size in (50, 700, 4096, 4096 * 7, len(whole) // 2, len(whole) - 4096):
        (filled / FILE).write_bytes(whole[:size])
        count, begun_anew, notes = opened(filled)
        assert (count, begun_anew, len(notes)) == (0, True, 1), size
        assert [path.read_bytes() for path in filled.glob("*.corrupt-*")] == [whole[:size]]
        for path in filled.glob("*.corrupt-*"):
            path.unlink()


def test_garbage_in_the_middle_is_found_after_a_clean_end_too(filled: Path) -> None:
    whole = (filled / FILE).read_bytes()
    dice = random.Random(7)
    for page in dice.sample(range(1, len(whole) // 4096), 12):
        broken = bytearray(whole)
        broken[page * 4096 : page * 4096 + 4096] = dice.randbytes(4096)
        (filled / FILE).write_bytes(broken)
        assert opened(filled)[1], page
        for path in filled.glob("*.corrupt-*"):
            assert path.read_bytes() == broken
            path.unlink()


def test_an_empty_file_is_a_new_ledger(tmp_path: Path) -> None:
    (tmp_path / FILE).touch()
    assert opened(tmp_path) == (0, True, [])


def test_an_empty_file_with_a_log_is_set_aside_with_it(killed: Path) -> None:
    log = (killed / f"{FILE}-wal").read_bytes()
    (killed / FILE).write_bytes(b"")
    assert opened(killed)[1]
    assert aside(killed) == ["", "-wal"]
    [kept] = killed.glob("*.corrupt-*-wal")
    assert kept.read_bytes() == log


def test_a_damaged_log_costs_what_is_in_it_and_after_it(killed: Path) -> None:
    log = bytearray((killed / f"{FILE}-wal").read_bytes())
    log[len(log) // 2 : len(log) // 2 + 4096] = os.urandom(4096)
    (killed / f"{FILE}-wal").write_bytes(log)
    count, begun_anew, notes = opened(killed)
    assert (2000 <= count < 2500, begun_anew, notes) == (True, False, [])


def test_a_log_that_is_garbage_altogether_costs_what_is_in_it(killed: Path) -> None:
    (killed / f"{FILE}-wal").write_bytes(os.urandom(50_000))
    assert opened(killed) == (2000, False, [])


def test_a_log_of_another_time_does_not_pass_for_whole(killed: Path) -> None:
    # the first half of the file is newer than what the log wants to put beside it
    content = bytearray((killed / FILE).read_bytes())
    content[4096 : 4096 * 9] = bytes(4096 * 8)
    (killed / FILE).write_bytes(content)
    log = (killed / f"{FILE}-wal").read_bytes()
    assert opened(killed)[1]
    [kept] = killed.glob("*.corrupt-*-wal")
    assert kept.read_bytes() == log


def test_what_is_no_file_is_named_and_left_alone(tmp_path: Path) -> None:
    for make in (os.mkdir, os.mkfifo):
        make(tmp_path / FILE)
        with pytest.raises(LedgerError, match=r"ledger\.db cannot be opened: .*(directory|regular file)"):
            Ledger(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [FILE]
        (tmp_path / FILE).rmdir() if make is os.mkdir else (tmp_path / FILE).unlink()


AS_NOBODY = """
import os, sys
from pathlib import Path
from sfad.ledger import Ledger, LedgerError
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
try:
    Ledger(Path(sys.argv[1]))
except LedgerError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
@pytest.mark.parametrize(("mode", "of_file"), [(0o755, 0o600), (0o755, 0o644), (0o777, 0o444)])
def test_a_file_of_somebody_else_is_refused(filled: Path, mode: int, of_file: int) -> None:
    filled.chmod(mode)
    (filled / FILE).chmod(of_file)
    before = (filled / FILE).read_bytes()
    for parent in filled.parents[:3]:
        parent.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, filled], capture_output=True, text=True, env={"PYTHONPATH": os.getcwd()}, timeout=30
    )
    assert "cannot be opened: [Errno 13] Permission denied" in done.stdout, done.stderr
    assert (filled / FILE).read_bytes() == before
    assert aside(filled) == []


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A file system with a ledger on it that takes nothing more."""
    where = tmp_path / "ro"
    where.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", where]).returncode:
        pytest.skip("mounting a tmpfs needs root")
    Ledger(where).close()
    subprocess.run(["mount", "-o", "remount,ro", where], check=True)
    yield where
    subprocess.run(["umount", where], check=True)


def test_a_read_only_directory_is_a_clear_error(read_only: Path) -> None:
    with pytest.raises(LedgerError, match=r"cannot be opened: .*Read-only file system"):
        Ledger(read_only)


def test_what_the_disk_cannot_read_counts_as_damaged() -> None:
    for code, expected in ((sqlite3.SQLITE_IOERR_READ, True), (sqlite3.SQLITE_IOERR_WRITE, False), (sqlite3.SQLITE_BUSY, False)):
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = code
        assert damaged(error) is expected


def test_a_large_file_is_checked_later(killed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "CHECKED_AT_ONCE", 0)
    for _ in range(2):  # the second end is a clean one, but the check has still to be done
        ledger = Ledger(killed)
        ledger.close()
        assert ledger.unchecked
    assert check(killed) is None
    ledger = Ledger(killed)
    ledger.close()
    assert not ledger.unchecked


def test_what_a_slow_disk_does_not_give_in_time_is_checked_later(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "READ_AT_ONCE", 0.0)
    monkeypatch.setattr(opening, "_check_pages", lambda _: 1 // 0)
    ledger = Ledger(filled)
    ledger.close()
    assert ledger.unchecked
    monkeypatch.undo()
    again = Ledger(filled)
    again.close()
    assert not again.unchecked


def test_what_the_later_check_finds_is_set_aside_by_the_next_start(killed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "CHECKED_AT_ONCE", 0)
    with closing(sqlite3.connect(killed / FILE)) as other:
        page = other.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'runs_name'").fetchone()[0]
    content = bytearray((killed / FILE).read_bytes())
    content[(page - 1) * 4096 : page * 4096] = b"\xff" * 4096
    (killed / FILE).write_bytes(content)
    (killed / f"{FILE}-wal").write_bytes(b"x")
    assert opened(killed)[1] is False
    assert check(killed) is not None
    assert opened(killed)[1] is True
    assert opened(killed) == (0, False, [])


def test_nothing_is_checked_of_what_was_handed_over(killed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_check_pages", lambda _: 1 // 0)
    assert opened(killed, handed_over=True) == (2500, False, [])
    monkeypatch.setattr(opening, "CHECKED_AT_ONCE", 0)
    ledger = Ledger(killed, handed_over=True)
    ledger.close()
    assert not ledger.unchecked


def test_a_small_file_of_an_older_release_learns_to_shrink(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / FILE)) as connection:
        connection.executescript((Path(__file__).parent / "v2.sql").read_text())
        assert connection.execute("PRAGMA auto_vacuum").fetchone() == (0,)
    assert opened(tmp_path) == (7, False, [])
    with closing(sqlite3.connect(tmp_path / FILE)) as connection:
        assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)
