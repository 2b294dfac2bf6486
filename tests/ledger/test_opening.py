"""Ledgers in each state that a disk can leave them in: opened, set aside untouched, or refused with
a reason."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
import trio

from sfad.protocol.types import Event, Status
from sfad.storage.ledger import LedgerError, OpenedLedger
from sfad.storage.ledger.database import is_damage
from sfad.storage.ledger.opening import SUSPECT, check_whole, suspect
from tests.harness import let_others_into
from tests.tiers import first

from .samples import PLAIN, WHEN, run, started

FILE = "ledger.db"


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A state directory with a ledger of 2 000 runs."""
    trio.run(_fill, tmp_path, range(1, 2001), None)
    return tmp_path


@pytest.fixture
def killed(filled: Path) -> Path:
    """The same of a daemon that was killed: 500 more runs are in the log only."""
    kept = filled / "kept"
    kept.mkdir()
    trio.run(_fill, filled, range(2001, 2501), kept)
    return kept


async def _fill(directory: Path, numbers: range, copy: Path | None) -> None:
    with started(directory) as ledger:
        for number in numbers:
            ledger.admit(run(number, status=Status.COMPLETED, labels={"n": str(number)}), PLAIN)
            ledger.record_event(Event(type="run_completed", time=WHEN, run_id=run(number).id))
        await ledger.flush()
        for name in (FILE, f"{FILE}-wal") if copy else ():
            (copy or directory).joinpath(name).write_bytes((directory / name).read_bytes())


def opened(directory: Path) -> tuple[int, bool, list[str]]:
    """How many runs the ledger has, whether it is new, and its notes."""
    ledger = OpenedLedger(directory)
    try:
        return ledger.next_number - 1, ledger.is_new, ledger.notes
    finally:
        ledger.close()


def aside(directory: Path) -> list[str]:
    return sorted(
        path.name.partition(".corrupt-")[2].lstrip("0123456789")
        for path in directory.glob("*.corrupt-*")
    )


def test_a_ledger_is_new_only_the_first_time(tmp_path: Path) -> None:
    assert opened(tmp_path) == (0, True, [])
    assert opened(tmp_path) == (0, False, [])


def test_commits_of_a_killed_daemon_are_read(killed: Path) -> None:
    assert opened(killed) == (2500, False, [])


