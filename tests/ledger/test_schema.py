"""Ledgers of each schema version always load. Add a dump for a new version; never edit that of a
released one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sfad.core.state.access import EVERYTHING
from sfad.protocol.messages import List
from sfad.protocol.types import Reason, Status, StoppedChildren
from sfad.storage.ledger import LedgerTooNew, OpenedLedger, schema
from sfad.storage.ledger.queries import Page
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
    assert [
        run.id
        for run in runs_of(old.records, Page(List(id=1, labels={"team": "blue"}), EVERYTHING))
    ] == ["a1"]
    details = old.records.details("a1")
    assert details is not None
    assert (details.uid, details.result_head) == (1000, b"\x00done")
    assert (runs[0].model, runs[0].task, runs[0].allowed_tools) == (
        "sonnet",
        "look at HEAD~1",
        ("Read",),
    )
    assert runs[0].stopped_children == StoppedChildren(
        count=1,
        names=["writer"],
        message="stopped 1 child that was still running: writer; wait for it, or --detach",
    )
    assert {limit.kind for limit in runs[0].limits} <= {"time", "cost"}
    assert [(event.seq, event.type) for event in events(old)] == [
        (1, "run_accepted"),
        (5, "run_completed"),
    ]


def test_usage_of_several_sources_is_told_apart(old: OpenedLedger) -> None:
    found = old.records.get("a1")
    charged = old.records.charged("user", "ann", datetime.fromtimestamp(1767312000, UTC))
    assert found is not None
    assert (
        found.meter,
        found.usage.source,
        found.usage.turns,
        found.usage_by_source["stream"].turns,
    ) == ("claude", "report", 3, 2)
    assert charged == 0.25


def test_calls_are_read_as_they_were_written(old: OpenedLedger) -> None:
    made, refused = old.records.calls("a1", (0.0, 0), 9)
    rest = old.records.calls("a1", (made.time.timestamp(), made.number), 9)
    assert rest == [refused]
    assert (made.run_id, made.state, made.model, made.cost_usd, made.clamped_to) == (
        "a1",
        "ended",
        "claude-sonnet-4-5",
        0.25,
        4096,
    )
    assert (made.streamed, made.partial, made.estimated, made.at_most) == (True, False, True, False)
    assert (made.served, made.price_from, made.modes) == (
        "claude-opus-4-8",
        "claude-opus-4-8",
        {"image": (60, 0)},
    )
    assert (made.waited_s, made.first_byte_s, made.elapsed_s) == (0.25, 0.5, 1.5)
    assert (refused.refused, refused.more, refused.input_tokens) == (
        "not reserved: 0.3 USD more",
        7,
        None,
    )
    assert old.records.count_calls("a1") == (1, 8)


@pytest.mark.parametrize("version", [1, schema.VERSION + 1])
def test_the_ledger_of_an_unreleased_build_is_kept_and_the_daemon_says_what_to_do(
    tmp_path: Path, version: int
) -> None:
    """Builds before the first release had versions 1 to 6, of other tables."""
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
        script = (
            f"PRAGMA application_id = {schema.APPLICATION_ID}; PRAGMA user_version = {version}; "
            "CREATE TABLE runs (number);"
        )
        connection.executescript(script)
    before = (tmp_path / "ledger.db").read_bytes()
    if version > schema.VERSION:
        with pytest.raises(
            LedgerTooNew, match="choose another state directory, or move the file away"
        ):
            OpenedLedger(tmp_path)
        kept = tmp_path / "ledger.db"
    else:
        ledger = OpenedLedger(tmp_path)
        ledger.close()
        [kept] = tmp_path.glob("ledger.db.corrupt-*")
        assert f"it was set aside as {kept.name}, and a new one was begun" in ledger.notes[0]
    assert kept.read_bytes() == before


def test_a_failed_migration_leaves_the_version_before(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.migrate(connection)
    monkeypatch.setattr(
        schema, "MIGRATIONS", (*schema.MIGRATIONS, "CREATE TABLE half (x); CREATE TABLE runs (y);")
    )
    monkeypatch.setattr(schema, "VERSION", schema.VERSION + 1)
    with pytest.raises(sqlite3.OperationalError):
        schema.migrate(connection)
    assert schema.version_of(connection) == schema.VERSION - 1
    assert connection.execute(
        "SELECT count(*) FROM sqlite_schema WHERE name = 'half'"
    ).fetchone() == (0,)
    connection.close()
