"""Tables, what the columns of runs are, and the migrations that lead to the tables: from an empty
file to the schema of 1.0, and later on to the next.

`PRAGMA user_version` is the version of the schema. The schema of 1.0 and a released migration are
never edited: a change is a new entry of `MIGRATIONS`. tests/frozen/ keeps a ledger of each release,
which must always load.
"""

import re
import sqlite3
from contextlib import closing
from functools import cache

from .database import LedgerUnknown, corrupt

APPLICATION_ID = 0x73666164
"""`sfad` in ASCII, in the file's header: tells our file from another program's database."""

# Each index costs every run a page or two in the log, so there are only those that a frequent query
# walks:
# - `id` has none: it says the same as `number`. Its column is for people and for joins with
#   `parent_id`.
# - `runs_status` also finds the live runs. It has `created_at`, so that a search by time reads
#   matching rows only.
# - A root is found by its number, so `runs_root` and `runs_parent` have only descendants.
# - `runs_created` leads a search by time to its first row, and tells when there is no more; its
#   entries are added at the end and never move.
# - `runs_uid`: a user who asks for a page of own runs must not walk those of all others.
# - `events_breaches` has the few events that a summary asks for.
# - None has `ended`, so that a run's end moves one entry. Columns that filter without an index
#   stand first in the row: they are read without following a long command line to its overflow
#   pages.
# Few runs have a group or are sessions: `marks` finds these, and costs the others nothing. `owners`
# has each pair of a user's name and a uid (-1: unknown) that a run has had, so that the runs of a
# user are found by `runs_uid`; a run adds one only if it is new. `type`, `channel` and `model` have
# no index: most runs share a few values, of which a page is full soon, and a search for a rare one
# walks the table page by page.
# Sums need columns: `cost_usd`, `tokens`, `partial` and `at_most` are those of the usage that is
# shown. The key of `calls` has the order in which calls are shown, and tells a call from all
# others, so that its row can be written again. AUTOINCREMENT would rewrite a page at every insert.
# The highest number is kept only when its row is deleted.
_FIRST = """
CREATE TABLE runs (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    status TEXT NOT NULL,
    ended INTEGER NOT NULL,
    created_at REAL NOT NULL,
    uid INTEGER,
    user TEXT NOT NULL,
    name TEXT NOT NULL,
    parent_id TEXT,
    root_id TEXT NOT NULL,
    channel TEXT NOT NULL,
    depth INTEGER NOT NULL,
    chain TEXT NOT NULL,
    kind TEXT NOT NULL,
    type TEXT,
    meter TEXT,
    worktree TEXT,
    branch TEXT,
    argv TEXT NOT NULL,
    cwd TEXT NOT NULL,
    labels TEXT NOT NULL,
    mode TEXT,
    allowed_tools TEXT NOT NULL,
    blocked_tools TEXT NOT NULL,
    reason TEXT,
    exit_code INTEGER,
    signal INTEGER,
    attempts INTEGER NOT NULL,
    limits TEXT NOT NULL,
    usage TEXT NOT NULL,
    plans TEXT NOT NULL,
    cost_usd REAL,
    tokens INTEGER,
    partial INTEGER NOT NULL,
    at_most INTEGER NOT NULL,
    descendants INTEGER NOT NULL,
    milestone TEXT,
    pid INTEGER,
    pid_started INTEGER,
    boot_id TEXT,
    model TEXT,
    provider TEXT,
    result_head BLOB,
    deadline REAL,
    started_at REAL,
    ended_at REAL,
    refusals_counted INTEGER NOT NULL DEFAULT 0,
    queue_group TEXT,
    continues TEXT,
    continued_by TEXT,
    session_id TEXT,
    fleet TEXT,
    stopped_children TEXT,
    task TEXT,
    request BLOB,
    checks TEXT
);
CREATE INDEX runs_parent ON runs (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX runs_root ON runs (root_id, number) WHERE parent_id IS NOT NULL;
CREATE INDEX runs_name ON runs (name, number);
CREATE INDEX runs_status ON runs (status, number, created_at);
CREATE INDEX runs_created ON runs (created_at);
CREATE INDEX runs_uid ON runs (uid, number);
CREATE TABLE labels (
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (key, value, number)
) WITHOUT ROWID;
CREATE TABLE events (
    seq INTEGER PRIMARY KEY,
    time REAL NOT NULL,
    type TEXT NOT NULL,
    severity TEXT NOT NULL,
    run_id TEXT,
    root_id TEXT,
    body TEXT NOT NULL
);
CREATE INDEX events_breaches ON events (time) WHERE type = 'limit_exceeded';
CREATE TABLE deleted (
    name TEXT PRIMARY KEY,
    highest INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO deleted VALUES ('runs', 0), ('events', 0);
CREATE TRIGGER runs_deleted AFTER DELETE ON runs
    WHEN OLD.number > (SELECT ifnull(max(number), 0) FROM runs) BEGIN
    UPDATE deleted SET highest = max(highest, OLD.number) WHERE name = 'runs';
END;
CREATE TRIGGER events_deleted AFTER DELETE ON events
    WHEN OLD.seq > (SELECT ifnull(max(seq), 0) FROM events) BEGIN
    UPDATE deleted SET highest = max(highest, OLD.seq) WHERE name = 'events';
END;
CREATE TABLE budgets (
    scope TEXT NOT NULL,
    name TEXT NOT NULL,
    period_start REAL NOT NULL,
    charged_usd REAL NOT NULL,
    PRIMARY KEY (scope, name, period_start)
) WITHOUT ROWID;
CREATE TABLE plans (
    provider TEXT NOT NULL,
    account TEXT NOT NULL,
    heard_at REAL NOT NULL,
    known TEXT NOT NULL,
    PRIMARY KEY (provider, account)
) WITHOUT ROWID;
CREATE TABLE calls (
    run INTEGER NOT NULL,
    time REAL NOT NULL,
    number INTEGER NOT NULL,
    state TEXT NOT NULL,
    upstream TEXT NOT NULL,
    model TEXT,
    input_tokens INTEGER,
    cached_tokens INTEGER,
    cache_write_tokens INTEGER,
    output_tokens INTEGER,
    cost_usd REAL,
    partial INTEGER NOT NULL,
    estimated INTEGER NOT NULL,
    at_most INTEGER NOT NULL,
    status INTEGER,
    clamped_to INTEGER,
    refused TEXT,
    error TEXT,
    streamed INTEGER NOT NULL,
    reserved_input INTEGER,
    reserved_output INTEGER,
    tools INTEGER NOT NULL,
    waited_s REAL,
    first_byte_s REAL,
    elapsed_s REAL,
    path TEXT,
    more INTEGER NOT NULL,
    served TEXT,
    price_from TEXT,
    modes TEXT,
    PRIMARY KEY (run, time, number)
) WITHOUT ROWID;
CREATE TABLE owners (
    user TEXT NOT NULL,
    uid INTEGER NOT NULL,
    PRIMARY KEY (user, uid)
) WITHOUT ROWID;
CREATE TABLE marks (
    kind TEXT NOT NULL,
    value TEXT NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (kind, value, number)
) WITHOUT ROWID;
CREATE TRIGGER runs_owner AFTER INSERT ON runs
    WHEN NOT EXISTS (SELECT 1 FROM owners WHERE user = NEW.user AND uid = ifnull(NEW.uid, -1)) BEGIN
    INSERT INTO owners VALUES (NEW.user, ifnull(NEW.uid, -1));
END;
CREATE TRIGGER runs_marked AFTER INSERT ON runs
    WHEN NEW.queue_group IS NOT NULL OR NEW.mode IS 'session' BEGIN
    INSERT INTO marks SELECT 'group', NEW.queue_group, NEW.number
        WHERE NEW.queue_group IS NOT NULL;
    INSERT INTO marks SELECT 'mode', 'session', NEW.number WHERE NEW.mode IS 'session';
END;
CREATE TRIGGER runs_unmarked AFTER DELETE ON runs
    WHEN OLD.queue_group IS NOT NULL OR OLD.mode IS 'session' BEGIN
    DELETE FROM marks WHERE kind = 'group' AND value = OLD.queue_group AND number = OLD.number;
    DELETE FROM marks WHERE kind = 'mode' AND value = OLD.mode AND number = OLD.number;
END;
"""

