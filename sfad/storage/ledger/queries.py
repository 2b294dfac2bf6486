"""Synchronous queries on a read-only connection.

This module chooses the index of each query, because SQLite's planner has no statistics here. One
filter with an index drives the query; the others are written `+column = ?`, which hides their
indices from the planner. Without such a filter a page walks the table itself. A page that is not
full at once is read by the index that leads farthest.

What a page reads does not depend on the ledger's size: it walks at most `MAX_WALKED` rows or
entries of the driving index, and ends there even if few rows match. The next page goes on from
there. Only a tree is walked whole, because the guard bounds its size.

Pages lead from the newest run to the oldest, or with `List.after` from the oldest to the newest:
the second way a client shows a list with the newest run last without holding it.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from itertools import accumulate
from operator import itemgetter
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...core.state.access import Scope, means, values_of
from ...core.state.run import run_id
from ...protocol.framing import pack
from ...protocol.messages import List
from ...protocol.types import CallInfo, Event, RunId, RunInfo, Status
from .rows import (
    CALL_COLUMNS,
    EVENT_COLUMNS,
    SESSION,
    RunExtra,
    Used,
    call_of,
    event_of,
    number_of,
    numbers_of,
    run_extra,
    run_info,
)
from .schema import READ_COLUMNS

_COLUMNS = ", ".join(f"runs.{name}" for name in READ_COLUMNS)

_BELOW = (
    "runs.number IN (WITH RECURSIVE below(id, number) AS (SELECT id, number FROM runs "
    "WHERE number = ? UNION ALL SELECT child.id, child.number FROM below JOIN runs AS child "
    "ON child.parent_id = below.id) SELECT number FROM below)"
)

MAX_WALKED = 5000
"""Rows, or entries of an index, that a page walks at most: 5 ms if none of them matches."""

CALLS = 250
"""Calls in one page, some 3 ms."""

MOST_BELOW = 20_000
"""Descendants of the ended runs in a page. The totals of each run are summed from their rows, in
some 5 µs a row."""

MAX_PAGES = 16
"""Pages that are held, of 1000 runs each in some 100 KB; and times, see `Reader._lowest`."""

MAX_TIMES = 100_000
"""Entries of the index of times that a page walks at most: 5 ms."""

MAX_UIDS = 8
"""Uids of one user's name that are looked up by their index; with more, all runs are walked."""

MAX_EVENTS = 100_000
"""Events that are searched at once: 20 ms."""

_NO_NUMBER = 2**63 - 1

LIVE = (
    f"runs.status IN ({', '.join(repr(status.value) for status in Status if not status.terminal)})"
)


OPEN_RUNS = f"SELECT {_COLUMNS} FROM runs INDEXED BY runs_status WHERE {LIVE} ORDER BY number"  # noqa: S608
"""Selects `READ_COLUMNS` of the runs that the ledger shows as live, oldest first."""

_HIGHEST_TIME = 253402300800
"""The end of the year 9999, the last one that `datetime` has. To SQLite a text, as in a damaged
row, is higher."""
_CREATED_AFTER = f"created_at > ? AND created_at < {_HIGHEST_TIME}"


class Page(Struct, frozen=True):
    """What a request for a list asks for, and what its caller may see of it."""

    query: List
    """Its `root` is not looked at: see `within`."""
    scope: Scope
    within: RunId | None = None
    """Only this run and its descendants."""
    started: bool = False
    """Only runs whose command was executed."""

    @property
    def up(self) -> bool:
        """Whether pages lead from the oldest run to the newest."""
        return self.query.after is not None

    @property
    def first(self) -> bool:
        return self.query.before is None and not self.query.after

    @property
    def start(self) -> int:
        """The number beyond which the page begins."""
        if self.query.after is not None:
            return number_of(self.query.after)
        return _NO_NUMBER if self.query.before is None else number_of(self.query.before)

    @property
    def needs_lineage(self) -> bool:
        return self.within is not None or self.scope.run is not None

    def admits(self, info: RunInfo, uid: int | None, lineage: Sequence[RunId]) -> bool:
        """Apply the same filters to a run of a user that is not in the file yet. `lineage`: its
        ids, see `needs_lineage`."""
        query = self.query
        if query.before is not None and not (info.status.terminal and info.id < query.before):
            return False
        if query.after is not None and info.id <= query.after:
            return False
        return (
            (not query.status or info.status in query.status)
            and means(query.name, query.labels, info.name, info.labels)
            and query.user in (None, info.user)
            and query.group in (None, info.group)
            and _is_one_of(info.type, query.run_type)
            and _is_one_of(info.channel, query.channel)
            and _fits_one_of(info.model, query.model)
            and (info.session or not query.sessions)
            and (info.started_at is not None or not self.started)
            and (query.since is None or info.created_at.timestamp() >= query.since)
            and (self.within is None or self.within in lineage)
            and self.scope.admits(uid, lineage)
        )


