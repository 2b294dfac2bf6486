"""Ledgers written by released versions always load. Add a dump for a new schema version; never edit one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sfad.core.access import EVERYTHING
from sfad.ledger import OpenedLedger, schema
from sfad.ledger.reader import Page
from sfad.protocol.messages import List
from sfad.protocol.types import Reason, Status
from tests.ledger.samples import events, runs_of

DUMPS = sorted(Path(__file__).parent.glob("v*.sql"))


@pytest.fixture(params=DUMPS, ids=lambda path: path.stem)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenedLedger]:
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
        connection.executescript(request.param.read_text())
    ledger = OpenedLedger(tmp_path)
    yield ledger
    ledger.close()


def test_there_is_a_dump_of_every_version() -> None:
    assert [path.stem for path in DUMPS] == [f"v{version + 1}" for version in range(schema.VERSION)]


def test_an_old_ledger_loads(old: OpenedLedger) -> None:
    assert old.notes == []
    runs = runs_of(old.records, Page(List(id=1), EVERYTHING))
    assert [(run.id, run.status) for run in runs] == [
        ("a1", Status.COMPLETED),
        ("a2", Status.REJECTED_DEPTH),
        ("a3", Status.RUNNING),
    ]
    assert runs[0].argv == ["claude", "-p", "caf\u00e9 'quoted'\n"]
    assert runs[0].usage.cost_usd == 0.25
    assert runs[1].reason == Reason(kind="depth", message="too deep")
    assert (old.records.lineage("a2"), old.next_number) == (["a1", "a2"], 8)
    assert [run.id for run in runs_of(old.records, Page(List(id=1, labels={"team": "blue"}), EVERYTHING))] == ["a1"]
    details = old.records.details("a1")
    assert details is not None
    assert (details.uid, details.result_head, details.allowed_tools) == (1000, b"\x00done", ["Read"])
    assert {limit.kind for limit in runs[0].limits} <= {"time", "cost"}
    assert [(event.seq, event.type) for event in events(old)] == [(1, "run_accepted"), (5, "run_completed")]


def test_usage_of_several_sources_is_told_apart(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
        connection.executescript((Path(__file__).parent / "v2.sql").read_text())
    ledger = OpenedLedger(tmp_path)
    found = ledger.records.get("a1")
    charged = ledger.records.charged("user", "ann", datetime.fromtimestamp(1767312000, UTC))
    ledger.close()
    assert found is not None
    assert (found.meter, found.usage.source, found.usage.turns, found.usage_by_source["stream"].turns) == ("claude", "report", 3, 2)
    assert charged == 0.25


def test_calls_are_read_as_they_were_written(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
        connection.executescript((Path(__file__).parent / "v4.sql").read_text())
    ledger = OpenedLedger(tmp_path)
    made, refused = ledger.records.calls("a1", (0.0, 0), 9)
    rest = ledger.records.calls("a1", (made.time.timestamp(), made.number), 9)
    counts = ledger.records.count_calls("a1")
    ledger.close()
    assert rest == [refused]
    assert (made.run_id, made.state, made.model, made.cost_usd, made.clamped_to) == ("a1", "ended", "claude-sonnet-4-5", 0.25, 4096)
    assert (made.streamed, made.partial, made.waited_s, made.first_byte_s, made.elapsed_s) == (True, False, 0.25, 0.5, 1.5)
    assert (refused.refused, refused.more, refused.input_tokens) == ("not reserved: 0.3 USD more", 7, None)
    assert counts == (1, 8)


def test_a_failed_migration_leaves_the_version_before(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.migrate(connection)
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, "CREATE TABLE half (x); CREATE TABLE runs (y);"))
    monkeypatch.setattr(schema, "VERSION", schema.VERSION + 1)
    with pytest.raises(sqlite3.OperationalError):
        schema.migrate(connection)
    assert schema.version_of(connection) == schema.VERSION - 1
    assert connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'half'").fetchone() == (0,)
    connection.close()
