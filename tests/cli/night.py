"""A ledger with 700 runs: each seventh is a root with six children."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sfad.core.state.run import run_id
from sfad.protocol.types import Event, Reason, RunInfo, Status, Usage
from sfad.storage.ledger import RunExtra
from sfad.storage.ledger.rows import event_op, insert_op, statements
from sfad.storage.ledger.schema import migrate
from tests.ledger import samples

ROWS = 700


def fill(state: Path) -> None:
    """Write the ledger. Its newest run was created now, and each earlier one a minute before."""
    now = datetime.now(UTC)
    state.mkdir(mode=0o700, exist_ok=True)
    runs = [of_night(number, now) for number in range(1, ROWS + 1)]
    operations = [insert_op("admit", info, RunExtra(uid=0), None) for info in runs]
    breaches = [
        Event(
            type="limit_exceeded",
            seq=n,
            time=info.created_at,
            run_id=info.id,
            limit_kind="turns",
            used=26.0,
            threshold=25.0,
        )
        for n, info in enumerate((runs[199], runs[698]), start=1)
    ]
    with closing(sqlite3.connect(state / "ledger.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        migrate(connection)
        connection.execute("BEGIN")
        for sql, values in statements([*operations, *map(event_op, breaches)]):
            connection.execute(sql, values)
        connection.execute("COMMIT")


def of_night(number: int, now: datetime) -> RunInfo:
    """Return one run. Each costs 0.25 USD; each hundredth failed."""
    child = number % 7 != 1
    root = run_id(number - (number - 1) % 7)
    failed = number % 100 == 0
    return samples.run(
        number,
        parent_id=root if child else None,
        root_id=root,
        depth=int(child),
        descendants=0 if child else 6,
        model="big" if child else "small",
        status=Status.FAILED if failed else Status.COMPLETED,
        reason=Reason(kind="exit", message="exited with 3") if failed else None,
        exit_code=3 if failed else 0,
        name="clerk" if child else "boss",
        labels={"shift": "late" if number % 2 else "early", "n": str(number % 10)},
        usage=Usage(cost_usd=0.25, tokens=100, partial=number == 2, source="stream"),
        created_at=now - timedelta(minutes=ROWS - number),
        started_at=now - timedelta(minutes=ROWS - number),
        ended_at=now - timedelta(minutes=ROWS - number),
    )
