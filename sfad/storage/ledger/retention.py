"""Deletes old rows and gives free pages back, in small errands of the writer's thread.

A tree is deleted whole, descendants first, when every run in it ended before the cutoff. Numbers
are not given again, because the table `deleted` of the schema keeps the highest.
"""

import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ...host.files import UNDECODABLE
from ...protocol.paths import LEDGER
from ...protocol.types import RunId, Status
from .database import open_reader
from .queries import LIVE, MAX_EVENTS
from .rows import NUMBER_OF, number_of

STEP_RUNS, STEP_EVENTS = 50, 250
"""Rows, the latter also of calls, that one transaction deletes, in 1 to 2 ms. An admission may have
to wait for that."""

_PAGE = 1000

_STEP_PAGES = 32
"""Pages that one errand gives back, in 1 to 2 ms."""

_STEPS_A_CHECKPOINT = 16

_FREE_KEPT = 256
"""Free pages, 1 MiB, that stay in the file for the next rows."""

_LONGEST_PERIOD = timedelta(days=31)
"""The longest period of a budget. What a budget was charged is kept for at least twice as long."""

_TERMINAL = tuple(status.value for status in Status if status.terminal)

_labels = msgspec.json.Decoder(dict[str, str])


class Deleted(Struct, frozen=True):
    runs: int = 0
    events: int = 0


class _OldRun(Struct, frozen=True):
    uid: int | None
    number: int
    ended: bool
    at: float
    labels: str


