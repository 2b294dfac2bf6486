"""A ledger with as many runs as asked for, made by SQL: a million take half a minute."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from sfad.core.state.run import run_id
from sfad.protocol.types import Event, Status
from sfad.storage.ledger.rows import RunExtra, event_op, insert_op, statements
from sfad.storage.ledger.schema import RUN_COLUMNS, migrate

from . import samples

EVERY = 2.0
"""Seconds from one run to the next. The newest was created when the ledger was made."""

_VALUES = {
    "number": "n",
    "id": "run_id(n)",
    "root_id": "run_id(n - (n - 1) % 4)",
    "parent_id": "iif(n % 4 = 1, NULL, run_id(n - (n - 1) % 4))",
    "depth": "n % 4 != 1",
    "descendants": "iif(n % 4 = 1, 3, 0)",
    "status": (
        "CASE WHEN n % 10 = 0 THEN 'failed' WHEN n % 1000 = 7 THEN 'lost' "
        "WHEN n % 100 = 3 THEN 'timeout' ELSE 'completed' END"
    ),
    "created_at": f":now - (:runs - n) * {EVERY}",
    "started_at": f":now - (:runs - n) * {EVERY}",
    "ended_at": f":now - (:runs - n) * {EVERY} + 1",
    "name": "iif(n % 100000 = 5, 'rare', 'name' || (n % 100))",
    "user": "iif(n <= :runs / 1000, 'eve', iif(n % 100 = 1, 'bob', 'ann'))",
    "uid": "iif(n <= :runs / 1000, 1003, iif(n % 100 = 1, 1002, 1001))",
    "labels": "iif(n % 2, '{\"team\":\"t' || (n % 10) || '\"}', '{}')",
    "type": "iif(n % 3, 'claude', 'codex')",
    "channel": "iif(n % 50, 'cli', 'mcp')",
    "model": "iif(n % 3, 'claude-opus-4', 'gpt-5')",
    "queue_group": "iif(n % 5000 = 4, 'nightly', NULL)",
}
"""What is not the same in each row, by column."""


def fill(state: Path, runs: int, events: int = 0) -> None:
    """Write the ledger in a state directory: trees of four, one run in ten failed, three users of
    whom `eve` has only the oldest, one name in ten thousand rows of each hundred, and a name that
    is rare."""
    state.mkdir(mode=0o700, exist_ok=True)
    with closing(sqlite3.connect(state / "ledger.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")
        migrate(connection)
        add(connection, runs, events)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def add(connection: sqlite3.Connection, runs: int, events: int = 0) -> None:
    """Write the rows on a connection to an empty ledger."""
    connection.create_function("run_id", 1, run_id, deterministic=True)
    op = insert_op("admit", samples.run(status=Status.COMPLETED), RunExtra(uid=1001), None)
    sample = dict(zip(RUN_COLUMNS, op.row, strict=True))
    values = [_VALUES.get(name, f":{name}") for name in RUN_COLUMNS]
    bound = {name: value for name, value in sample.items() if name not in _VALUES}
    numbers = "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers LIMIT {})"
    connection.execute("BEGIN")
    connection.execute(
        f"INSERT INTO runs ({', '.join(RUN_COLUMNS)}) {numbers.format(':runs')} "  # noqa: S608
        f"SELECT {', '.join(values)} FROM numbers",
        bound | {"now": time.time(), "runs": runs},
    )
    connection.execute(
        "INSERT INTO labels SELECT 'team', 't' || (number % 10), number FROM runs WHERE number % 2"
    )
    if events:
        (sql, (_, _, *row)) = next(
            iter(statements([event_op(Event(type="run_finished", seq=1, time=samples.WHEN))]))
        )
        del sql
        type_, severity, _, _, body = row
        connection.execute(
            f"INSERT INTO events {numbers.format(':events')} SELECT n, "  # noqa: S608
            f":now - (:events - n) * {EVERY} * :runs / :events, "
            "iif(n % 100000 = 7, 'limit_exceeded', iif(n % 2, 'run_started', :type)), "
            "iif(n % 100000 = 7, 'high', :severity), run_id(1 + (n * :runs - 1) / :events), "
            "run_id(1 + (n * :runs - 1) / :events), :body FROM numbers",
            {
                "events": events,
                "now": time.time(),
                "runs": runs,
                "type": type_,
                "severity": severity,
                "body": body,
            },
        )
    connection.execute("COMMIT")
