"""The read side: synchronous queries on a read-only connection.

Every query is driven by an index that this module chooses, not the planner, which has no statistics here: the first
filter with an index keeps it, and the others are written `+column = ?`, which takes theirs away. Without such a filter a
page walks the table itself, newest first, and stops when it is full.

What a query reads does not depend on the ledger's size, with these exceptions, each for pages that do not fill up: `since`
walks the whole index of statuses (but no rows that do not match), `user` and `uid` walk all rows for one who has few
runs, and of two filters the first one's rows are all read where the second fits few of them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ..core.ids import run_id
from ..core.labels import fits, values_of
from ..protocol.messages import List
from ..protocol.types import Event, RunId, RunInfo, Status
from .numbers import number_of, numbers_of
from .rows import EVENT_COLUMNS, RUN_COLUMNS, RunExtra, event_of, run_extra, run_info

_COLUMNS = ", ".join(f"runs.{name}" for name in RUN_COLUMNS)

_BELOW = (
    "runs.number IN (WITH RECURSIVE below(id, number) AS (SELECT id, number FROM runs WHERE number = ? UNION ALL "
    "SELECT child.id, child.number FROM below JOIN runs AS child ON child.parent_id = below.id) SELECT number FROM below)"
)

_OUT_OF_ORDER = 100
"""Rows in succession that are older than what is looked for, before the rest is taken for older, too: while the clock was set
back, runs were given earlier times than those before them."""

_ENDED = [status for status in Status if status.terminal]

LIVE = f"runs.status IN ({', '.join(repr(status.value) for status in Status if not status.terminal)})"
"""The condition that a run has not ended; `runs_status` is its index."""


@dataclass(frozen=True, slots=True)
class Page:
    """What a list asks for, and what its peer may see of it."""

    query: List
    uid: int | None = None
    """Only runs of this user."""
    within: RunId | None = None
    """Only this run and its descendants."""

    def admits(self, info: RunInfo, extra: RunExtra) -> bool:
        """The same filters in Python, for runs that are not in the file yet; `within` is the caller's to check."""
        query = self.query
        return (
            (not query.status or info.status in query.status)
            and query.name in (None, info.name)
            and query.user in (None, info.user)
            and query.root in (None, info.root_id)
            and (query.since is None or info.created_at.timestamp() >= query.since)
            and fits(query.labels, info.labels)
            and self.uid in (None, extra.uid)
        )