# ---- Where the columns of a run come from: fields of `RunInfo`, as they are or as JSON, fields of
# `rows.RunExtra`, and what `rows` computes

# set at admission
FIXED_INFO = (
    "id", "user", "channel", "parent_id", "root_id", "depth", "kind", "name", "type", "cwd",
    "meter", "worktree", "branch", "continues", "task",
)  # fmt: skip
FIXED_JSON = ("chain", "argv", "labels", "allowed_tools", "blocked_tools")
FIXED_EXTRA = ("uid", "mode")
# written with every state
STATE_INFO = (
    "exit_code", "signal", "attempts", "descendants", "milestone", "pid", "session_id", "model",
    "provider",
)  # fmt: skip
STATE_TIMES = ("deadline", "started_at", "ended_at")
STATE_JSON = ("limits", "plans")
STATE_OPTIONAL = ("reason", "fleet", "stopped_children")
"""As JSON, if there is such a thing."""

_FIXED = ("number", "created_at", "queue_group", *FIXED_INFO, *FIXED_JSON, *FIXED_EXTRA)
_STATE = (
    *STATE_OPTIONAL, *STATE_JSON, "usage", "status", "ended", "cost_usd", "tokens", "partial",
    "at_most", "boot_id", "result_head", "checks", *STATE_INFO, *STATE_TIMES, "pid_started",
)  # fmt: skip
_WRITTEN_COLUMNS = (*_FIXED, *_STATE)
READ_COLUMNS = (*_WRITTEN_COLUMNS, "continued_by")
"""Without `request`, which is large and which only `rerun` and `continue` read. `continued_by` is
written with the other run."""
RUN_COLUMNS = (*_WRITTEN_COLUMNS, "request")
STATE_COLUMNS = ("number", *_STATE)

