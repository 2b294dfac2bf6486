"""Full disks, locks, corruption: live runs are not forgotten, admissions fail at once and for
good."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
import trio

from sfad.core.state.access import EVERYTHING
from sfad.protocol.messages import List
from sfad.protocol.types import Event, Status
from sfad.storage.ledger import Ledger, LedgerError, LedgerUnknown, OpenedLedger, writer
from sfad.storage.ledger.opening import check_whole
from sfad.storage.ledger.queries import Page
from sfad.storage.ledger.rows import Op
from sfad.storage.ledger.writer import Backlog
from tests.harness import until

from .samples import PLAIN, WHEN, Answers, events, run, runs_of, started, transactions


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB."""
    where = tmp_path / "tiny"
    where.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", where]).returncode
    ):
        pytest.skip("mounting a tmpfs needs root")
    yield where
    subprocess.run(["umount", where], check=True)


def count(directory: Path, what: str) -> int:
    with closing(sqlite3.connect(directory / "ledger.db")) as other:
        return int(other.execute(f"SELECT count(*) FROM {what}").fetchone()[0])  # noqa: S608


async def test_a_full_disk_fails_admissions_and_keeps_ends(tiny_disk: Path) -> None:
    answers = Answers()
    ballast = tiny_disk / "ballast"
    with started(tiny_disk, answers) as ledger:
        ledger.admit(run(1), PLAIN)
        assert await ledger.flush()
        fill(ballast)
        number = 1
        while not answers.failed:
            number += 1
            ledger.admit(run(number, argv=["x" * 5000]), PLAIN)
            await ledger.flush()
        ledger.record(run(1, status=Status.COMPLETED), PLAIN)
        ledger.record_event(Event(type="run_completed", time=WHEN, message="y" * 5000))
        assert not await ledger.flush()
        assert ("full" in answers.failed[0][1], answers.troubles[0][0], ledger.backlog) == (
            True,
            answers.failed[0][1],
            2,
        )
        end = ledger.records.get("a1")
        assert end is not None
        assert end.status is Status.COMPLETED
        ballast.unlink()
        # without further admissions, the back-off alone brings them to the disk
        await answers.until(lambda: answers.troubles[-1] == (None, 0))
        assert (ledger.backlog, ledger.trouble) == (0, None)
        committed = len(answers.admitted)
    assert (count(tiny_disk, "runs"), count(tiny_disk, "events")) == (committed, 1)
    assert count(tiny_disk, "runs WHERE status = 'completed'") == 1


def fill(path: Path) -> None:
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 4096)


async def test_a_failed_admission_is_never_written_later(tmp_path: Path) -> None:
    answers = Answers()
    with started(tmp_path, answers, busy_timeout=0.01) as ledger:
        with locked(tmp_path):
            ledger.admit(run(1, labels={"k": "v"}), PLAIN)
            ledger.record(run(1, status=Status.FAILED), PLAIN)
            ledger.refuse(run(2, status=Status.REJECTED_RATE), PLAIN)
            ledger.count_refusal("a2")
            assert not await ledger.flush()
        assert [one for one, _ in answers.failed] == ["a1"]
        assert "locked" in answers.failed[0][1]
        ledger.admit(run(3), PLAIN)
        assert await ledger.flush()
        await answers.until(lambda: answers.admitted == ["a3"])
        assert answers.troubles == [(answers.failed[0][1], 0), (None, 0)]
    assert count(tmp_path, "runs WHERE id = 'a1'") == 0
    assert count(tmp_path, "labels") == 0
    assert count(tmp_path, "runs WHERE refusals_counted = 1") == 1


async def test_many_events_on_a_failing_disk_are_bounded_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "MAX_BACKLOG", 10)
    monkeypatch.setattr(writer, "RETRY_LAST", 0.1)
    answers = Answers()
    with started(tmp_path, answers, busy_timeout=0.0) as ledger:
        ledger.admit(run(1), PLAIN)
        await ledger.flush()
        with locked(tmp_path):
            for _ in range(25):
                ledger.record_event(Event(type="run_progress", time=WHEN))
                ledger.record(run(1, status=Status.RUNNING), PLAIN)
                await ledger.flush()
            ledger.record(run(1, status=Status.COMPLETED), PLAIN)
            assert not await ledger.flush()
        await answers.until(lambda: ledger.backlog == 0)
        assert sum(lost for _, lost in answers.troubles) == 15
        assert [event.seq for event in events(ledger)] == list(range(16, 26))
    assert count(tmp_path, "runs WHERE status = 'completed'") == 1


