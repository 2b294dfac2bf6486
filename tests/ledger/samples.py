"""Runs and a started ledger for the tests."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import trio

from sfad.core.state.run import run_id
from sfad.host.tasks import LoopRounds
from sfad.protocol.types import (
    Action,
    CallInfo,
    Event,
    LimitKind,
    LimitState,
    RunInfo,
    Status,
    Usage,
)
from sfad.storage.ledger import Ledger, OpenedLedger, RunExtra
from sfad.storage.ledger.database import open_reader
from sfad.storage.ledger.ledger import CallKey
from sfad.storage.ledger.queries import Page, Reader
from sfad.storage.ledger.records import Records
from sfad.storage.ledger.rows import EVENT_COLUMNS, Op, event_of
from sfad.storage.ledger.writer import Transactions

WHEN = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)

PLAIN = RunExtra(uid=1000)

_BASE = RunInfo(
    id="a1",
    name="claude",
    kind="agent",
    type=None,
    status=Status.ACCEPTED,
    parent_id=None,
    root_id="a1",
    depth=0,
    chain=["claude"],
    pid=None,
    argv=["claude", "-p", "do it"],
    cwd="/srv",
    user="ann",
    channel="cli",
    exit_code=None,
    signal=None,
    reason=None,
    attempts=0,
    limits=[
        LimitState(kind=LimitKind.TIME, threshold=120.0, action=Action.TERMINATE, source="default")
    ],
    usage=Usage(),
    processes=None,
    memory_bytes=None,
    descendants=0,
    deadline=None,
    milestone=None,
    created_at=WHEN,
    started_at=None,
    ended_at=None,
)


def run(number: int = 1, **changes: Any) -> RunInfo:
    """A root run with this number, changed as asked."""
    own = run_id(number)
    return msgspec.structs.replace(_BASE, **{"id": own, "root_id": own, **changes})


def runs_of(source: Reader | Records, page: Page) -> list[RunInfo]:
    """The runs of a page."""
    return source.runs(source.select(page).numbers)


def call(number: int = 1, run: int = 1, **changes: Any) -> CallInfo:
    """A call that a run made `number` seconds after `WHEN`."""
    told: dict[str, Any] = {
        "state": "ended",
        "upstream": "anthropic",
        "model": "m",
        "output_tokens": 7,
        "cost_usd": 0.25,
    }
    return CallInfo(
        time=WHEN + timedelta(seconds=number), run_id=run_id(run), number=number, **told | changes
    )


def calls(ledger: Ledger | OpenedLedger, run: int = 1) -> list[CallInfo]:
    """The calls of a run in the file."""
    return ledger.records.calls(run_id(run), (0.0, 0), 10_000)


def events(ledger: Ledger | OpenedLedger, since: int = 0) -> list[Event]:
    """The events in the file that are numbered above `since`, in order."""
    sql = f"SELECT {', '.join(EVENT_COLUMNS)} FROM events WHERE seq > ? ORDER BY seq"  # noqa: S608
    with closing(open_reader(ledger.file.directory)) as connection:
        return [event_of(row) for row in connection.execute(sql, (since,))]


@contextmanager
def transactions() -> Iterator[list[bool]]:
    """Note of each transaction that is tried, in whatever thread, whether it was committed."""
    tried: list[bool] = []
    write = Transactions.write

    def noted(self: Transactions, batch: Sequence[Op], *, wait: bool = True) -> None:
        tried.append(False)
        write(self, batch, wait=wait)
        tried[-1] = True

    with mock.patch.object(Transactions, "write", noted):
        yield tried


def traced_reader(executed: list[str]) -> Callable[[Path], sqlite3.Connection]:
    """Return an `open_reader` whose connections note what they execute."""

    def opened(directory: Path) -> sqlite3.Connection:
        connection = open_reader(directory)
        connection.set_trace_callback(executed.append)
        return connection

    return opened


class Answers:
    """What a ledger has told, and a way to wait for it."""

    def __init__(self) -> None:
        self.admitted: list[str] = []
        self.failed: list[tuple[str, str]] = []
        self.ended: list[str] = []
        self.calls: list[CallKey] = []
        self.troubles: list[tuple[str | None, int]] = []
        self.notes: list[str] = []
        self.checkpoints = 0
        self._changed = trio.Event()

    def committed(self, runs: list[str]) -> None:
        self.admitted += runs
        self._wake()

    def commit_failed(self, runs: list[str], error: str) -> None:
        self.failed += [(one, error) for one in runs]
        self._wake()

    def recorded(self, runs: list[str]) -> None:
        self.ended += runs
        self._wake()

    def calls_recorded(self, calls: list[CallKey]) -> None:
        self.calls += calls
        self._wake()

    def trouble(self, error: str | None, lost: int) -> None:
        self.troubles.append((error, lost))
        self._wake()

    def was_put_back(self, note: str) -> None:
        self.notes.append(note)

    def took(self, seconds: float) -> None:
        assert seconds >= 0

    def checkpointed(self) -> None:
        self.checkpoints += 1

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def until(self, true: Callable[[], bool]) -> None:
        """Return once the condition holds after an answer; fail after a minute."""
        with trio.fail_after(60):
            while not true():
                await self._changed.wait()


@contextmanager
def started(directory: Path, answers: Answers | None = None, **options: Any) -> Iterator[Ledger]:
    """A ledger that takes writes."""
    rounds = LoopRounds()
    trio.lowlevel.add_instrument(rounds)
    ledger = Ledger(OpenedLedger(directory, **options), rounds)
    ledger.report_to(answers or Answers())
    try:
        yield ledger
    finally:
        ledger.close()