def _is_one_of(value: str | None, wanted: str | Sequence[str] | None) -> bool:
    return wanted is None or value in values_of(wanted)


def _fits_one_of(value: str | None, wanted: str | Sequence[str] | None) -> bool:
    return wanted is None or (
        value is not None and any(fnmatchcase(value, _glob(one)) for one in values_of(wanted))
    )


def _glob(pattern: str) -> str:
    """Return a pattern for SQLite's GLOB and for fnmatch(3) in which only `*` has a meaning."""
    return pattern.replace("[", "[[]").replace("?", "[?]")


Ended = tuple[int, int]
"""The number of a run that has ended, and how many descendants it has. A page has a thousand of
them, so they are not objects."""


class Selection(Struct, frozen=True):
    """The runs of a page by their numbers."""

    live: list[int]
    ended: list[Ended]
    """In the order of the pages: the newest first, or the oldest."""
    reached: int = 0
    """The selection has every matching run that has ended between the start of the page and this
    number; beyond it there may be more. 0: there are no more."""

    @classmethod
    def of(cls, page: Page, live: list[int], ended: Iterable[Ended], reached: int) -> Selection:
        """Keep as many of the ended runs as the page may have, from its start to `reached`; fewer
        if they have many descendants. Of live ones keep all, or where the pages lead up, those in
        their places between the ended ones."""
        up, rows = page.up, page.query.rows
        ended = sorted(ended, reverse=not up)
        if reached and ended and (ended[-1][0] > reached if up else ended[-1][0] < reached):
            ended = [run for run in ended if (run[0] <= reached if up else run[0] >= reached)]
        if up:
            kept = sorted(number for number in live if not reached or number <= reached)
            places = sorted([*kept, *map(itemgetter(0), ended)])
            if len(places) > rows:
                reached = places[rows - 1] if rows > 0 else 0
                ended = [run for run in ended if run[0] <= reached]
                kept = [number for number in kept if number <= reached]
            live = kept
        before = list(accumulate(map(itemgetter(1), ended), initial=0))
        fitting = max(0, min(rows, bisect_right(before, MOST_BELOW)))
        if len(ended) > fitting:
            ended = ended[:fitting]
            reached = ended[-1][0] if ended else 0
            live = [number for number in live if number <= reached] if up else live
        return cls(live, ended, reached)

    @property
    def numbers(self) -> list[int]:
        """Of all, the oldest first."""
        return sorted([*self.live, *(number for number, _ in self.ended)])


class _Times:
    """How far the runs created at or after a time were looked for."""

    def __init__(self) -> None:
        self.begun = self.complete = False
        self.reached: float = 0.0
        """The time of the last entry."""
        self.lowest: int | None = None