TAKEN = (
    "json_valid(runs.fleet) AND json_extract(runs.fleet, '$.run') != '' AND "
    "json_extract(runs.fleet, '$.node') NOT IN (SELECT value FROM json_each(?))"
)
"""That a run was executed on another machine, and not on one of this list."""


# ---- Migrations

MIGRATIONS = {3: _FIRST}
"""By the version that each leads to, in order; the first begins with an empty file. The schema of
1.0 is version 3: earlier ones were never released."""

VERSION = max(MIGRATIONS)


def version_of(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


Objects = dict[tuple[str, str, str], str]
"""The SQL of a schema's objects, with single spaces, by type, name and table."""

_SPACES = re.compile(r" ?([(),]) ?")
"""Spaces that ALTER TABLE and a script write differently."""

_DROPPED_AT_MOST = 100


def migrate(connection: sqlite3.Connection) -> list[str]:
    """Bring the file to `VERSION`. Each step is one transaction, so that a crash leaves a whole
    version.

    Drop triggers and indices that another program, such as a database browser, has put on our
    tables, because they would act or fail in our writes. Return their types and names. Raises as
    `check_ours` does, and then changes nothing."""
    dropped = check_ours(connection)
    for kind, name in dropped:
        quoted = name.replace('"', '""')
        connection.execute(f'DROP {kind} "{quoted}"')
    before = version_of(connection)
    for version in (each for each in MIGRATIONS if each > before):
        _apply(connection, version)
    return [f"{kind} {name}" for kind, name in dropped]


def check_ours(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """Return type and name of the triggers and indices on our tables that are not ours. Changes
    nothing.

    Raises `LedgerUnknown` for the ledger of another build, and `sqlite3.DatabaseError`, as for a
    damaged file, if the file is not a ledger, or if one of its tables, columns, indices or triggers
    is missing or changed."""
    version = version_of(connection)
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    found = _objects(connection)
    if application != APPLICATION_ID and (found or version):
        raise corrupt("it is a database of another program")
    if version < 0:
        raise corrupt(f"its schema has version {version}")
    if version and version not in MIGRATIONS:
        raise LedgerUnknown(
            f"its schema is version {version}, and this build knows "
            f"{' and '.join(map(str, MIGRATIONS))}: run the sfad that wrote it, choose another "
            "state directory, or move the file away"
        )
    ours = _ours(version)
    changed = sorted(
        name for (kind, name, table), sql in ours.items() if found.get((kind, name, table)) != sql
    )
    tables = {table for _, _, table in _ours(VERSION)}
    others = [(kind, name) for kind, name, table in found.keys() - ours.keys() if table in tables]
    if (
        changed
        or len(others) > _DROPPED_AT_MOST
        or any(kind not in ("trigger", "index") for kind, _ in others)
    ):
        raise corrupt(
            f"its schema is not that of version {version}: "
            f"{', '.join(changed[:5] or [name for _, name in others[:5]])}"
        )
    return sorted(others)


def _objects(connection: sqlite3.Connection) -> Objects:
    sql = (
        "SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE substr(name, 1, 7) != 'sqlite_'"
    )
    return {
        (kind, name, table): _SPACES.sub(r"\1", " ".join((text or "").split()))
        for kind, name, table, text in connection.execute(sql)
    }


@cache
def _ours(version: int) -> Objects:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for each, step in MIGRATIONS.items():
            if each <= version:
                connection.executescript(step)
        return _objects(connection)


def _apply(connection: sqlite3.Connection, version: int) -> None:
    # executescript() first commits an open transaction, so BEGIN must be part of the script
    steps = (
        f"PRAGMA application_id = {APPLICATION_ID};{MIGRATIONS[version]}PRAGMA "
        f"user_version = {version};"
    )
    try:
        connection.executescript(f"BEGIN IMMEDIATE;{steps}COMMIT;")
    except sqlite3.Error:
        if connection.in_transaction:
            connection.rollback()
        raise