def test_a_truncated_file_is_set_aside_as_it_is(filled: Path) -> None:
    whole = (filled / FILE).read_bytes()
    for size in (50, 700, 4096, 4096 * 7, len(whole) // 2, len(whole) - 4096):
        (filled / FILE).write_bytes(whole[:size])
        count, is_new, notes = opened(filled)
        assert (count, is_new, len(notes)) == (0, True, 1), size
        assert [path.read_bytes() for path in filled.glob("*.corrupt-*")] == [whole[:size]]
        for path in filled.glob("*.corrupt-*"):
            path.unlink()


def test_garbage_in_the_middle_is_found_and_set_aside_by_the_next_start(filled: Path) -> None:
    whole = (filled / FILE).read_bytes()
    dice = random.Random(7)
    for page in dice.sample(range(1, len(whole) // 4096), 12):
        broken = bytearray(whole)
        broken[page * 4096 : page * 4096 + 4096] = dice.randbytes(4096)
        (filled / FILE).write_bytes(broken)
        wrong = check_whole(filled, lambda: None)
        assert wrong is not None, page
        suspect(filled, wrong)
        assert opened(filled)[1], page
        assert not (filled / SUSPECT).exists()
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


def test_a_damaged_log_loses_its_rest(killed: Path) -> None:
    log = bytearray((killed / f"{FILE}-wal").read_bytes())
    log[len(log) // 2 : len(log) // 2 + 4096] = os.urandom(4096)
    (killed / f"{FILE}-wal").write_bytes(log)
    count, is_new, notes = opened(killed)
    assert (2000 <= count < 2500, is_new, notes) == (True, False, [])


@pytest.mark.parametrize("garbage", [os.urandom(50_000), b"x", bytes(32)])
def test_a_log_of_garbage_loses_its_rows(killed: Path, garbage: bytes) -> None:
    (killed / f"{FILE}-wal").write_bytes(garbage)
    assert opened(killed) == (2000, False, [])


def test_a_log_of_another_time_is_damage(killed: Path) -> None:
    # the first half of the file is newer than the pages in the log
    content = bytearray((killed / FILE).read_bytes())
    content[4096 : 4096 * 9] = bytes(4096 * 8)
    (killed / FILE).write_bytes(content)
    log = (killed / f"{FILE}-wal").read_bytes()
    suspect(killed, str(check_whole(killed, lambda: None)))
    assert opened(killed)[1]
    [kept] = killed.glob("*.corrupt-*-wal")
    assert kept.read_bytes() == log


@first(4)
@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
@pytest.mark.parametrize("what", ["directory", "fifo", "symlink", "dangling"])
def test_anything_but_a_file_is_set_aside(
    filled: Path, tmp_path: Path, suffix: str, what: str
) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious" * 1000)
    name = filled / f"{FILE}{suffix}"
    if name.exists():
        name.rename(filled / "moved")
    if what == "directory":
        name.mkdir()
        (name / "file").touch()
    elif what == "fifo":
        os.mkfifo(name)
    else:
        name.symlink_to(precious if what == "symlink" else tmp_path / "missing")
    count, is_new, [note] = opened(filled)
    assert (count, is_new) == ((0, True) if suffix == "" else (2000, False))
    assert f"{name} was not a regular file; it was set aside as {name}.foreign-" in note
    assert precious.read_bytes() == b"precious" * 1000
    assert not (tmp_path / "missing").exists()


TAMPERED = {
    "its tables are dropped": (
        "DROP TABLE runs; DROP TABLE events; DROP TABLE labels; DROP TABLE budgets; "
        "DROP TABLE deleted;"
    ),
    "a column is missing": "ALTER TABLE runs DROP COLUMN milestone;",
    "a column is added": "ALTER TABLE runs ADD COLUMN bad TEXT CHECK (number < 2001);",
    "an index is missing": "DROP INDEX runs_status;",
    "a trigger is missing": "DROP TRIGGER runs_deleted;",
    "a view is in place of a table": (
        "ALTER TABLE budgets RENAME TO b; CREATE VIEW budgets AS SELECT * FROM b;"
    ),
    "its schema is one of no version": "PRAGMA user_version = 0;",
    "its version is negative": "PRAGMA user_version = -3;",
    "it is of another program": "PRAGMA application_id = 7;",
    "no number is left": (
        "INSERT INTO events VALUES (9223372036854775807, 0, '', '', NULL, NULL, '{}');"
    ),
}


@first(3)
@pytest.mark.parametrize("tampered", TAMPERED)
def test_a_tampered_ledger_is_set_aside(filled: Path, tampered: str) -> None:
    with closing(sqlite3.connect(filled / FILE)) as other:
        other.executescript(TAMPERED[tampered])
    before = (filled / FILE).read_bytes()
    count, is_new, [note] = opened(filled)
    assert (count, is_new) == (0, True)
    [kept] = filled.glob(f"{FILE}.corrupt-*")
    assert f"it was set aside as {kept.name}, and a new one was begun" in note
    assert kept.read_bytes()[100:] == before[100:]
    assert opened(filled) == (0, False, [])


def test_one_damaged_number_is_not_believed(filled: Path) -> None:
    with closing(sqlite3.connect(filled / FILE)) as other:
        other.executescript("UPDATE deleted SET highest = 'x'")
    assert opened(filled) == (2000, False, [])


GROWN = """
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20)
    INSERT INTO runs SELECT {runs} FROM runs, n;
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20)
    INSERT INTO events SELECT {events} FROM events, n;
"""


def test_what_a_start_reads_does_not_grow_with_the_ledger(filled: Path) -> None:
    before = bytes_read_by_a_start(filled)
    with closing(sqlite3.connect(filled / FILE)) as other:
        columns = {
            table: ", ".join(
                f"{name} + 10000 * i" if name == key else name
                for _, name, *_ in other.execute(f"PRAGMA table_info({table})")
            )
            for table, key in (("runs", "number"), ("events", "seq"))
        }
        other.executescript(GROWN.format(**columns))
    assert (filled / FILE).stat().st_size > 15_000_000
    # a level more of each tree, and pages near what is read
    assert bytes_read_by_a_start(filled) <= before + 64 * 4096


def bytes_read_by_a_start(directory: Path) -> int:
    before = bytes_read()
    with closing(OpenedLedger(directory)) as ledger:
        ledger.records.root_spawns(WHEN + timedelta(hours=1))
        ledger.records.sessions(WHEN + timedelta(hours=1))
        ledger.records.charged("user", "ann", WHEN)
        found = bytes_read() - before
    assert found > 4096
    return found


def bytes_read() -> int:
    """By read(2) and the like, from the page cache as well; of this process."""
    return int(Path("/proc/self/io").read_text().split()[1])


TEXTS = (
    "id",
    "user",
    "name",
    "root_id",
    "channel",
    "chain",
    "kind",
    "argv",
    "cwd",
    "labels",
    "limits",
    "usage",
    "reason",
)
NUMBERS = ("created_at", "depth", "attempts", "descendants", "started_at", "exit_code")
BROKEN = {
    **dict.fromkeys(TEXTS, "CAST(x'7bff' AS TEXT)"),
    **dict.fromkeys(NUMBERS, "'x'"),
    "milestone": "x'ff'",
    "pid": "1e300",
    "deadline": "-9223372036854775808",
}


@first(4)
@pytest.mark.parametrize("column", BROKEN)
def test_a_damaged_row_of_a_live_run_is_set_aside_alone(filled: Path, column: str) -> None:
    with closing(sqlite3.connect(filled / FILE)) as other:
        other.executescript(
            f"UPDATE runs SET status = 'running', {column} = {BROKEN[column]} WHERE number = 7"  # noqa: S608
        )
    with closing(OpenedLedger(filled)) as ledger:
        [note] = ledger.notes
        [kept] = filled.glob(f"{FILE}.a7.corrupt-*")
        assert "run a7: the row of this live run in the ledger is damaged" in note
        assert str(kept) in note
        assert f"'{column}': " in kept.read_text()
        assert [info.id for info in ledger.left] == ["a7"]
        ledger.upsert([(run(7, status=Status.RUNNING), PLAIN)])
    with closing(OpenedLedger(filled)) as ledger:
        assert (ledger.notes, ledger.left) == ([], [run(7, status=Status.RUNNING)])


def test_triggers_and_indices_of_another_program_are_dropped(filled: Path) -> None:
    with closing(sqlite3.connect(filled / FILE)) as other:
        other.executescript(
            """
            CREATE TABLE theirs (x);
            CREATE INDEX theirs_x ON theirs (x);
            CREATE TRIGGER "a "" trap" BEFORE INSERT ON runs BEGIN SELECT RAISE(ABORT, 'no'); END;
            CREATE UNIQUE INDEX one_kind ON events (type) WHERE seq > 2000;
            ANALYZE;
            """
        )
    count, is_new, [note] = opened(filled)
    assert (count, is_new) == (2000, False)
    assert note.endswith('ledger.db: index one_kind, trigger a " trap')
    with closing(sqlite3.connect(filled / FILE)) as other:
        names = {
            name
            for (name,) in other.execute(
                "SELECT name FROM sqlite_schema WHERE tbl_name IN ('runs', 'events', 'theirs')"
            )
        }
    assert {"theirs", "theirs_x", "runs_deleted"} <= names
    assert not names & {'a " trap', "one_kind"}
    assert opened(filled) == (2000, False, [])


AS_NOBODY = """
import os, sys
from pathlib import Path
from sfad.storage.ledger import LedgerError, OpenedLedger
# from Python 3.13 on it imports a module, which another user may not be able to read
Path("/").as_uri()
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
try:
    OpenedLedger(Path(sys.argv[1]))
except LedgerError as error:
    print(error)
"""


@pytest.mark.needs("root")
@pytest.mark.parametrize(("mode", "of_file"), [(0o755, 0o600), (0o755, 0o644), (0o777, 0o444)])
def test_a_file_of_another_user_is_refused(filled: Path, mode: int, of_file: int) -> None:
    filled.chmod(mode)
    (filled / FILE).chmod(of_file)
    before = (filled / FILE).read_bytes()
    let_others_into(filled)
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, filled],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": os.getcwd()},
        timeout=30,
    )
    assert "cannot be opened: [Errno 13] Permission denied" in done.stdout, done.stderr
    assert (filled / FILE).read_bytes() == before
    assert aside(filled) == []


@pytest.mark.needs("root")
def test_a_ledger_that_lost_its_mode_bits_is_used(filled: Path) -> None:
    for name in (filled, *filled.iterdir()):
        os.chown(name, 65534, 65534)
    (filled / FILE).chmod(0)
    let_others_into(filled)
    text = f"{AS_NOBODY}\nprint(OpenedLedger(Path(sys.argv[1])).next_number)"
    done = subprocess.run(
        [sys.executable, "-c", text, filled],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": os.getcwd()},
        timeout=30,
    )
    assert done.stdout == "2001\n", done.stderr


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A read-only file system with a ledger on it."""
    where = tmp_path / "ro"
    where.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", where]).returncode
    ):
        pytest.skip("mounting a tmpfs needs root")
    OpenedLedger(where).close()
    subprocess.run(["mount", "-o", "remount,ro", where], check=True)
    yield where
    subprocess.run(["umount", where], check=True)


def test_a_read_only_directory_is_a_clear_error(read_only: Path) -> None:
    with pytest.raises(LedgerError, match=r"cannot be opened: .*Read-only file system"):
        OpenedLedger(read_only)


def test_an_unreadable_page_counts_as_damage() -> None:
    for code, expected in (
        (sqlite3.SQLITE_IOERR_READ, True),
        (sqlite3.SQLITE_IOERR_WRITE, False),
        (sqlite3.SQLITE_BUSY, False),
    ):
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = code
        assert is_damage(error) is expected


def test_a_start_reads_all_pages_only_of_a_suspect_ledger(killed: Path) -> None:
    with closing(sqlite3.connect(killed / FILE)) as other:
        page = other.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = 'runs_name'"
        ).fetchone()[0]
    content = bytearray((killed / FILE).read_bytes())
    content[(page - 1) * 4096 : page * 4096] = b"\xff" * 4096
    (killed / FILE).write_bytes(content)
    assert opened(killed)[1] is False
    suspect(killed, "a test")
    assert opened(killed)[1] is True