class Reader:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._version = -1
        """Of the file's content when `_selected` was read."""
        self._selected: dict[object, Selection] = {}
        self._times: dict[float, _Times] = {}

    def close(self) -> None:
        self._connection.close()

    def get(self, run: RunId) -> tuple[RunInfo, RunExtra] | None:
        row = self._row(f"SELECT {_COLUMNS} FROM runs WHERE number = ?", number_of(run))  # noqa: S608
        return None if row is None else (run_info(row), run_extra(row))

    def request(self, run: RunId) -> bytes | None:
        """Return what a run was started with, as `RunExtra.request` has it."""
        row = self._row("SELECT request FROM runs WHERE number = ?", number_of(run))
        return row[0] if row is not None and isinstance(row[0], bytes) else None

    def owner(self, run: RunId) -> tuple[int | None] | None:
        """Return the uid of the run's user, alone in a tuple; `None` for an unknown run."""
        found: tuple[int | None] | None = self._row(
            "SELECT uid FROM runs WHERE number = ?", number_of(run)
        )
        return found

    def parent(self, run: RunId) -> RunId | None:
        """Return the parent's id; `None` for a root and for an unknown run."""
        row = self._row("SELECT parent_id FROM runs WHERE number = ?", number_of(run))
        return row[0] if row is not None and isinstance(row[0], str) else None

    def has_event(self, run: RunId, what: str) -> bool:
        """Whether one of the newest events is of this run and type. No index has an event's run."""
        sql = (
            "SELECT 1 FROM events WHERE seq > (SELECT ifnull(max(seq), 0) FROM events) - ? "
            "AND run_id = ? AND type = ? LIMIT 1"
        )
        return self._row(sql, MAX_WALKED, run, what) is not None

    def charged(self, scope: str, name: str, period_start: float) -> float:
        """Return the USD that a budget was charged in the period that began at `period_start`."""
        sql = (
            "SELECT CAST(charged_usd AS REAL) FROM budgets WHERE scope = ? AND name = ? "
            "AND period_start = ?"
        )
        row = self._row(sql, scope, name, period_start)
        return 0.0 if row is None else row[0] or 0.0

    def plans(self) -> list[str]:
        """Return what is known of each account's windows, as JSON."""
        return [row[0] for row in self._connection.execute("SELECT CAST(known AS TEXT) FROM plans")]

    def find(self, prefix: str, scope: Scope, limit: int) -> list[RunId]:
        numbers = numbers_of(prefix)
        if numbers is None:
            return []
        terms = [Term("number BETWEEN ? AND ?", numbers), *scope_terms(scope)]
        where, values = (
            " AND ".join(term.driving or term.plain for term in terms),
            [v for term in terms for v in term.values],
        )
        sql = f"SELECT number FROM runs WHERE {where} ORDER BY number LIMIT ?"  # noqa: S608
        return [run_id(row[0]) for row in self._connection.execute(sql, [*values, limit])]

    def open_runs(self) -> list[RunInfo]:
        """Return the runs that the ledger shows as live, oldest first."""
        return [run_info(row) for row in self._connection.execute(OPEN_RUNS)]

    def root_spawns(self, since: float) -> list[tuple[str, datetime]]:
        """Return user and time of each root that was admitted after `since`, by time."""
        return self._admitted_since("parent_id IS NULL", since)

    def sessions(self, since: float) -> list[tuple[str, datetime]]:
        """Return user and time of each session that was admitted after `since`, by time."""
        return self._admitted_since("mode = ?", since, SESSION)

    def _admitted_since(self, which: str, *values: object) -> list[tuple[str, datetime]]:
        # by the index of times and not from the newest row back: while the clock was set back,
        # newer rows got earlier times
        sql = (
            "SELECT user, created_at FROM runs INDEXED BY runs_created "  # noqa: S608
            f"WHERE {_CREATED_AFTER} AND {which} AND status NOT GLOB 'rejected_*' ORDER BY "
            "created_at"
        )
        return [
            (user, datetime.fromtimestamp(created, UTC))
            for user, created in self._connection.execute(sql, values)
        ]

    def ended_sessions(self, since: float) -> list[tuple[float, RunId]]:
        """Return when sessions that were created after `since` ended, and their ids, the oldest end
        first."""
        sql = (
            "SELECT ended_at, id FROM runs INDEXED BY runs_created "  # noqa: S608
            f"WHERE {_CREATED_AFTER} AND mode = ? AND ended_at < {_HIGHEST_TIME} AND status NOT "
            "GLOB 'rejected_*' ORDER BY ended_at"
        )
        return [(at, run) for at, run in self._connection.execute(sql, (since, SESSION))]

    def events_of(self, run: RunId, since: float) -> list[Event]:
        """Return the run's events, the oldest first. `since`: when it was created. No index has an
        event's run, so at most `MAX_EVENTS` of the newest events are read."""
        sql = (
            f"SELECT {', '.join(EVENT_COLUMNS)} FROM events "  # noqa: S608
            "WHERE seq > (SELECT max(seq) FROM events) - ? AND time >= ? AND run_id = ? ORDER BY "
            "seq"
        )
        return [event_of(row) for row in self._connection.execute(sql, (MAX_EVENTS, since, run))]

    def runs(self, numbers: Sequence[int]) -> list[RunInfo]:
        """Return the runs with these numbers, oldest first."""
        sql = (
            f"SELECT {_COLUMNS} FROM runs WHERE number IN ({', '.join('?' * len(numbers))}) "  # noqa: S608
            "ORDER BY number"
        )
        return [run_info(row) for row in self._connection.execute(sql, numbers)]

    def select(self, page: Page) -> Selection:
        """Return a page. While nothing is committed to the file, the same page is read once; it
        must not be changed."""
        version = self._row("PRAGMA data_version")[0]
        if version != self._version or len(self._selected) >= MAX_PAGES:
            self._version = version
            self._selected.clear()
        key = pack(page.query), page.scope, page.within, page.started
        found = self._selected.get(key)
        if found is None:
            found = self._selected[key] = self._select(page)
        return found

    def _select(self, page: Page) -> Selection:
        since = page.query.since
        lowest = self._lowest(since) if since is not None else 0
        at = page
        if page.up and lowest - 1 > page.start:
            at = replace(page, query=replace(page.query, after=run_id(lowest - 1)))
        ended: list[Ended] = []
        ends: list[int] = []
        rows, near = page.query.rows, self._near(at)
        for query in ended_queries(at, self._uids(page.query.user)):
            # most pages are full after a few rows; only the others need to know how far they may
            # walk
            end, found = near, self._connection.execute(*query.sql(at, near)).fetchall()
            if len(found) < rows and near > 0:
                query, end = self._farthest(query, at)
                found = self._connection.execute(*query.sql(at, end)).fetchall()
            ended += found
            ends.append(found[-1][0] if len(found) >= rows else end)
        reached = min(filter(None, ends), default=0) if page.up else max(ends, default=0)
        if not page.up and reached <= lowest:
            reached = 0
        live = [
            number
            for query in live_queries(at, reached)
            for (number,) in self._connection.execute(*query)
        ]
        return Selection.of(page, live, ended, reached)

    def _near(self, page: Page) -> int:
        """Return the number at which a page is full if every second run fits; 0 if there is none
        beyond it."""
        reach = min(2 * page.query.rows, MAX_WALKED)
        highest = int(self._row("SELECT ifnull(max(number), 0) FROM runs")[0])
        if page.up:
            return page.start + reach if page.start + reach < highest else 0
        return max(0, min(page.start - 1, highest) - reach)

    def _farthest(self, query: EndedQuery, page: Page) -> tuple[EndedQuery, int]:
        """Return the query by the index that leads farthest, and the last number that it looks at,
        so that it walks at most `MAX_WALKED` rows or entries; 0 if it walks all."""
        found: list[tuple[int, EndedQuery]] = []
        for each in query.by_each_index():
            sql, values = each.walk(page)
            row = self._row(sql, *values) if sql else None
            if row is None:
                return each, 0
            found.append((int(row[0]), each))
        end, best = (max if page.up else min)(found, key=itemgetter(0))
        return best, end

    def _lowest(self, since: float) -> int:
        """Return a number below which no run was created at or after a time.

        Times are not in the order of numbers while a clock was set back, so all entries of the
        index are walked from this time on, some with each page; until the last one, 0 is all that
        is known. What was found stays right: a later run has a higher number."""
        times = self._times.pop(since, None) or _Times()
        self._times[since] = times
        if len(self._times) > MAX_PAGES:
            del self._times[next(iter(self._times))]
        if not times.complete:
            # of several runs of one time, those after the last one walked have higher numbers
            sql = (
                "SELECT count(*), min(number), max(created_at) FROM (SELECT created_at, number "  # noqa: S608
                "FROM runs INDEXED BY runs_created WHERE created_at "
                f"{'>' if times.begun else '>='} ? ORDER BY created_at LIMIT {MAX_TIMES})"
            )
            at = times.reached if times.begun else since
            count, lowest, reached = self._row(sql, at)
            times.begun, times.reached = True, reached
            times.complete = count < MAX_TIMES
            times.lowest = min(filter(None, (times.lowest, lowest)), default=None)
        if not times.complete:
            return 0
        if times.lowest is None:  # it may be that of the next run
            del self._times[since]
            return int(self._row("SELECT ifnull(max(number), 0) FROM runs")[0]) + 1
        return times.lowest

    def _uids(self, user: str | None) -> list[int | None] | None:
        """Return the uids whose runs may be those of a user; `None` for all."""
        if user is None:
            return None
        rows = self._connection.execute("SELECT uid FROM owners WHERE user = ?", (user,)).fetchall()
        return [None if uid < 0 else uid for (uid,) in rows] if len(rows) <= MAX_UIDS else None

    def used_below(self, root: RunId) -> dict[RunId, Used]:
        sql = (
            "SELECT id, parent_id, cost_usd, tokens, partial, at_most "
            "FROM runs INDEXED BY runs_root WHERE root_id = ? AND parent_id IS NOT NULL"
        )
        rows = self._connection.execute(sql, (root,))
        return {
            run: Used(parent, _cost_of(cost), count_of(tokens), bool(partial), bool(at_most))
            for run, parent, cost, tokens, partial, at_most in rows
        }

    def calls(
        self, run: RunId, after: tuple[float, int] = (0.0, 0), rows: int = CALLS
    ) -> list[CallInfo]:
        """Return calls of a run in the order of their time, those after a time in seconds since the
        epoch and a number."""
        sql = (
            f"SELECT {', '.join(CALL_COLUMNS)} FROM calls WHERE run = ? "  # noqa: S608
            "AND (time, number) > (?, ?) ORDER BY time, number LIMIT ?"
        )
        return [
            call_of(row) for row in self._connection.execute(sql, (number_of(run), *after, rows))
        ]

    def count_calls(self, run: RunId, but: Iterable[tuple[float, int]] = ()) -> tuple[int, int]:
        """Return how many calls of a run were made, and how many were refused. `but`: without those
        of these times and numbers."""
        keys = list(but)
        counts = (
            "count(*) FILTER (WHERE state = 'ended'), ifnull(sum(1 + more) "
            "FILTER (WHERE state = 'refused'), 0)"
        )
        others = " AND (time, number) != (?, ?)" * len(keys)
        sql = f"SELECT {counts} FROM calls WHERE run = ?{others}"  # noqa: S608
        made, refused = self._row(sql, number_of(run), *(value for key in keys for value in key))
        return made, refused

    def last_refusal(self, run: RunId) -> str | None:
        """Return why the last refused call of a run was refused; `None` if none was."""
        sql = (
            "SELECT refused FROM calls WHERE run = ? AND state = 'refused' "
            "ORDER BY time DESC, number DESC LIMIT 1"
        )
        row = self._connection.execute(sql, (number_of(run),)).fetchone()
        return row[0] if row is not None else None

    def ends(self, runs: Sequence[RunId]) -> dict[RunId, float | None]:
        """Return when these runs ended, in seconds since the epoch; `None` for a live run. Unknown
        runs are missing."""
        marks = ", ".join("?" * len(runs))
        sql = (
            "SELECT id, ended, CAST(ifnull(ended_at, created_at) AS REAL) FROM runs "  # noqa: S608
            f"WHERE number IN ({marks})"
        )
        rows = self._connection.execute(sql, [number_of(run) for run in runs])
        return {run: at if ended else None for run, ended, at in rows}

    def owners(self, runs: Sequence[RunId]) -> dict[RunId, int | None]:
        """Return the uids of the owners of these runs. Unknown runs are missing."""
        marks = ", ".join("?" * len(runs))
        sql = f"SELECT id, uid FROM runs WHERE number IN ({marks})"  # noqa: S608
        return dict(self._connection.execute(sql, [number_of(run) for run in runs]))

    def last(self, table: str, key: str) -> int:
        """Return the highest number that a row of a table has or had."""
        sql = (
            f"SELECT ifnull(max({key}), 0) FROM {table} UNION SELECT highest FROM deleted "  # noqa: S608
            "WHERE name = ?"
        )
        return max(
            int(number)
            for (number,) in self._connection.execute(sql, (table,))
            if isinstance(number, int)
        )

    def size(self) -> int:
        pages, size = (
            self._connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "page_size")
        )
        return int(pages) * int(size)

    def _row(self, sql: str, *values: Any) -> Any:
        return self._connection.execute(sql, values).fetchone()