class Reader:
    """Queries on one read-only connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def get(self, run: RunId) -> tuple[RunInfo, RunExtra] | None:
        """One run."""
        row = self._row(f"SELECT {_COLUMNS} FROM runs WHERE number = ?", number_of(run))  # noqa: S608
        return None if row is None else (run_info(row), run_extra(row))

    def parent(self, run: RunId) -> RunId | None:
        """The parent's id; `None` for a root and for an unknown run."""
        row = self._row("SELECT parent_id FROM runs WHERE number = ?", number_of(run))
        return None if row is None else row[0]

    def charged(self, scope: str, name: str, period_start: float) -> float:
        """USD that a budget was charged in the period that began then."""
        sql = "SELECT charged_usd FROM budgets WHERE scope = ? AND name = ? AND period_start = ?"
        row = self._row(sql, scope, name, period_start)
        return 0.0 if row is None else float(row[0])

    def find(self, prefix: str, limit: int) -> list[RunId]:
        """Ids that begin with `prefix`, in order of admission."""
        numbers = numbers_of(prefix)
        if numbers is None:
            return []
        sql = "SELECT number FROM runs WHERE number BETWEEN ? AND ? ORDER BY number LIMIT ?"
        return [run_id(row[0]) for row in self._connection.execute(sql, (*numbers, limit))]

    def open_runs(self) -> list[RunInfo]:
        """Rows that are not terminal, oldest first."""
        sql = f"SELECT {_COLUMNS} FROM runs INDEXED BY runs_status WHERE {LIVE} ORDER BY number"  # noqa: S608
        return [run_info(row) for row in self._connection.execute(sql)]

    def root_spawns(self, since: float) -> list[tuple[str, datetime]]:
        """User and time of roots admitted after `since`, in order of admission."""
        sql = "SELECT created_at, parent_id, status, user FROM runs ORDER BY number DESC"
        found, older = [], 0
        for created_at, parent, status, user in self._connection.execute(sql):
            older = older + 1 if created_at <= since else 0
            if older > _OUT_OF_ORDER:
                break
            if not older and parent is None and not status.startswith("rejected_"):
                found.append((user, datetime.fromtimestamp(created_at, UTC)))
        return found[::-1]

    def select(self, page: Page) -> list[RunInfo]:
        """The page's runs, in no order; terminal ones may be more than `rows`, and the newest `rows` are among them."""
        return [run_info(row) for sql, values in queries(page) for row in self._connection.execute(sql, values)]

    def events(self, since: int, limit: int) -> list[Event]:
        """Events numbered above `since`, in order."""
        sql = f"SELECT {', '.join(EVENT_COLUMNS)} FROM events WHERE seq > ? ORDER BY seq LIMIT ?"  # noqa: S608
        return [event_of(row) for row in self._connection.execute(sql, (since, limit))]

    def newest_event_before(self, moment: float) -> float | None:
        """When the newest event happened that is not after `moment`, both in seconds since the epoch. Walks what is after it."""
        row = self._row("SELECT time FROM events WHERE time <= ? ORDER BY seq DESC LIMIT 1", moment)
        return None if row is None else float(row[0])

    def ends(self, runs: Sequence[RunId]) -> dict[RunId, float | None]:
        """When these runs ended, in seconds since the epoch; `None` for those that have not. Unknown ones are missing."""
        marks = ", ".join("?" * len(runs))
        sql = f"SELECT id, ended, ifnull(ended_at, created_at) FROM runs WHERE number IN ({marks})"  # noqa: S608
        rows = self._connection.execute(sql, [number_of(run) for run in runs])
        return {run: at if ended else None for run, ended, at in rows}

    def last(self, table: str, key: str) -> int:
        """The highest number ever given out in a table, deleted rows included."""
        sql = f"SELECT max(highest, (SELECT ifnull(max({key}), 0) FROM {table})) FROM deleted WHERE name = ?"  # noqa: S608
        return int(self._row(sql, table)[0])

    def size(self) -> int:
        """Bytes of the database, its WAL not counted."""
        pages, size = (self._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
        return int(pages) * int(size)

    def _row(self, sql: str, *values: Any) -> Any:
        return self._connection.execute(sql, values).fetchone()


@dataclass(frozen=True, slots=True)
class _Term:
    """One condition. `driving` is how it is written where its index is to be used."""

    plain: str
    values: tuple[Any, ...]
    driving: str | None = None
    source: str = "runs"
    also: _Term | None = None
    """What finds the row that fits but is not in the index."""


def queries(page: Page) -> Iterator[tuple[str, list[Any]]]:
    """The SQL of a page: live and ended runs apart, or one query a status, so that each stops at its own limit."""
    statuses: Iterable[Status] = dict.fromkeys(page.query.status)
    if not statuses:
        yield _live_query(page, _Term(LIVE, ()))
        if page.query.since is None or _driving(_filters(page)) is not None:
            yield from _ended_queries(page)
        else:
            # no index is sorted by time, but that of the statuses holds it: rows that are too old are not even read
            statuses = _ENDED
    for status in statuses:
        term = _column("status", status.value)
        if status.terminal:
            yield from _ended_queries(page, term)
        else:
            yield _live_query(page, _Term("runs.status = ?", (status.value,)))


def _live_query(page: Page, status: _Term) -> tuple[str, list[Any]]:
    # live runs are few: their statuses are the best index whatever else is asked
    return _sql("runs INDEXED BY runs_status", [status, *_filters(page)])


def _ended_queries(page: Page, *status: _Term) -> Iterator[tuple[str, list[Any]]]:
    terms = [*_filters(page), *status, _Term("runs.ended = 1", ())]
    first = _driving(terms)
    if first is None:
        yield _sql("runs", terms, _newest("runs", page))
        return
    others = [term for term in terms if term is not first]
    if first.also is not None:
        yield _sql("runs", [first.also, *others])
    # the two numbers are equal, but SQLite sorts anew unless the order is that of the table it walks
    walked = first.source.partition(" ")[0]
    yield _sql(first.source, [_Term(first.driving or "", first.values), *others], _newest(walked, page))


def _driving(terms: Iterable[_Term]) -> _Term | None:
    return next((term for term in terms if term.driving is not None), None)


def _newest(walked: str, page: Page) -> str:
    return f" ORDER BY {walked}.number DESC LIMIT {max(0, page.query.rows)}"


def _sql(source: str, terms: list[_Term], order: str = "") -> tuple[str, list[Any]]:
    where = " AND ".join(term.plain for term in terms)
    sql = f"SELECT {_COLUMNS} FROM {source} WHERE {where}{order}"  # noqa: S608
    return sql, [value for term in terms for value in term.values]


def _column(name: str, value: Any) -> _Term:
    return _Term(f"+runs.{name} = ?", (value,), f"runs.{name} = ?")


def _root(root: RunId) -> _Term:
    itself = _Term("runs.number = ? AND +runs.root_id = ?", (number_of(root), root))
    return _Term("+runs.root_id = ?", (root,), "runs.root_id = ? AND runs.parent_id IS NOT NULL", also=itself)


def _label(key: str, values: Sequence[str]) -> _Term:
    marks = ", ".join("?" * len(values))
    exists = f"EXISTS (SELECT 1 FROM labels AS l WHERE l.key = ? AND l.value IN ({marks}) AND l.number = runs.number)"  # noqa: S608
    source = "labels CROSS JOIN runs ON runs.number = labels.number"
    return _Term(exists, (key, *values), f"labels.key = ? AND labels.value IN ({marks})", source)


def _filters(page: Page) -> Iterator[_Term]:
    """What the page asks for, the most selective first."""
    query = page.query
    if page.within is not None:
        yield _Term(f"+{_BELOW}", (number_of(page.within),), _BELOW)
    if query.root is not None:
        yield _root(query.root)
    yield from (_label(key, values_of(value)) for key, value in query.labels.items())
    if query.name is not None:
        yield _column("name", query.name)
    if page.uid is not None:
        yield _Term("runs.uid = ?", (page.uid,))
    if query.user is not None:
        yield _Term("runs.user = ?", (query.user,))
    if query.since is not None:
        yield _Term("runs.created_at >= ?", (query.since,))
