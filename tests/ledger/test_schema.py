"""The versions of the schema: which are known, and what a migration that fails leaves.

tests/frozen/ has a ledger of each release, which must load.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from sfad.storage.ledger import LedgerUnknown, OpenedLedger, schema
from sfad.storage.ledger.schema import VERSION


@pytest.mark.parametrize("version", [1, min(schema.MIGRATIONS) - 1, VERSION + 1])
def test_a_ledger_of_a_version_that_is_not_known_is_left_alone(
    tmp_path: Path, version: int
) -> None:
    before = _ledger(tmp_path, version)
    with pytest.raises(LedgerUnknown, match="choose another state directory, or move the file"):
        OpenedLedger(tmp_path)
    assert (tmp_path / "ledger.db").read_bytes() == before


def test_a_ledger_of_other_tables_is_set_aside(tmp_path: Path) -> None:
    before = _ledger(tmp_path, VERSION)
    ledger = OpenedLedger(tmp_path)
    ledger.close()
    [kept] = tmp_path.glob("ledger.db.corrupt-*")
    assert f"it was set aside as {kept.name}, and a new one was begun" in ledger.notes[0]
    assert kept.read_bytes() == before


def _ledger(directory: Path, version: int) -> bytes:
    """Make a ledger of this version with another table. Return its bytes."""
    with closing(sqlite3.connect(directory / "ledger.db")) as connection:
        connection.executescript(
            f"PRAGMA application_id = {schema.APPLICATION_ID}; PRAGMA user_version = {version}; "
            "CREATE TABLE runs (number);"
        )
    return (directory / "ledger.db").read_bytes()


def test_a_table_that_was_altered_is_like_one_that_was_made_so() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        schema.migrate(connection)
        text = connection.execute("SELECT sql FROM sqlite_schema WHERE name = 'runs'").fetchone()[0]
        connection.execute("ALTER TABLE runs DROP COLUMN checks")
        connection.execute("ALTER TABLE runs ADD COLUMN checks TEXT")
        altered = connection.execute("SELECT sql FROM sqlite_schema WHERE name = 'runs'").fetchone()
        assert altered[0] != text
        assert schema.check_ours(connection) == []


def test_a_failed_migration_leaves_the_version_before(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        schema.migrate(connection)
        connection.executescript(
            "INSERT INTO events VALUES (1, 0, 'x', 'low', NULL, NULL, '{}');"
            "INSERT INTO events VALUES (2, 0, 'x', 'low', NULL, NULL, '{}');"
        )
        fails = {VERSION + 1: "CREATE TABLE half (x); CREATE UNIQUE INDEX one ON events (type);"}
        monkeypatch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS | fails)
        monkeypatch.setattr(schema, "VERSION", VERSION + 1)
        with pytest.raises(sqlite3.IntegrityError):
            schema.migrate(connection)
        assert schema.version_of(connection) == VERSION
        half = "SELECT count(*) FROM sqlite_schema WHERE name = 'half'"
        assert connection.execute(half).fetchone() == (0,)