def count_of(value: Any) -> int | None:
    """Return a whole number of a row; `None` for anything else, as in a damaged one."""
    return value if isinstance(value, int) else None


def _cost_of(value: Any) -> float | None:
    return value if isinstance(value, float) else None


class Term(Struct, frozen=True):
    plain: str
    """Its SQL without an index."""
    values: tuple[Any, ...]
    driving: str | None = None
    """Its SQL where its index drives the query."""
    source: str = "runs"
    bounded: bool = False
    """The guard bounds how many rows match, so the query walks all of them."""


Query = tuple[str, list[Any]]
"""SQL and its values."""


class EndedQuery(Struct, frozen=True):
    terms: list[Term]
    first: Term | None = None
    """The term whose index drives it; without one it walks the table."""

    def by_each_index(self) -> Iterator[EndedQuery]:
        """Yield this query as each of its indices drives it, this one first; only this one if that
        may walk all."""
        yield self
        if self.first is None or self.first.bounded:
            return
        for term in self.terms:
            if term.driving is not None and not term.bounded:
                others = [each for each in self.terms if each is not term]
                yield EndedQuery([self.first, *others], term)

    @property
    def _source(self) -> str:
        return self.first.source if self.first is not None else "runs"

    @property
    def _number(self) -> str:
        # the two numbers are equal, but SQLite sorts again unless the order is that of the table
        # that it walks
        return f"{self._source.partition(' ')[0]}.number"

    def walk(self, page: Page) -> Query:
        """Return the query for the last row or entry that this one may walk; an empty one if it may
        walk all."""
        if self.first is not None and self.first.bounded:
            return "", []
        driving, values = (
            ("1", []) if self.first is None else (self.first.driving, self.first.values)
        )
        beyond, order = (">", "ASC") if page.up else ("<", "DESC")
        sql = (
            f"SELECT {self._number} FROM {self._source.partition(' ')[0]} WHERE {driving} "  # noqa: S608
            f"AND {self._number} {beyond} ? ORDER BY {self._number} {order} "
            f"LIMIT 1 OFFSET {MAX_WALKED}"
        )
        return sql, [*values, page.start]

    def sql(self, page: Page, end: int) -> Query:
        """Return the query from the start of the page to a number; 0: to the last run."""
        driving = [] if self.first is None else [Term(self.first.driving or "", self.first.values)]
        order = f" ORDER BY {self._number} {'ASC' if page.up else 'DESC'} LIMIT {page.query.rows}"
        return _sql(
            "runs.number, CAST(runs.descendants AS INTEGER)",
            self._source,
            [*driving, _span(self._number, page, end), *self.terms],
            order,
        )


