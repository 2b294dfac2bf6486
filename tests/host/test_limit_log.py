"""`limits.log`: each breach with its run, no nulls, no secrets, bounded; a disk that is full costs
lines and is told once."""

from __future__ import annotations

import json
import resource
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from sfad.host import log
from sfad.host.log import FILE, LimitLog
from sfad.protocol.types import Event
from tests.protocol.test_messages import RUN

BREACH = Event(
    type="limit_exceeded",
    severity="medium",
    time=datetime(2026, 1, 2, tzinfo=UTC),
    seq=7,
    run_id="a1",
    limit_kind="turns",
)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def nulls(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(nulls(item) for item in (value.values() if isinstance(value, dict) else value))
    return value is None


def test_a_line_has_the_event_and_the_run_without_nulls_and_secrets(tmp_path: Path) -> None:
    run = replace(RUN, argv=["claude", "--api-key", "hunter2"], reason=None)
    LimitLog(tmp_path, pytest.fail).breach(BREACH, run)
    [line] = lines(tmp_path / FILE)
    assert (line["type"], line["seq"], line["limit_kind"], line["run"]["id"]) == (
        "limit_exceeded",
        7,
        "turns",
        RUN.id,
    )
    assert line["run"]["argv"] == ["claude", "--api-key", "***"]
    assert not nulls(line)
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


def test_a_text_that_is_no_unicode_costs_no_line(tmp_path: Path) -> None:
    LimitLog(tmp_path, pytest.fail).breach(BREACH, replace(RUN, cwd="/\udcff"))
    assert [line["run"]["cwd"] for line in lines(tmp_path / FILE)] == ["/\udcff"]


def test_it_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "LIMIT_LOG_MAX", 10_000)
    limits_log = LimitLog(tmp_path, pytest.fail)
    for number in range(50):
        limits_log.breach(replace(BREACH, seq=number), RUN)
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert max(sizes) <= 10_000
    kept = [line["seq"] for name in (f"{FILE}.1", FILE) for line in lines(tmp_path / name)]
    assert kept == list(range(kept[0], 50))


def test_lines_that_are_lost_are_told_once(tmp_path: Path) -> None:
    told: list[str] = []
    log = LimitLog(tmp_path, told.append)
    log.breach(BREACH, RUN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / FILE).stat().st_size, hard))
    try:
        log.breach(BREACH, RUN)
        log.breach(BREACH, RUN)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(told) == 1
    assert str(tmp_path / FILE) in told[0]
    log.breach(replace(BREACH, seq=8), RUN)
    assert [line["seq"] for line in lines(tmp_path / FILE)] == [7, 8]
    LimitLog(tmp_path / "gone", told.append).breach(BREACH, RUN)
    assert "No such file" in told[1]
