"""Admissions and ends are written at once; other writes wait a little and share their
transactions."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from time import monotonic

import pytest
import trio

from sfad.core.state.access import EVERYTHING
from sfad.protocol.messages import List
from sfad.protocol.types import Event, Status
from sfad.storage.ledger import Ledger, OpenedLedger, writer
from sfad.storage.ledger.queries import Page
from sfad.storage.ledger.writer import Inbox
from tests.harness import until

from .samples import PLAIN, WHEN, Answers, events, run, started, transactions

LONG = 60.0
EVERY = Page(List(id=0), EVERYTHING)


@pytest.fixture
def for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Items that are not urgent wait for longer than a test."""
    monkeypatch.setattr(writer, "LINGER", LONG)


def begin(ledger: Ledger, number: int) -> None:
    """The writes that follow an admission while the run lives."""
    ledger.record_event(Event(type="run_accepted", time=WHEN, run_id=run(number).id))
    ledger.record(run(number, status=Status.RUNNING), PLAIN)
    ledger.record_event(Event(type="run_started", time=WHEN, run_id=run(number).id))


@pytest.mark.usefixtures("for_ever")
async def test_short_runs_in_sequence_take_two_transactions_each(tmp_path: Path) -> None:
    answers = Answers()
    with started(tmp_path, answers) as ledger, transactions() as seen:
        for number in range(1, 11):
            ledger.admit(run(number), PLAIN)
            await answers.until(lambda n=number: len(answers.admitted) == n)  # type: ignore[misc]
            begin(ledger, number)
            ledger.record(run(number, status=Status.COMPLETED), PLAIN)
            await answers.until(lambda n=number: len(answers.ended) == n)  # type: ignore[misc]
            ledger.record_event(Event(type="run_completed", time=WHEN, run_id=run(number).id))
        assert len(seen) == 20
        assert len(events(ledger)) == 29
        assert await ledger.flush()
        assert (len(seen), len(events(ledger))) == (21, 30)


@pytest.mark.usefixtures("for_ever")
async def test_an_end_is_in_the_file_at_once(tmp_path: Path) -> None:
    # waiters are notified before: a daemon that is killed then must not show the run as lost
    answers = Answers()
    with started(tmp_path, answers) as ledger:
        ledger.admit(run(1), PLAIN)
        await answers.until(lambda: bool(answers.admitted))
        begin(ledger, 1)
        ledger.record(run(1, status=Status.COMPLETED), PLAIN)
        with closing(sqlite3.connect(tmp_path / "ledger.db")) as other:
            await until(
                lambda: other.execute("SELECT status FROM runs").fetchall() == [("completed",)]
            )


async def test_lingering_items_are_written_without_an_urgent_one(tmp_path: Path) -> None:
    with started(tmp_path) as ledger:
        for number in range(1, 4):
            ledger.refuse(run(number, status=Status.REJECTED_RATE), PLAIN)
            await until(lambda: not any(ledger.records.unwritten(EVERY)))
            await trio.sleep(3 * writer.LINGER)  # the thread is asleep again


@pytest.mark.usefixtures("for_ever")
async def test_lingering_items_are_bounded(tmp_path: Path) -> None:
    with started(tmp_path) as ledger:
        for _ in range(writer.ENOUGH):
            ledger.record_event(Event(type="x", time=WHEN))
        await until(lambda: len(events(ledger)) == writer.ENOUGH)


@pytest.mark.usefixtures("for_ever")
async def test_closing_does_not_linger(tmp_path: Path) -> None:
    begun = monotonic()
    with started(tmp_path) as ledger:
        ledger.admit(run(1), PLAIN)
        await ledger.flush()
        begin(ledger, 1)
        assert ledger.close() == 0
    again = OpenedLedger(tmp_path)
    assert ([info.status for info in again.left], len(events(again))) == ([Status.RUNNING], 2)
    again.close()
    assert monotonic() - begun < LONG / 2


def taken_from(box: Inbox[int], timeout: float | None) -> list[int]:
    box.wait(timeout)
    return box.drain()


def test_an_idle_taker_sleeps_and_a_late_item_wakes_it() -> None:
    box: Inbox[int] = Inbox()
    assert taken_from(box, 0.0) == []
    taken: list[list[int]] = []
    taker = threading.Thread(target=lambda: taken.append(taken_from(box, None)))
    taker.start()
    while not box.asleep:
        pass
    box.put(1)
    box.put(2)
    taker.join(5)
    assert (taken, len(box)) == ([[1, 2]], 0)


def test_a_call_while_the_taker_lingers_ends_its_wait_though_nothing_is_queued() -> None:
    """It would sleep until the next item, and the checkpoint for which it was called would wait
    that long."""
    box: Inbox[int] = Inbox()
    box.wake()
    taken: list[list[int]] = []
    taker = threading.Thread(target=lambda: taken.append(taken_from(box, None)))
    taker.start()
    taker.join(5)
    early = not taker.is_alive()
    box.wake()  # else it would not end where this fails
    taker.join()
    assert (early, taken) == (True, [[]])


def test_many_items_from_another_thread_arrive_once_and_in_order() -> None:
    box: Inbox[int] = Inbox()

    def put() -> None:
        for number in range(20_000):
            (box.put if number % 7 else box.add)(number)

    putter = threading.Thread(target=put)
    putter.start()
    taken: list[int] = []
    while len(taken) < 20_000:
        taken += taken_from(box, 5.0)
    putter.join()
    assert taken == list(range(20_000))
    assert taken_from(box, 0.0) == []
