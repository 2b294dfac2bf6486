"""Each job is done when the settings make it due, and a failure is told once."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from sfad.config import RetentionConfig
from sfad.durable import maintenance
from sfad.durable.maintenance import Maintenance, MaintenanceJobs
from sfad.host.headroom import DiskReserve
from sfad.protocol.types import Event, RunInfo, Status
from sfad.storage.ledger import Ledger, OpenedLedger, backup
from sfad.storage.output import OutputFiles
from tests.harness import until
from tests.ledger.samples import PLAIN, events, run, started

NOW = datetime(2026, 6, 1, tzinfo=UTC)
DAY = timedelta(days=1)


class World:
    """A state directory with its maintenance, and a clock that a test sets."""

    def __init__(self, ledger: Ledger, /, **settings: Any) -> None:
        self.ledger = ledger
        self.output = OutputFiles(ledger.file.directory / "output")
        self.wall = NOW
        self.live: list[str] = []
        self.trouble: list[str] = []
        self.said: list[str] = []
        jobs = MaintenanceJobs(
            ledger,
            self.output,
            lambda: self.live,
            self.said.append,
            self.said.append,
            lambda: self.wall,
        )
        self.maintenance = Maintenance(jobs, RetentionConfig(**settings), self.trouble.append)

    def passes(self, **span: float) -> None:
        self.wall += timedelta(**span)

    def write(self, run: str, at: datetime) -> None:
        for descriptor in self.output.open_for_run(run):
            os.close(descriptor)
        for suffix in (".out", ".err"):
            os.utime(self.output.directory / f"{run}{suffix}", (at.timestamp(), at.timestamp()))

    async def happened(self, *moments: datetime) -> None:
        for moment in moments:
            self.ledger.record_event(Event(type="x", time=moment))
        assert await self.ledger.flush()

    def runs(self) -> list[str]:
        with closing(sqlite3.connect(self.ledger.file.directory / "ledger.db")) as other:
            return [row[0] for row in other.execute("SELECT id FROM runs ORDER BY number")]


def ended(number: int, days_ago: float) -> RunInfo:
    at = NOW - days_ago * DAY
    return run(number, status=Status.COMPLETED, created_at=at, ended_at=at)


@contextmanager
def world(directory: Path, *runs: RunInfo, **settings: Any) -> Iterator[World]:
    opened = OpenedLedger(directory)
    opened.upsert([(info, PLAIN) for info in runs])
    opened.close()
    with started(directory) as ledger:
        yield World(ledger, **settings)


async def test_the_output_of_each_user_has_a_bound_on_disk(tmp_path: Path) -> None:
    """The runs that ended first lose theirs; live ones, and those of other users, do not."""
    mine, other = replace(PLAIN, uid=1000), replace(PLAIN, uid=1001)
    opened = OpenedLedger(tmp_path)
    live = run(5, status=Status.RUNNING)
    infos = [ended(1, 1), ended(2, 3), ended(3, 2), live]
    opened.upsert([*((info, mine) for info in infos), (ended(4, 6), other)])
    opened.close()
    with started(tmp_path) as ledger:
        it = World(ledger, output_size=5 << 20)
        for name in ("a1", "a2", "a3", "a4", "a5"):
            it.write(name, NOW)
            (it.output.directory / f"{name}.out").write_bytes(os.urandom(2 << 20))
        it.live = ["a5"]
        await it.maintenance.look()
        assert sorted({path.stem for path in it.output.directory.iterdir()}) == ["a1", "a4", "a5"]
        assert it.trouble == []
        assert any("retention.output_size" in line for line in it.said)


async def test_output_rows_and_events_are_deleted_at_their_ages(tmp_path: Path) -> None:
    with world(
        tmp_path,
        ended(1, 100),
        ended(2, 80),
        ended(3, 8),
        ended(4, 6),
        run(5, status=Status.RUNNING),
    ) as it:
        await it.happened(NOW - 100 * DAY, NOW - 2 * DAY)
        for name in ("a2", "a3", "a4", "a5", "a6"):
            it.write(name, NOW - 6.5 * DAY)
        it.live = ["a6"]
        it.passes(days=0.75)
        await it.maintenance.look()
        assert it.runs() == ["a2", "a3", "a4", "a5"]
        assert sorted({path.stem for path in it.output.directory.iterdir()}) == ["a4", "a5", "a6"]
        assert [event.seq for event in events(it.ledger)] == [2]
        assert it.trouble == []
        assert [line.split(",")[0] for line in it.said] == [
            "deleted 4 output files of runs that ended long ago",
            "deleted 1 runs and 1 events from the ledger",
            "backed up the ledger",
        ]
        assert it.ledger.file.backup is not None


async def test_the_reserve_that_a_start_used_is_filled_again(tmp_path: Path) -> None:
    """The next start may need it as well."""
    with world(tmp_path, output=None, ledger=None, backup_every=None) as it:
        assert not DiskReserve(it.ledger.file.directory).release()
        await it.maintenance.look()
        assert DiskReserve(it.ledger.file.directory).release()


async def test_off_is_off(tmp_path: Path) -> None:
    with world(tmp_path, ended(1, 3000), output=None, ledger=None, backup_every=None) as it:
        await it.happened(NOW - 2 * DAY)
        it.write("a1", NOW - 3000 * DAY)
        await it.maintenance.look()
        assert (
            it.runs(),
            len(list(it.output.directory.iterdir())),
            it.ledger.file.backup,
            it.said,
        ) == (["a1"], 2, None, [])


async def test_a_backup_is_made_when_it_is_due(tmp_path: Path) -> None:
    with world(tmp_path, ledger=None, output=None, backup_every=3600.0) as it:
        it.wall = datetime.now(UTC)
        times = []
        # a thousand hours back: a backup from the future does not count as recent
        for hours in (0, 0.5, 0.6, -1000, 0):
            it.passes(hours=hours)
            before = len(it.said)
            await it.maintenance.look()
            times.append(len(it.said) - before)
        assert times == [1, 0, 1, 1, 1]
        assert it.trouble == []


async def test_a_failure_is_told_once_and_again_when_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world(tmp_path, backup_every=3600.0) as it:
        with monkeypatch.context() as patch:
            patch.setattr(backup, "LEFT_FREE", 1 << 60)
            await it.maintenance.look()
            await it.maintenance.look()
        assert len(it.trouble) == 1
        assert it.trouble[0].startswith("backup: a copy of the ledger needs ")
        await it.maintenance.look()
        it.passes(days=10000)
        monkeypatch.setattr(backup, "LEFT_FREE", 1 << 60)
        await it.maintenance.look()
        assert len([line for line in it.trouble if line.startswith("backup: ")]) == 2


async def test_jobs_begin_a_minute_after_the_start_and_then_as_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    monkeypatch.setattr(maintenance, "FIRST_ROUND_AFTER", 0.05)
    with world(tmp_path, sweep_every=60.0) as it:

        async def look(_self: Maintenance) -> None:
            looks.append(trio.current_time())

        monkeypatch.setattr(Maintenance, "look", look)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(it.maintenance.serve)
            await until(lambda: looks, "the first look")
            await trio.sleep(0.3)
            assert len(looks) == 1
            it.maintenance.reconfigure(RetentionConfig(sweep_every=0.05))
            await until(lambda: len(looks) >= 3, "two more")
            nursery.cancel_scope.cancel()


async def test_a_job_can_be_cancelled(tmp_path: Path) -> None:
    with world(tmp_path, *(ended(number, 200) for number in range(1, 3000))) as it:
        await it.happened(NOW - 2 * DAY)
        begun = time.monotonic()
        with trio.move_on_after(0.3) as scope:
            await it.maintenance.look()
        assert scope.cancelled_caught
        assert time.monotonic() - begun < 20
        assert it.runs()
        it.ledger.admit(run(5000), PLAIN)
        assert await it.ledger.flush()
