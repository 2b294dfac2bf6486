"""Output of sessions goes sooner than that of other runs; their rows stay."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from msgspec.structs import replace

from sfad.core.state.policy import SessionsConfig
from sfad.durable.maintenance import SessionArchive
from sfad.host.clock import wall_clock
from sfad.protocol.types import Status
from sfad.storage.ledger import OpenedLedger
from sfad.storage.ledger.rows import SESSION
from sfad.storage.output import OutputFiles
from tests.ledger.samples import PLAIN, run


async def archive(directory: Path, trouble: list[str]) -> SessionArchive:
    """Return the archive of a ledger with two sessions, which ended two hours and ten minutes ago,
    and another run."""
    now = wall_clock()
    opened = OpenedLedger(directory)
    for number, hours, mode in ((1, 2.0, SESSION), (2, 2.0, "background"), (3, 1 / 6, SESSION)):
        at = now - timedelta(hours=hours)
        info = run(number, status=Status.COMPLETED, created_at=at, ended_at=at)
        opened.upsert([(info, replace(PLAIN, mode=mode))])
    opened.close()
    output = OutputFiles(directory / "output")
    for name in ("a1", "a2", "a3", "a4"):
        for descriptor in output.open_for_run(name):
            os.close(descriptor)
    found = SessionArchive(directory, output, SessionsConfig(), trouble.append)
    await found.look_for_earlier()
    return found


def left(it: SessionArchive) -> list[str]:
    return sorted({path.stem for path in it.output.directory.iterdir()})


async def test_output_goes_after_its_time_and_only_that_of_sessions(tmp_path: Path) -> None:
    trouble: list[str] = []
    it = await archive(tmp_path, trouble)
    await it.look()
    assert left(it) == ["a2", "a3", "a4"]
    it.ended("a4")
    it.reconfigure(SessionsConfig(archive_ttl_minutes=5))
    await it.look()
    assert left(it) == ["a2", "a4"]
    assert trouble == []


async def test_what_cannot_be_deleted_is_told(tmp_path: Path) -> None:
    trouble: list[str] = []
    it = await archive(tmp_path, trouble)
    (tmp_path / "output" / "a1.out").unlink()
    (tmp_path / "output" / "a1.out").mkdir()
    await it.look()
    (line,) = trouble
    assert line.startswith("output of sessions that have ended could not be deleted: ")