async def test_held_operations_share_a_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "RETRY_FIRST", 30.0)
    answers = Answers()
    with started(tmp_path, answers, busy_timeout=0.0) as ledger, transactions() as tries:
        with locked(tmp_path):
            ledger.record_event(Event(type="x", time=WHEN))
            await answers.until(lambda: bool(answers.troubles))
            for _ in range(100):
                ledger.record_event(Event(type="x", time=WHEN))
        ledger.admit(run(1), PLAIN)
        await answers.until(lambda: bool(answers.admitted))
        assert len(events(ledger)) == 101
    assert tries == [False, True]


async def test_flush_now_writes_what_was_queued(tmp_path: Path) -> None:
    with started(tmp_path) as ledger:
        for _ in range(50):
            ledger.record_event(Event(type="x", time=WHEN))
        assert ledger.flush_now()
        assert count(tmp_path, "events") == 50
        with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            ledger.record_event(Event(type="x", time=WHEN))
            assert not ledger.flush_now(timeout=0.1)
            other.execute("ROLLBACK")


def test_only_the_newest_state_of_a_run_waits() -> None:
    backlog = Backlog()
    old, new, event = (
        Op("state", "a1", (1, "old")),
        Op("state", "a1", (1, "new")),
        Op("event", None, (1,)),
    )
    assert backlog.add([old, event, new]) == []
    assert (len(backlog), backlog.take(), len(backlog)) == (2, [event, new], 0)


class locked:  # noqa: N801 — reads as the fact it makes
    """Another program writes to the ledger and does not commit."""

    def __init__(self, directory: Path) -> None:
        self._connection = sqlite3.connect(directory / "ledger.db", isolation_level=None)

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, *_: object) -> None:
        self._connection.rollback()
        self._connection.close()


LIMITED = """
import resource, sys, trio
from pathlib import Path
from sfad.protocol.types import Status
from tests.ledger.samples import PLAIN, Answers, run, started

async def main():
    answers = Answers()
    with started(Path(sys.argv[1]), answers) as ledger:
        resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, resource.RLIM_INFINITY))
        number = 0
        while not answers.failed:
            number += 1
            ledger.admit(run(number, argv=["x" * 5000]), PLAIN)
            await ledger.flush()
        ledger.record(run(1, status=Status.COMPLETED), PLAIN)
        await ledger.flush()
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await answers.until(lambda: ledger.backlog == 0)
        refused = answers.failed[0][0] not in answers.admitted
        print(len(answers.admitted), refused, ledger.records.get("a1").status)

trio.run(main)
"""


def test_a_file_size_limit_is_survived(tmp_path: Path) -> None:
    # under RLIMIT_FSIZE write(2) fails with EFBIG, which SQLite reports as an I/O error, not as a
    # full disk
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, tmp_path],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": os.getcwd()},
    )
    assert done.stderr == ""
    committed, *rest = done.stdout.split()
    assert rest == ["True", "completed"]
    assert count(tmp_path, "runs") == int(committed)


SHORT_LIVED = """
import os, sys, trio
from pathlib import Path
from tests.ledger.samples import PLAIN, Answers, run, started

async def main():
    with started(Path(sys.argv[1]), Answers()) as ledger:
        for _ in range(100):
            ledger.admit(run(ledger.next_number, argv=["x" * 5000]), PLAIN)
            await ledger.flush()
        os._exit(0)

trio.run(main)
"""


@pytest.mark.rest("kills many times")
def test_the_log_does_not_grow_from_one_killed_daemon_to_the_next(tmp_path: Path) -> None:
    sizes = []
    for _ in range(5):
        subprocess.run(
            [sys.executable, "-c", SHORT_LIVED, tmp_path],
            check=True,
            timeout=60,
            env={"PYTHONPATH": os.getcwd()},
        )
        sizes.append((tmp_path / "ledger.db-wal").stat().st_size)
    assert max(sizes) < 4 * sizes[0], sizes
    assert count(tmp_path, "runs") == 500