class Chosen:
    """Trees that were chosen, descendants before their ancestors, in a temporary table of SQLite:
    there may be millions."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.trees = self.runs = 0
        connection.execute(
            "CREATE TEMP TABLE chosen (place INTEGER PRIMARY KEY, number INTEGER NOT NULL UNIQUE)"
        )

    def add(self, tree: Sequence[_OldRun]) -> None:
        self.connection.executemany(
            "INSERT INTO chosen (number) VALUES (?)", [(run.number,) for run in tree]
        )
        self.trees += 1
        self.runs += len(tree)

    def batches(self) -> Iterator[list[int]]:
        """Yield the numbers of the runs."""
        sql, last = "SELECT place, number FROM chosen WHERE place > ? ORDER BY place LIMIT ?", 0
        while rows := self.connection.execute(sql, (last, _PAGE)).fetchall():
            last = rows[-1][0]
            yield [number for _, number in rows]

    def rows(self, numbers: Sequence[int]) -> Iterator[_OldRun]:
        marks = ", ".join("?" * len(numbers))
        sql = f"SELECT {_COLUMNS} FROM runs WHERE number IN ({marks})"  # noqa: S608
        found = {row[1]: row for row in self.connection.execute(sql, numbers)}
        return (_old_run(found[number]) for number in numbers if number in found)

    def events(self) -> Iterator[list[int]]:
        """Yield the numbers of the events of the runs. No index has an event's run, so this reads
        all events."""
        number = NUMBER_OF.format("events.run_id")
        where = f"AND EXISTS (SELECT 1 FROM chosen WHERE number = {number})"  # noqa: S608
        return _events(self.connection, inf, where)


class Pruner:
    """Deletes and compacts, in one thread.

    `errand` calls its argument in the writer's thread and returns the result. `pause` is called
    between two errands; it may wait, and raise to give up."""

    def __init__(
        self,
        directory: Path,
        errand: Callable[[Callable[[sqlite3.Connection], int]], int],
        pause: Callable[[], object],
    ) -> None:
        self._directory = directory
        self._errand = errand
        self._pause = pause
        self._steps = 0

    def delete(self, cutoff: datetime) -> Deleted:
        """Delete the trees that ended before `cutoff`, older events unless their run is live, and
        charges of budgets in periods that are long over. Raises `sqlite3.Error`."""
        with closing(open_reader(self._directory)) as connection:
            runs = self._delete_runs(connection, _old_runs(connection, cutoff))
            events = sum(
                self._do(_delete_events(batch)) for batch in _old_events(connection, cutoff)
            )
        self._do(_delete_charges(cutoff - 2 * _LONGEST_PERIOD))
        self._do(_delete_windows(cutoff))
        return Deleted(runs, events)

    @contextmanager
    def choose(
        self,
        cutoff: datetime,
        *,
        keep: int,
        uid: int | None,
        live: Collection[RunId] = frozenset(),
    ) -> Iterator[Chosen]:
        """Choose the trees that ended before `cutoff`, without the `keep` newest of all ended
        trees, and without those that have one of the `live` runs; with `uid`, only trees of that
        user. Raises `sqlite3.Error`."""
        with closing(open_reader(self._directory)) as connection:
            chosen, spared = Chosen(connection), set(map(number_of, live))
            below = _begin_of_newest(connection, keep, uid)
            for tree in _ended_trees(connection, cutoff.timestamp()):
                if (
                    tree[-1].number < below
                    and _is_of(tree, uid)
                    and _last(tree) < cutoff.timestamp()
                    and spared.isdisjoint(run.number for run in tree)
                ):
                    chosen.add(tree)
            yield chosen

    def remove(self, chosen: Chosen, *, dry: bool) -> Deleted:
        """Delete these trees with their events, or only count them if `dry`. Raises
        `sqlite3.Error`."""
        events = chosen.events()
        if dry:
            return Deleted(chosen.runs, sum(map(len, events)))
        count = sum(self._do(_delete_events(batch)) for batch in events)
        rows = (run for numbers in chosen.batches() for run in chosen.rows(numbers))
        return Deleted(self._delete_runs(chosen.connection, rows), count)

    def _delete_runs(self, connection: sqlite3.Connection, runs: Iterator[_OldRun]) -> int:
        """Delete runs with their calls, and return how many runs."""
        count = 0
        for batch in _batches(runs):
            while keys := _calls_of(connection, [run.number for run in batch]):
                self._do(_delete_calls(keys))
            count += self._do(_delete_runs(batch))
        return count

    def compact(self) -> int:
        """Give pages back if a quarter of the file is free, and return how many. Raises
        `sqlite3.Error`."""
        free = self._surplus()
        before = free
        while free and (left := self._do(_give_back)) < free:
            free = left
        return before - free

    def _surplus(self) -> int:
        with closing(open_reader(self._directory)) as connection:
            pages, free = (_pragma(connection, name) for name in ("page_count", "freelist_count"))
        return max(0, free - _FREE_KEPT) if free * 4 > pages else 0

    def _do(self, work: Callable[[sqlite3.Connection], int]) -> int:
        result = self._errand(work)
        self._steps += 1
        if self._steps % _STEPS_A_CHECKPOINT == 0:
            self.checkpoint()
        self._pause()
        return result

    def checkpoint(self) -> None:
        """Move the log into the database, except what a reader still needs. Raises
        `sqlite3.Error`."""
        # in this thread, because of its fsync: a passive checkpoint does not keep the writer from
        # writing
        with closing(
            sqlite3.connect(self._directory / LEDGER, isolation_level=None, timeout=0)
        ) as connection:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()


def _batches(rows: Iterator[_OldRun]) -> Iterator[list[_OldRun]]:
    while batch := list(islice(rows, STEP_RUNS)):
        yield batch


def _old_runs(connection: sqlite3.Connection, cutoff: datetime) -> Iterator[_OldRun]:
    for tree in _ended_trees(connection, cutoff.timestamp()):
        if _last(tree) < cutoff.timestamp():
            yield from tree


def _ended_trees(connection: sqlite3.Connection, cutoff: float) -> Iterator[list[_OldRun]]:
    """Yield the trees in which every run has ended and the first was created before `cutoff`,
    descendants before their ancestors."""
    for number, root in _candidates(connection, cutoff):
        tree = _tree(connection, root)
        # of a tree without its root, each run is a candidate
        if tree and tree[-1].number == number and all(run.ended for run in tree):
            yield tree


def _begin_of_newest(connection: sqlite3.Connection, keep: int, uid: int | None) -> float:
    """Return the number of the root of the last of the newest ended trees, or where there are
    fewer, 0."""
    sql = (
        "SELECT number, id FROM runs WHERE parent_id IS NULL AND number < ? ORDER BY number DESC "
        "LIMIT ?"
    )
    last = inf
    while keep and (rows := connection.execute(sql, (last, _PAGE)).fetchall()):
        for number, root in rows:
            tree, last = _tree(connection, root), number
            keep -= _is_of(tree, uid) and all(run.ended for run in tree)
            if not keep:
                break
    return 0 if keep else last


def _is_of(tree: Sequence[_OldRun], uid: int | None) -> bool:
    return all(uid in (None, run.uid) for run in tree)


def _last(tree: Sequence[_OldRun]) -> float:
    return max((run.at for run in tree), default=0.0)


def _candidates(connection: sqlite3.Connection, cutoff: float) -> Iterator[tuple[int, str]]:
    """Yield number and root of each ended run that is old enough and is a root, or whose root is
    not there."""
    root = NUMBER_OF.format("runs.root_id")
    sql = (
        "SELECT number, root_id FROM runs INDEXED BY runs_status "  # noqa: S608
        "WHERE status = ? AND number > ? AND created_at < ? AND (parent_id IS NULL OR NOT EXISTS "
        f"(SELECT 1 FROM runs AS root WHERE root.number = {root})) ORDER BY number LIMIT ?"
    )
    for status in _TERMINAL:
        last = 0
        # fetched whole: an open query keeps the log from being reset
        while rows := connection.execute(sql, (status, last, cutoff, _PAGE)).fetchall():
            yield from rows
            last = rows[-1][0]


_COLUMNS = "uid, number, ended, CAST(ifnull(ended_at, created_at) AS REAL), labels"


def _tree(connection: sqlite3.Connection, root: str) -> list[_OldRun]:
    below = (
        f"SELECT {_COLUMNS} FROM runs INDEXED BY runs_root WHERE root_id = ? "  # noqa: S608
        "AND parent_id IS NOT NULL ORDER BY number DESC"
    )
    itself = f"SELECT {_COLUMNS} FROM runs WHERE number = ? AND parent_id IS NULL"  # noqa: S608
    rows = [*connection.execute(below, (root,)), *connection.execute(itself, (number_of(root),))]
    return list(map(_old_run, rows))


def _old_run(row: Sequence[Any]) -> _OldRun:
    uid, number, ended, at, labels = row
    return _OldRun(uid, number, bool(ended), at, labels)


def _old_events(connection: sqlite3.Connection, cutoff: datetime) -> Iterator[list[int]]:
    """Yield the numbers of events from before the cutoff.

    Reads all events: while the clock was ahead, events got times in the future, which must not hide
    older ones."""
    return _events(
        connection,
        cutoff.timestamp(),
        f"AND ifnull(run_id, '') NOT IN (SELECT id FROM runs INDEXED BY runs_status WHERE {LIVE})",  # noqa: S608
    )


def _events(connection: sqlite3.Connection, before: float, where: str) -> Iterator[list[int]]:
    # fetched whole, and some at once: an open query keeps the log from being reset
    sql = (
        f"SELECT seq FROM events WHERE seq > ? AND seq <= ? AND time < ? {where} "  # noqa: S608
        "ORDER BY seq LIMIT ?"
    )
    ends = "SELECT ifnull(min(seq), 1) - 1, ifnull(max(seq), 0) FROM events"
    last, highest = connection.execute(ends).fetchone()
    while last < highest:
        until = last + MAX_EVENTS
        found = connection.execute(sql, (last, until, before, STEP_EVENTS)).fetchall()
        last = found[-1][0] if len(found) == STEP_EVENTS else until
        if found:
            yield [seq for (seq,) in found]


def _delete_runs(runs: Sequence[_OldRun]) -> Callable[[sqlite3.Connection], int]:
    labels = [
        (key, value, run.number)
        for run in runs
        if run.labels != "{}"
        for key, value in _labels_of(run.labels).items()
    ]

    def work(connection: sqlite3.Connection) -> int:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            "DELETE FROM labels WHERE key = ? AND value = ? AND number = ?", labels
        )
        count = _delete(connection, "runs", "number", [run.number for run in runs])
        connection.execute("COMMIT")
        return count

    return work


def _labels_of(text: str) -> dict[str, str]:
    try:
        return _labels.decode(text)
    except UNDECODABLE:  # a damaged row is deleted like all others; its labels are left over
        return {}


def _calls_of(connection: sqlite3.Connection, runs: Sequence[int]) -> list[tuple[int, float, int]]:
    marks = ", ".join("?" * len(runs))
    sql = f"SELECT run, time, number FROM calls WHERE run IN ({marks}) LIMIT {STEP_EVENTS}"  # noqa: S608
    return connection.execute(sql, runs).fetchall()


def _delete_calls(keys: Sequence[tuple[int, float, int]]) -> Callable[[sqlite3.Connection], int]:
    def work(connection: sqlite3.Connection) -> int:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("DELETE FROM calls WHERE run = ? AND time = ? AND number = ?", keys)
        connection.execute("COMMIT")
        return len(keys)

    return work


def _delete_events(numbers: Sequence[int]) -> Callable[[sqlite3.Connection], int]:
    return lambda connection: _delete(connection, "events", "seq", numbers)


def _delete_charges(cutoff: datetime) -> Callable[[sqlite3.Connection], int]:
    sql = "DELETE FROM budgets WHERE period_start < ?"
    return lambda connection: connection.execute(sql, (cutoff.timestamp(),)).rowcount


def _delete_windows(cutoff: datetime) -> Callable[[sqlite3.Connection], int]:
    sql = "DELETE FROM plans WHERE heard_at < ?"
    return lambda connection: connection.execute(sql, (cutoff.timestamp(),)).rowcount


def _delete(connection: sqlite3.Connection, table: str, key: str, numbers: Sequence[int]) -> int:
    marks = ", ".join("?" * len(numbers))
    return connection.execute(f"DELETE FROM {table} WHERE {key} IN ({marks})", numbers).rowcount  # noqa: S608


def _give_back(connection: sqlite3.Connection) -> int:
    # execute() would stop after the first page: the statement has a step for each page, and no
    # columns to fetch
    connection.executescript(f"PRAGMA incremental_vacuum({_STEP_PAGES})")
    return max(0, _pragma(connection, "freelist_count") - _FREE_KEPT)


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
