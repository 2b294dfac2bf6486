"""What a daemon writes and reads before the ledger is started."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from sfad.core.state.access import EVERYTHING
from sfad.host.probe import current_boot
from sfad.host.tasks import LoopRounds
from sfad.protocol.messages import List
from sfad.protocol.types import Reason, RunInfo, Status
from sfad.storage.ledger import Ledger, OpenedLedger, RunExtra
from sfad.storage.ledger.queries import Page

from .samples import PLAIN, WHEN, Answers, run, runs_of, started


async def test_rows_are_brought_up_to_date_and_missing_ones_inserted(tmp_path: Path) -> None:
    with started(tmp_path) as ledger:
        ledger.admit(run(1, status=Status.RUNNING, labels={"team": "blue"}), PLAIN)
        ledger.admit(run(2, status=Status.RUNNING), PLAIN)
        await ledger.flush()
    lost = run(
        1,
        status=Status.LOST,
        ended_at=WHEN,
        reason=Reason(kind="daemon", message="gone"),
        labels={"team": "blue"},
    )
    new = run(9, status=Status.RUNNING, pid=77, labels={"team": "blue", "n": "9"})
    opened = OpenedLedger(tmp_path)
    opened.upsert([(lost, PLAIN), (new, RunExtra(uid=5, pid_started=3))])
    opened.upsert([(new, RunExtra(uid=5, pid_started=4))])
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as other:
        assert other.execute("SELECT count(*) FROM runs").fetchone() == (3,)
    assert (opened.records.get("a1"), opened.records.get("a9"), opened.next_number) == (
        lost,
        new,
        10,
    )
    assert opened.records.details("a9") == RunExtra(uid=5, pid_started=4, boot_id=current_boot())
    assert [info.id for info in opened.left] == ["a1", "a2"]
    assert [
        info.id
        for info in runs_of(opened.records, Page(List(id=1, labels={"team": "blue"}), EVERYTHING))
    ] == ["a1", "a9"]
    opened.close()


async def test_an_upsert_that_failed_is_done_later_and_reports_an_end(tmp_path: Path) -> None:
    answers = Answers()
    lost = run(1, status=Status.LOST, ended_at=WHEN, labels={"team": "blue"})
    live = run(9, status=Status.RUNNING, pid=77)
    ledger = Ledger(OpenedLedger(tmp_path), LoopRounds())
    ledger.report_to(answers)
    ledger.upsert(lost, PLAIN)
    ledger.upsert(live, PLAIN)
    ledger.record(run(9, status=Status.PAUSED, pid=77), PLAIN)
    assert await ledger.flush()
    assert answers.ended == ["a1"]
    assert [
        (info.id, info.status) for info in runs_of(ledger.records, Page(List(id=1), EVERYTHING))
    ] == [
        ("a1", Status.LOST),
        ("a9", Status.PAUSED),
    ]
    assert [
        info.id
        for info in runs_of(ledger.records, Page(List(id=1, labels={"team": "blue"}), EVERYTHING))
    ] == ["a1"]
    ledger.close()


def test_a_failed_upsert_changes_nothing(tmp_path: Path) -> None:
    ledger = OpenedLedger(tmp_path, lock_wait=0.05, busy_timeout=0.05)
    with pytest.raises(ValueError, match="surrogates"):
        ledger.upsert([(run(1), PLAIN), (run(2, cwd="\udc80"), PLAIN)])
    with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            ledger.upsert([(run(1), PLAIN)])
    assert (ledger.records.get("a1"), ledger.next_number) == (None, 1)
    ledger.upsert([])
    ledger.close()


async def test_budgets_are_rebuilt_before_the_first_charge(tmp_path: Path) -> None:
    opened = OpenedLedger(tmp_path)
    opened.set_charged("user", "ann", WHEN, 3.0)
    opened.set_charged("user", "ann", WHEN, 2.5)
    assert (
        opened.records.charged("user", "ann", WHEN),
        opened.records.charged("team", "ann", WHEN),
    ) == (2.5, 0.0)
    opened.close()
    with started(tmp_path) as ledger:
        ledger.charge("user", "ann", WHEN, 0.5)
        await ledger.flush()
        assert ledger.records.charged("user", "ann", WHEN) == 3.0


def test_root_spawns_are_what_a_rate_counts(tmp_path: Path) -> None:
    def at(minutes: int, number: int, **changes: object) -> tuple[RunInfo, RunExtra]:
        return run(number, created_at=WHEN + timedelta(minutes=minutes), **changes), PLAIN

    ledger = OpenedLedger(tmp_path)
    ledger.upsert(
        [
            at(0, 1),
            at(30, 2),
            at(31, 3, user="bob", status=Status.FAILED),
            at(32, 4, parent_id="a3", root_id="a3"),
            at(33, 5, status=Status.REJECTED_RATE),
            # the clock was set back, and later set right again
            at(-600, 6),
            at(40, 7),
        ]
    )
    found = ledger.records.root_spawns(WHEN + timedelta(minutes=1))
    assert found == [
        (user, WHEN + timedelta(minutes=minutes))
        for user, minutes in (("ann", 30), ("bob", 31), ("ann", 40))
    ]
    ledger.close()