KILLED = """
import os, signal, sys, trio
from pathlib import Path
from tests.ledger.samples import PLAIN, Answers, run, started

class Loud(Answers):
    def committed(self, ids):
        os.write(1, "".join(f"{one}\\n" for one in ids).encode())

async def main():
    with started(Path(sys.argv[1]), Loud()) as ledger:
        number = 0
        while True:
            for _ in range(7):
                number += 1
                ledger.admit(run(number), PLAIN)
            await trio.lowlevel.checkpoint()

trio.run(main)
"""


@pytest.mark.rest("kills many times")
def test_sigkill_loses_nothing_that_was_reported(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, tmp_path],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": os.getcwd()},
    )
    assert child.stdout is not None
    reported = [child.stdout.readline().strip() for _ in range(2000)]
    child.kill()
    reported += [line.strip() for line in child.stdout if line.endswith("\n")]
    child.stdout.close()
    child.wait()
    ledger = OpenedLedger(tmp_path)
    assert ledger.notes == []
    assert {info.id for info in ledger.left} >= set(reported)
    ledger.close()


@pytest.mark.parametrize("damage", [b"", b"not a database, by any means" * 100])
async def test_a_corrupt_file_is_set_aside_and_numbers_go_on(tmp_path: Path, damage: bytes) -> None:
    with started(tmp_path) as ledger:
        for number in range(1, 200):
            ledger.admit(run(number), PLAIN)
        await ledger.flush()
    file = tmp_path / "ledger.db"
    broken = damage or file.read_bytes()[:4096] + os.urandom(file.stat().st_size - 4096)
    file.write_bytes(broken)
    opened = OpenedLedger(tmp_path, floor_number=199)
    [note] = opened.notes
    [aside] = set_aside(tmp_path)
    assert aside.name in note
    assert aside.read_bytes() == broken
    assert (opened.next_number, opened.left, file.stat().st_mode & 0o777) == (200, [], 0o600)
    opened.close()


async def test_damage_that_only_a_full_check_finds_is_found_by_it(tmp_path: Path) -> None:
    with started(tmp_path) as ledger:
        for number in range(1, 2000):
            ledger.admit(run(number), PLAIN)
        await ledger.flush()
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as other:
        page = other.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = 'runs_name'"
        ).fetchone()[0]
        size = other.execute("PRAGMA page_size").fetchone()[0]
    content = bytearray((tmp_path / "ledger.db").read_bytes())
    content[(page - 1) * size : page * size] = b"\xff" * size
    (tmp_path / "ledger.db").write_bytes(content)
    opened = OpenedLedger(tmp_path)
    assert opened.notes == []
    opened.close()
    assert check_whole(tmp_path, lambda: None) is not None


async def test_damage_under_an_open_ledger_is_reported_and_set_aside_by_the_next_start(
    tmp_path: Path,
) -> None:
    answers = Answers()
    with started(tmp_path) as ledger:
        ledger.admit(run(1), PLAIN)
    file = tmp_path / "ledger.db"
    content = bytearray(file.read_bytes())
    content[2 * 4096 :] = b"\xff" * (len(content) - 2 * 4096)
    with started(tmp_path, answers) as ledger:
        file.write_bytes(content)
        ledger.admit(run(2), PLAIN)
        await answers.until(lambda: bool(answers.failed))
        assert "restart sfad: it sets the damaged ledger aside" in answers.failed[0][1]
        assert set_aside(tmp_path) == []
    opened = OpenedLedger(tmp_path, floor_number=1)
    assert len(set_aside(tmp_path)) == 1
    opened.close()


def test_two_corrupt_files_of_the_same_second_are_both_kept(tmp_path: Path) -> None:
    for content in ("one" * 500, "two" * 500):
        (tmp_path / "ledger.db").write_text(content)
        OpenedLedger(tmp_path).close()
    assert len(set_aside(tmp_path)) == 2