def _span(number: str, page: Page, end: int) -> Term:
    if page.up:
        return Term(f"{number} > ? AND {number} <= ?", (page.start, end or _NO_NUMBER))
    return Term(f"{number} < ? AND {number} >= ?", (page.start, end))


def live_queries(page: Page, reached: int = 0) -> Iterator[Query]:
    """Yield the queries for the live runs of a page: of a first one, or where pages lead up, those
    between its start and `reached`.

    Live runs are few, so their statuses are the best index, whatever the other filters are."""
    if page.query.before is not None:
        return
    live = [status for status in dict.fromkeys(page.query.status) if not status.terminal]
    if page.query.status:
        terms = [Term("runs.status = ?", (status.value,)) for status in live]
    else:
        terms = [Term(LIVE, ())]
    span = [_span("runs.number", page, reached)] if page.up else []
    for term in terms:
        yield _sql("runs.number", "runs INDEXED BY runs_status", [term, *span, *filters(page)])


def ended_queries(page: Page, uids: Sequence[int | None] | None = None) -> Iterator[EndedQuery]:
    """Yield the queries for the ended runs of a page: one for each status and each of these uids,
    so that each stops at its own limit."""
    if page.query.rows <= 0:
        return
    statuses = [status for status in dict.fromkeys(page.query.status) if status.terminal]
    by_status = [(_column("status", status.value),) for status in statuses]
    by_uid = [(_uid(uid),) for uid in uids] if uids is not None else [()]
    for status in by_status if page.query.status else [()]:
        for uid in by_uid:
            yield _ended(page, *uid, *status)


