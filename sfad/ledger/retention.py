"""Old rows: which they are, on a connection that only reads; and their deletion, in small errands of the writer.

Trees are deleted whole, descendants first, when every run in them has ended before the cutoff. Numbers are not used again:
`deleted` in the schema sees to that.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from math import inf
from pathlib import Path

import msgspec

from ..core.ids import run_id
from ..protocol.types import Status
from .numbers import number_of
from .opening import FILE, open_reader
from .reader import LIVE

STEP_RUNS, STEP_EVENTS = 50, 250
"""Rows that one transaction deletes: 1 to 2 ms either way, which an admission may have to wait."""

_PAGE = 1000
"""Rows looked at by one query."""

_STEP_PAGES = 32
"""Pages that one errand gives back, in 1 to 2 ms."""

_STEPS_A_CHECKPOINT = 16

_FREE_KEPT = 256
"""Free pages, 1 MiB, that stay in the file for what is written next."""

_LONGEST_PERIOD = timedelta(days=31)
"""Of a budget. What it was charged is kept for twice as long at least."""

_WAL_LARGE = 16 * 1024 * 1024

_TERMINAL = tuple(status.value for status in Status if status.terminal)

_labels = msgspec.json.Decoder(dict[str, str])


@dataclass(frozen=True, slots=True)
class Deleted:
    """How many rows went."""

    runs: int = 0
    events: int = 0


@dataclass(frozen=True, slots=True)
class _Run:
    uid: int | None
    number: int
    ended: bool
    at: float
    labels: str


class Sweeper:
    """Deletes and compacts, for one thread. `errand` calls its argument in the writer's thread and returns the result; `pause`
    is called between two of them, may wait, and may raise to give up."""

    def __init__(
        self, directory: Path, errand: Callable[[Callable[[sqlite3.Connection], int]], int], pause: Callable[[], object]
    ) -> None:
        self._directory = directory
        self._errand = errand
        self._pause = pause
        self._steps = 0

    def delete(self, cutoff: datetime) -> Deleted:
        """Deletes the trees that ended before `cutoff`, the events from before it that are of no live run, and what budgets
        were charged in periods that are long over. Raises `sqlite3.Error`."""
        with closing(open_reader(self._directory)) as connection:
            runs = sum(self._do(_delete_runs(batch)) for batch in _batches(_old_runs(connection, cutoff), STEP_RUNS))
            events = sum(self._do(_delete_events(batch)) for batch in _old_events(connection, cutoff))
        self._do(_delete_charges(cutoff - 2 * _LONGEST_PERIOD))
        return Deleted(runs, events)

    def choose(self, cutoff: datetime, *, keep: int, uid: int | None) -> list[list[_Run]]:
        """Return the trees that ended before `cutoff`, without the `keep` newest of all that have ended; with `uid`, only trees of
        that user. Raises `sqlite3.Error`."""
        with closing(open_reader(self._directory)) as connection:
            trees = [tree for tree in _ended_trees(connection, inf) if tree and all(uid in (None, run.uid) for run in tree)]
        trees.sort(key=lambda tree: tree[-1].number)  # of its root: the order in which they were started
        return [tree for tree in trees[: max(0, len(trees) - keep)] if _last(tree) < cutoff.timestamp()]

    def remove(self, trees: Sequence[Sequence[_Run]], *, dry: bool) -> Deleted:
        """Delete these trees with their events, or only count them where `dry`. Raises `sqlite3.Error`."""
        runs = [run for tree in trees for run in tree]
        gone = {run_id(run.number) for run in runs}
        with closing(open_reader(self._directory)) as connection:
            events = list(_events_of(connection, gone))
        if dry:
            return Deleted(len(runs), sum(map(len, events)))
        count = sum(self._do(_delete_events(batch)) for batch in events)
        return Deleted(sum(self._do(_delete_runs(batch)) for batch in _batches(iter(runs), STEP_RUNS)), count)

    def compact(self) -> int:
        """Gives pages back if a quarter of the file is free; returns how many. Cuts a large WAL. Raises `sqlite3.Error`."""
        free = self._surplus()
        before = free
        while free and (left := self._do(_give_back)) < free:
            free = left
        self._cut_wal()
        return before - free

    def _surplus(self) -> int:
        with closing(open_reader(self._directory)) as connection:
            pages, free, steps = (_pragma(connection, name) for name in ("page_count", "freelist_count", "auto_vacuum"))
        return max(0, free - _FREE_KEPT) if free * 4 > pages and steps else 0

    def _do(self, work: Callable[[sqlite3.Connection], int]) -> int:
        result = self._errand(work)
        self._steps += 1
        if self._steps % _STEPS_A_CHECKPOINT == 0:
            self.checkpoint()
        self._pause()
        return result

    def checkpoint(self) -> None:
        """Move the log into the database, as far as no reader needs it. Raises `sqlite3.Error`."""
        # here and not in the writer's thread, for its fsync: a passive one keeps nobody from writing
        with closing(sqlite3.connect(self._directory / FILE, isolation_level=None, timeout=0)) as connection:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()

    def _cut_wal(self) -> None:
        wal = self._directory / f"{FILE}-wal"
        if wal.exists() and wal.stat().st_size > _WAL_LARGE:
            self.checkpoint()
            self._errand(_truncate_wal)


def _batches(rows: Iterator[_Run], size: int) -> Iterator[list[_Run]]:
    while batch := list(islice(rows, size)):
        yield batch


def _old_runs(connection: sqlite3.Connection, cutoff: datetime) -> Iterator[_Run]:
    """The runs of old trees, descendants before their ancestors."""
    for tree in _ended_trees(connection, cutoff.timestamp()):
        if _last(tree) < cutoff.timestamp():
            yield from tree


def _ended_trees(connection: sqlite3.Connection, cutoff: float) -> Iterator[list[_Run]]:
    """The trees in which every run has ended and some were created before `cutoff`, descendants before their ancestors."""
    seen: set[str] = set()
    for root in _candidates(connection, cutoff):
        if root not in seen:
            seen.add(root)
            tree = _tree(connection, root)
            if all(run.ended for run in tree):
                yield tree


def _last(tree: Sequence[_Run]) -> float:
    """When the last run of a tree ended."""
    return max((run.at for run in tree), default=0.0)


def _candidates(connection: sqlite3.Connection, cutoff: float) -> Iterator[str]:
    """The root of every ended run that is old enough, more than once. The index holds all that is asked about the others."""
    sql = (
        "SELECT number, root_id FROM runs INDEXED BY runs_status "
        "WHERE status = ? AND number > ? AND created_at < ? ORDER BY number LIMIT ?"
    )
    for status in _TERMINAL:
        last = 0
        # fetched whole: a query that is open keeps the WAL from being reset
        while rows := connection.execute(sql, (status, last, cutoff, _PAGE)).fetchall():
            yield from (root for _, root in rows)
            last = rows[-1][0]


def _tree(connection: sqlite3.Connection, root: str) -> list[_Run]:
    columns = "uid, number, ended, ifnull(ended_at, created_at), labels"
    below = f"SELECT {columns} FROM runs INDEXED BY runs_root WHERE root_id = ? AND parent_id IS NOT NULL ORDER BY number DESC"  # noqa: S608
    itself = f"SELECT {columns} FROM runs WHERE number = ? AND parent_id IS NULL"  # noqa: S608
    rows = [*connection.execute(below, (root,)), *connection.execute(itself, (number_of(root),))]
    return [_Run(uid, number, bool(ended), at, labels) for uid, number, ended, at, labels in rows]


def _old_events(connection: sqlite3.Connection, cutoff: datetime) -> Iterator[list[int]]:
    """Numbers of events from before the cutoff. All are looked at, since the clock may have been ahead for a while: what was
    written then must not keep the rest from being found."""
    live = {row[0] for row in connection.execute(f"SELECT id FROM runs INDEXED BY runs_status WHERE {LIVE}")}  # noqa: S608
    last = 0
    sql = "SELECT seq, run_id FROM events WHERE seq > ? AND time < ? ORDER BY seq LIMIT ?"
    while rows := connection.execute(sql, (last, cutoff.timestamp(), STEP_EVENTS)).fetchall():
        last = rows[-1][0]
        if numbers := [seq for seq, run in rows if run not in live]:
            yield numbers


def _events_of(connection: sqlite3.Connection, runs: Collection[str]) -> Iterator[list[int]]:
    """Numbers of the events of these runs. No index holds an event's run, so all are looked at."""
    sql, last = "SELECT seq, run_id FROM events WHERE seq > ? ORDER BY seq LIMIT ?", 0
    while rows := connection.execute(sql, (last, STEP_EVENTS)).fetchall():
        last = rows[-1][0]
        if numbers := [seq for seq, run in rows if run in runs]:
            yield numbers


