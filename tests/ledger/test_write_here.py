"""Writes in trio's thread: without a wake-up of the other one, and never where that would wait."""

from __future__ import annotations

import math
import sqlite3
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing

from sfad.protocol.types import Event, Status
from sfad.storage.ledger import Ledger, writer
from sfad.storage.ledger.rows import Op
from sfad.storage.ledger.writer import CHECKPOINT_ROWS, Transactions
from tests.harness import until

from .samples import PLAIN, WHEN, Answers, events, run, started


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each transaction was tried in the main thread. None counts as slow, however busy the
    machine is."""
    found: list[bool] = []
    monkeypatch.setattr(writer, "SLOW", math.inf)
    write = Transactions.write

    def noted(self: Transactions, batch: Sequence[Op], *, wait: bool = True) -> None:
        found.append(threading.current_thread() is threading.main_thread())
        assert found[-1] is not wait
        write(self, batch, wait=wait)

    monkeypatch.setattr(Transactions, "write", noted)
    return found


@asynccontextmanager
async def serving(directory: Path, answers: Answers, **options: Any) -> AsyncIterator[Ledger]:
    with started(directory, answers, **options) as ledger:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ledger.serve)
            await trio.testing.wait_all_tasks_blocked()
            await until_idle(ledger)
            yield ledger
            nursery.cancel_scope.cancel()


async def until_idle(ledger: Ledger) -> None:
    """Wait until the other thread waits for work."""
    while not ledger.idle:
        await trio.lowlevel.checkpoint()


async def until_here(ledger: Ledger, answers: Answers, number: int) -> None:
    ledger.admit(run(number), PLAIN)
    await answers.until(lambda: len(answers.admitted) == number)


async def test_a_burst_is_one_transaction_here(tmp_path: Path, writers: list[bool]) -> None:
    answers = Answers()
    async with serving(tmp_path, answers) as ledger:
        for number in range(1, 31):
            ledger.admit(run(number), PLAIN)
        await answers.until(lambda: len(answers.admitted) == 30)
        assert writers == [True]
        ledger.record(run(7, status=Status.COMPLETED), PLAIN)
        await trio.testing.wait_all_tasks_blocked()
        assert (writers, answers.ended) == ([True, True], ["a7"])


async def test_what_is_not_urgent_lingers_and_is_written_here(
    tmp_path: Path, writers: list[bool]
) -> None:
    async with serving(tmp_path, Answers()) as ledger:
        for _ in range(3):
            ledger.record_event(Event(type="x", time=WHEN))
        await until(lambda: len(events(ledger)) == 3)
        assert writers == [True]


async def test_the_lock_of_another_program_is_not_waited_for_here(
    tmp_path: Path, writers: list[bool]
) -> None:
    answers = Answers()
    async with serving(tmp_path, answers, busy_timeout=60.0) as ledger:
        await until_here(ledger, answers, 1)
        with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            ledger.admit(run(2), PLAIN)
            await until(lambda: len(writers) == 3, "the other thread tries, and waits")
            other.execute("ROLLBACK")
        await answers.until(lambda: len(answers.admitted) == 2)
        assert writers == [True, True, False]
        await until_idle(ledger)
        await until_here(ledger, answers, 3)
        assert writers[3:] == [True]


async def test_a_slow_disk_is_left_to_the_other_thread(
    tmp_path: Path, writers: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Answers()
    async with serving(tmp_path, answers) as ledger:
        with monkeypatch.context() as patched:
            patched.setattr(writer, "SLOW", 0.0)
            await until_here(ledger, answers, 1)
        await until_here(ledger, answers, 2)
        assert writers == [True, False]


async def test_what_cannot_be_written_fails_as_in_the_other_thread(
    tmp_path: Path, writers: list[bool]
) -> None:
    answers = Answers()
    async with serving(tmp_path, answers, busy_timeout=0.01) as ledger:
        with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            ledger.admit(run(1), PLAIN)
            await answers.until(lambda: bool(answers.failed))
        assert (answers.failed[0][0], writers) == ("a1", [True, False])
        assert ledger.trouble is not None
        await until_here(ledger, answers, 1)
        assert ledger.trouble is None


async def test_the_log_is_moved_in_a_quiet_moment(tmp_path: Path, writers: list[bool]) -> None:
    answers = Answers()
    async with serving(tmp_path, answers) as ledger:
        for number in range(1, CHECKPOINT_ROWS + 1):
            ledger.admit(run(number), PLAIN)
            if not number % 100:
                await answers.until(lambda n=number: len(answers.admitted) == n)  # type: ignore[misc]
        await until(lambda: bool(answers.checkpoints))
        assert any(writers), "but for what came while the thread was at it, on a busy machine"