def set_aside(directory: Path) -> list[Path]:
    return list(directory.glob("ledger.db.corrupt-*"))


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    OpenedLedger(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as other:
        other.execute("PRAGMA user_version = 99")
    before = (tmp_path / "ledger.db").read_bytes()
    with pytest.raises(
        LedgerUnknown, match=r"ledger\.db cannot be opened: its schema is version 99, .* knows \d+"
    ):
        OpenedLedger(tmp_path)
    assert (tmp_path / "ledger.db").read_bytes() == before


def test_another_program_s_database_is_set_aside(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as other:
        other.execute("CREATE TABLE theirs (x)")
    before = (tmp_path / "ledger.db").read_bytes()
    ledger = OpenedLedger(tmp_path)
    ledger.close()
    assert "it is a database of another program" in ledger.notes[0]
    assert [kept.read_bytes() for kept in set_aside(tmp_path)] == [before]


def test_an_impossible_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LedgerError, match="cannot be opened"):
        OpenedLedger(tmp_path / "file" / "below")


def test_a_ledger_locked_from_outside_is_not_taken_for_corrupt(tmp_path: Path) -> None:
    OpenedLedger(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(LedgerError, match="locked"):
            OpenedLedger(tmp_path, lock_wait=0.05)
    assert list(tmp_path.glob("*corrupt*")) == []


HOLDER = """
import sqlite3, sys
other = sqlite3.connect(sys.argv[1], isolation_level=None)
other.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
other.rollback()
"""


async def test_a_lock_held_by_another_process_costs_admissions_only(tmp_path: Path) -> None:
    answers = Answers()
    with started(tmp_path, answers, busy_timeout=0.5) as ledger:
        ledger.admit(run(1), PLAIN)
        assert await ledger.flush()
        holder = await trio.to_thread.run_sync(_hold, tmp_path / "ledger.db")
        longest = await _work_against_a_lock(ledger, answers)
        await trio.to_thread.run_sync(holder.communicate)
        await until(lambda: not ledger.backlog and not ledger.trouble)
        # neither queueing nor reading has waited for the lock
        assert longest < 0.5
        assert answers.admitted == ["a1"]
        assert {one for one, _ in answers.failed} == {"a2"}
        assert [error for error, _ in answers.troubles] == [
            "database is locked; end what else holds the ledger open, or wait for it",
            None,
        ]
        assert sum(lost for _, lost in answers.troubles) == 0
        assert [event.seq for event in events(ledger)] == [1, 2, 3, 4, 5, 6, 7, 8]
        ledger.admit(run(3), PLAIN)
        assert await ledger.flush()
    assert count(tmp_path, "runs WHERE status = 'completed' AND id = 'a1'") == 1
    assert count(tmp_path, "runs WHERE id = 'a2'") == 0


def _hold(path: Path) -> subprocess.Popen[str]:
    """Start a process that has the write lock until the end of its stdin."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    with holder.stdout:
        assert holder.stdout.readline() == "held\n"
    return holder


async def _work_against_a_lock(ledger: Ledger, answers: Answers) -> float:
    """Return the longest time that the trio thread was busy with the ledger."""
    longest = 0.0
    ledger.admit(run(2), PLAIN)
    for _ in range(8):
        begun = time.monotonic()
        ledger.record_event(Event(type="run_progress", time=WHEN))
        ledger.record(run(1, status=Status.COMPLETED), PLAIN)
        assert ledger.records.get("a1") == run(1, status=Status.COMPLETED)
        assert [info.id for info in runs_of(ledger.records, Page(List(id=1), EVERYTHING))] == ["a1"]
        events(ledger)
        longest = max(longest, time.monotonic() - begun)
        await trio.sleep(0.25)
    assert answers.failed
    return longest


async def test_a_clock_that_is_set_back_and_forth_changes_no_order(tmp_path: Path) -> None:
    hours = (0, 5, -100_000, 3, 400_000, 1)
    with started(tmp_path) as ledger:
        for number, shift in enumerate(hours, 1):
            at = WHEN + timedelta(hours=shift)
            ledger.admit(run(number, created_at=at), PLAIN)
            ledger.record_event(Event(type="run_accepted", time=at, run_id=run(number).id))
            ledger.record(
                run(
                    number, status=Status.COMPLETED, created_at=at, ended_at=at - timedelta(days=1)
                ),
                PLAIN,
            )
        assert await ledger.flush()
        expected = [run(number).id for number in range(1, 7)]
        assert [
            info.id for info in runs_of(ledger.records, Page(List(id=1), EVERYTHING))
        ] == expected
        assert [
            info.id for info in runs_of(ledger.records, Page(List(id=1, rows=2), EVERYTHING))
        ] == expected[-2:]
        assert [event.run_id for event in events(ledger)] == expected
        assert [event.seq for event in events(ledger, 3)] == [4, 5, 6]
    again = OpenedLedger(tmp_path)
    assert (again.next_number, [event.run_id for event in events(again)]) == (7, expected)
    again.close()