def _delete_runs(runs: Sequence[_Run]) -> Callable[[sqlite3.Connection], int]:
    labels = [(key, value, run.number) for run in runs if run.labels != "{}" for key, value in _labels.decode(run.labels).items()]

    def work(connection: sqlite3.Connection) -> int:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("DELETE FROM labels WHERE key = ? AND value = ? AND number = ?", labels)
        count = _delete(connection, "runs", "number", [run.number for run in runs])
        connection.execute("COMMIT")
        return count

    return work


def _delete_events(numbers: Sequence[int]) -> Callable[[sqlite3.Connection], int]:
    return lambda connection: _delete(connection, "events", "seq", numbers)


def _delete_charges(cutoff: datetime) -> Callable[[sqlite3.Connection], int]:
    sql = "DELETE FROM budgets WHERE period_start < ?"
    return lambda connection: connection.execute(sql, (cutoff.timestamp(),)).rowcount


def _delete(connection: sqlite3.Connection, table: str, key: str, numbers: Sequence[int]) -> int:
    marks = ", ".join("?" * len(numbers))
    return connection.execute(f"DELETE FROM {table} WHERE {key} IN ({marks})", numbers).rowcount  # noqa: S608


def _give_back(connection: sqlite3.Connection) -> int:
    """Returns how many more pages are to be given back."""
    # execute() would stop after the first page: the statement has a step for each, and no columns to fetch
    connection.executescript(f"PRAGMA incremental_vacuum({_STEP_PAGES})")
    return max(0, _pragma(connection, "freelist_count") - _FREE_KEPT)


def _truncate_wal(connection: sqlite3.Connection) -> int:
    # everything has been moved already; if somebody is reading, it waits for the next time, and nobody for it
    patience = _pragma(connection, "busy_timeout")
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        return int(connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0])
    finally:
        connection.execute(f"PRAGMA busy_timeout = {patience}")


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