def _ended(page: Page, *more: Term) -> EndedQuery:
    terms = [*filters(page), *more, Term("runs.ended = 1", ())]
    first = next((term for term in terms if term.driving is not None), None)
    return EndedQuery([term for term in terms if term is not first], first)


def _uid(uid: int | None) -> Term:
    unknown = "runs.uid IS NULL"
    return _column("uid", uid) if uid is not None else Term(unknown, (), unknown)


def _sql(columns: str, source: str, terms: list[Term], order: str = "") -> Query:
    where = " AND ".join(term.plain for term in terms)
    sql = f"SELECT {columns} FROM {source} WHERE {where}{order}"  # noqa: S608
    return sql, [value for term in terms for value in term.values]


def _column(name: str, value: Any) -> Term:
    return Term(f"+runs.{name} = ?", (value,), f"runs.{name} = ?")


_MARKS = "marks CROSS JOIN runs ON runs.number = marks.number"


def _mark(plain: str, kind: str, value: str) -> Term:
    driving = f"marks.kind = '{kind}' AND marks.value = ?"
    return Term(plain, (value,), driving, _MARKS)


def _name(names: Sequence[str]) -> Term:
    if len(names) == 1:
        return _column("name", names[0])
    # the entries of several names are not in the order of numbers
    return Term(f"+runs.name IN ({', '.join('?' * len(names))})", tuple(names))


