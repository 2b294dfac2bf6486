"""Old trees and events are deleted, in small errands. Live runs stay, and numbers are not given
again."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio

from sfad.core.state.access import EVERYTHING
from sfad.protocol.messages import List
from sfad.protocol.types import CallInfo, Event, RunInfo, Status
from sfad.storage.ledger import Ledger, OpenedLedger, retention
from sfad.storage.ledger.queries import Page
from sfad.storage.ledger.retention import Deleted, Pruner
from sfad.storage.ledger.rows import RunExtra

from .samples import PLAIN, WHEN, Answers, call, calls, events, run, runs_of, started

CUTOFF = WHEN + timedelta(days=10)


def old(number: int, **changes: object) -> RunInfo:
    return run(number, **{"status": Status.COMPLETED, "ended_at": WHEN, **changes})


def young(number: int, **changes: object) -> RunInfo:
    return old(number, **{"ended_at": CUTOFF + timedelta(days=1), **changes})


def pruner(ledger: Ledger, pause: Callable[[], object] = lambda: None) -> Pruner:
    return Pruner(ledger.file.directory, lambda work: ledger.when_idle(work).result(10), pause)


async def delete(ledger: Ledger, cutoff: datetime = CUTOFF) -> Deleted:
    return await trio.to_thread.run_sync(pruner(ledger).delete, cutoff)


def ids(directory: Path) -> list[str]:
    with closing(sqlite3.connect(directory / "ledger.db")) as other:
        return [row[0] for row in other.execute("SELECT id FROM runs ORDER BY number")]


def filled(directory: Path, runs: list[RunInfo], made: Sequence[CallInfo] = ()) -> None:
    ledger = OpenedLedger(directory)
    ledger.upsert([(info, PLAIN) for info in runs], made)
    ledger.close()


async def test_a_tree_is_deleted_whole_when_all_of_it_is_old(tmp_path: Path) -> None:
    below: dict[str, object] = {"parent_id": "a1", "root_id": "a1"}
    made = [call(number, run=1) for number in range(600)] + [call(1, run=5), call(1, run=8)]
    filled(
        tmp_path,
        [
            old(1, labels={"k": "v", "l": "w"}),
            old(2, **below),
            old(3, **{**below, "parent_id": "a2"}, status=Status.REJECTED_DEPTH, ended_at=None),
            old(4),
            young(5, parent_id="a4", root_id="a4"),
            old(6),
            run(7, status=Status.RUNNING, parent_id="a6", root_id="a6"),
            run(8, status=Status.RUNNING),
            young(9, labels={"k": "v"}),
            old(10, parent_id="cvvv", root_id="cvvv"),  # of a ledger that was lost
            old(11),
        ],
        made,
    )
    with started(tmp_path) as ledger:
        assert await delete(ledger) == Deleted(5, 0)
        assert ids(tmp_path) == ["a4", "a5", "a6", "a7", "a8", "a9"]
        assert [
            info.id
            for info in runs_of(ledger.records, Page(List(id=1, labels={"k": "v"}), EVERYTHING))
        ] == ["a9"]
        assert ledger.next_number == 12
        assert [len(calls(ledger, run)) for run in (1, 5, 8)] == [0, 1, 1]
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as other:
        assert other.execute("SELECT count(*) FROM labels").fetchone() == (1,)
    assert next_number(tmp_path) == 12


async def test_a_prune_spares_the_newest_and_trees_of_other_users(tmp_path: Path) -> None:
    below: dict[str, object] = {"parent_id": "a1", "root_id": "a1"}
    ann, bob = RunExtra(uid=1000), RunExtra(uid=1001)
    rows = [
        (old(1), ann), (old(2, **below), ann), (old(3), bob), (run(4, status=Status.RUNNING), ann),
        (young(5), ann), (old(6), ann), (old(7, parent_id="a4", root_id="a4"), ann),
    ]  # fmt: skip
    opened = OpenedLedger(tmp_path)
    opened.upsert(rows, [call(1, run=1), call(1, run=4)])
    opened.close()

    def chosen(ledger: Ledger, *, keep: int = 0, uid: int | None = None) -> list[int]:
        with pruner(ledger).choose(CUTOFF, keep=keep, uid=uid) as chosen:
            return [number for numbers in chosen.batches() for number in numbers]

    with started(tmp_path) as ledger:
        for run_id in ("a1", "a2", "a3", "a6"):
            ledger.record_event(Event(type="x", time=WHEN, run_id=run_id))
        assert await ledger.flush()
        assert chosen(ledger) == [2, 1, 3, 6]
        assert chosen(ledger, uid=1000) == [2, 1, 6]
        assert chosen(ledger, keep=2) == [2, 1, 3], "the newest are a5, which is young, and a6"
        assert chosen(ledger, keep=9) == []
        with pruner(ledger).choose(CUTOFF, keep=2, uid=1000) as trees:
            assert (trees.trees, trees.runs) == (1, 2)
            assert pruner(ledger).remove(trees, dry=True) == Deleted(2, 2)
            deleted = await trio.to_thread.run_sync(lambda: pruner(ledger).remove(trees, dry=False))
            assert deleted == Deleted(2, 2)
        assert ids(tmp_path) == ["a3", "a4", "a5", "a6", "a7"]
        assert [len(calls(ledger, run)) for run in (1, 4)] == [0, 1]


def next_number(directory: Path) -> int:
    ledger = OpenedLedger(directory)
    ledger.close()
    return ledger.next_number


async def test_no_ancestor_goes_before_its_descendants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "STEP_RUNS", 2)
    filled(
        tmp_path,
        [
            old(n, **({} if n == 1 else {"parent_id": run(n - 1).id, "root_id": "a1"}))
            for n in range(1, 10)
        ],
    )
    left: list[list[str]] = []
    with started(tmp_path) as ledger:
        watching = pruner(ledger, lambda: left.append(ids(tmp_path)))
        assert (await trio.to_thread.run_sync(watching.delete, CUTOFF)).runs == 9
    assert left[:5] == [[run(n).id for n in range(1, 10 - gone)] for gone in (2, 4, 6, 8, 9)]


async def test_events_are_deleted_by_their_own_time(tmp_path: Path) -> None:
    filled(tmp_path, [run(1, status=Status.RUNNING), old(2)])
    times = [0, 1, 4000, 4001, 2, -9000, 3, 20]
    with started(tmp_path) as ledger:
        for days in times:
            ledger.record_event(Event(type="x", time=WHEN + timedelta(days=days), run_id="a2"))
        ledger.record_event(Event(type="x", time=WHEN, run_id="a1"))
        ledger.record_event(Event(type="x", time=WHEN))
        await ledger.flush()
        assert (await delete(ledger)).events == 6
        assert [event.seq for event in events(ledger)] == [3, 4, 8, 9]
        assert ledger.record_event(Event(type="x", time=WHEN)).seq == 11


async def test_old_charges_are_deleted(tmp_path: Path) -> None:
    opened = OpenedLedger(tmp_path)
    for days in (0, 50, 100):
        opened.set_charged("user", "ann", WHEN + timedelta(days=days), 1.0)
    opened.close()
    with started(tmp_path) as ledger:
        await delete(ledger, WHEN + timedelta(days=100))
        assert [
            ledger.records.charged("user", "ann", WHEN + timedelta(days=days))
            for days in (0, 50, 100)
        ] == [0.0, 1.0, 1.0]


async def test_the_file_shrinks_in_steps(tmp_path: Path) -> None:
    filled(tmp_path, [old(number, argv=["x" * 3000]) for number in range(1, 3001)])
    with started(tmp_path) as ledger:
        before = ledger.records.size_bytes
        assert await trio.to_thread.run_sync(pruner(ledger).compact) == 0
        assert (await delete(ledger)).runs == 3000
        steps: list[int] = []
        pages = await trio.to_thread.run_sync(
            pruner(ledger, lambda: steps.append(ledger.backlog)).compact
        )
        assert pages > 2000
        assert len(steps) >= pages // 32
        await ledger.flush()
        assert ledger.records.size_bytes < before / 5
        ledger.admit(run(4000), PLAIN)
        assert await ledger.flush()
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as other:
        assert other.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def test_admissions_go_on_meanwhile(tmp_path: Path) -> None:
    filled(tmp_path, [old(number) for number in range(1, 1001)])
    answers, over = Answers(), trio.Event()
    with started(tmp_path, answers) as ledger:

        async def sweep() -> None:
            assert (await delete(ledger)).runs == 1000
            over.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(sweep)
            number = 2000
            while not over.is_set():
                number += 1
                ledger.admit(young(number), PLAIN)
                await answers.until(lambda n=number: len(answers.admitted) == n - 2000)  # type: ignore[misc]
        assert ids(tmp_path) == answers.admitted
        assert answers.failed == []


async def test_a_failed_errand_is_rolled_back_and_harms_no_other(tmp_path: Path) -> None:
    def half(connection: sqlite3.Connection) -> int:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("DELETE FROM runs")
        return 1 // 0

    filled(tmp_path, [old(1)])
    with started(tmp_path) as ledger:
        with pytest.raises(ZeroDivisionError):
            await trio.to_thread.run_sync(lambda: ledger.when_idle(half).result(10))
        ledger.admit(run(2), PLAIN)
        assert await ledger.flush()
        assert ids(tmp_path) == ["a1", "a2"]


async def test_closing_does_not_wait_for_errands(tmp_path: Path) -> None:
    with started(tmp_path) as ledger:
        futures = [ledger.when_idle(lambda _: 1) for _ in range(50)]
        ledger.close()
        assert all(future.done() for future in futures)
        assert ledger.when_idle(lambda _: 1).cancelled()


def test_nothing_is_old_by_a_clock_that_is_behind(tmp_path: Path) -> None:
    filled(tmp_path, [old(1)])

    async def main() -> Deleted:
        with started(tmp_path) as ledger:
            return await delete(ledger, datetime(1970, 1, 1, tzinfo=UTC) - timedelta(days=90))

    assert trio.run(main) == Deleted()