def _label(key: str, values: Sequence[str]) -> Term:
    marks = ", ".join("?" * len(values))
    exists = (
        f"EXISTS (SELECT 1 FROM labels AS l WHERE l.key = ? AND l.value IN ({marks}) "  # noqa: S608
        "AND l.number = runs.number)"
    )
    if len(values) != 1:  # the entries of several values are not in the order of numbers
        return Term(exists, (key, *values))
    source = "labels CROSS JOIN runs ON runs.number = labels.number"
    return Term(exists, (key, *values), "labels.key = ? AND labels.value = ?", source)


def scope_terms(scope: Scope) -> Iterator[Term]:
    if scope.run is not None:
        yield Term(f"+{_BELOW}", (number_of(scope.run),), _BELOW, bounded=True)
    elif scope.uid is not None:
        yield _column("uid", scope.uid)


def filters(page: Page) -> Iterator[Term]:
    query = page.query
    if page.within is not None:
        yield Term(f"+{_BELOW}", (number_of(page.within),), _BELOW, bounded=True)
    if page.scope.run is not None:
        yield from scope_terms(page.scope)
    yield from (_label(key, values_of(value)) for key, value in query.labels.items())
    if query.name is not None:
        yield _name(values_of(query.name))
    if page.scope.run is None:
        yield from scope_terms(page.scope)
    if query.user is not None:
        yield Term("runs.user = ?", (query.user,))
    if query.group is not None:
        yield _mark("runs.queue_group = ?", "group", query.group)
    for column, wanted in (("type", query.run_type), ("channel", query.channel)):
        if wanted is not None:
            values = values_of(wanted)
            yield Term(f"runs.{column} IN ({', '.join('?' * len(values))})", values)
    if query.model is not None:
        patterns = tuple(map(_glob, values_of(query.model)))
        fits = " OR ".join("runs.model GLOB ?" for _ in patterns) or "0"
        yield Term(f"({fits})", patterns)
    if query.sessions:
        yield _mark("runs.mode = ?", "mode", SESSION)
    if page.started:
        yield Term("runs.started_at IS NOT NULL", ())
    if query.since is not None:
        yield Term("+runs.created_at >= ?", (query.since,))
