"""The SQL that writes a batch of operations.

Many rows share one statement, because each statement releases the interpreter lock and takes it again, which costs up to a
switch interval (5 ms) while the trio thread is busy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from .rows import EVENT_COLUMNS, RUN_COLUMNS, SAVE_COLUMNS, Op

Statement = tuple[str, Sequence[Any]]
"""SQL and its parameters."""

_SIZES = (64, 32, 16, 8, 4, 3, 2, 1)
"""Rows in one statement. There are few sizes, so that SQLite's prepared statements are reused; the largest takes 2 752
parameters, of 32 766 allowed. The three events of a short run go in one statement."""


def statements(batch: Sequence[Op]) -> Iterator[Statement]:
    """Yield the statements for a batch of operations."""
    inserts = [op for op in batch if op.kind in ("admit", "refuse")]
    yield from _many(_insert_runs, [op.row for op in inserts])
    yield from _many(_insert_labels, [label for op in inserts for label in op.labels])
    yield from upserts([op for op in batch if op.kind == "upsert"])
    yield from _updates(list({op.run_id: op.row for op in batch if op.kind == "save"}.values()))
    yield from _many(_insert_events, [op.row for op in batch if op.kind == "event"])
    for op in batch:
        if op.kind == "count":
            yield "UPDATE runs SET refusals_counted = refusals_counted + 1 WHERE number = ?", op.row
        elif op.kind == "charge":
            yield f"{_CHARGE} charged_usd + excluded.charged_usd", op.row


def upserts(ops: Sequence[Op]) -> Iterator[Statement]:
    """Yield the statements that insert runs, or bring their rows up to date."""
    for op in ops:
        yield _UPSERT_RUN, op.row
        yield from (("INSERT OR IGNORE INTO labels (key, value, number) VALUES (?, ?, ?)", label) for label in op.labels)


def set_charge(op: Op) -> Statement:
    """Return the statement that sets what a budget was charged, where `statements` adds to it."""
    return f"{_CHARGE} excluded.charged_usd", op.row


_CHARGE = "INSERT INTO budgets (scope, name, period_start, charged_usd) VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET charged_usd ="


def _many(sql: Callable[[int], str], rows: Sequence[tuple[Any, ...]]) -> Iterator[Statement]:
    start = 0
    for size in _SIZES:
        while len(rows) - start >= size:
            yield sql(size), [value for row in rows[start : start + size] for value in row]
            start += size


def _insert(table: str, columns: Sequence[str], rows: int) -> str:
    return f"INSERT INTO {table} ({', '.join(columns)}) {_values(rows, len(columns))}"


def _values(rows: int, columns: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return f"VALUES {', '.join([row] * rows)}"


@cache
def _insert_runs(rows: int) -> str:
    return _insert("runs", RUN_COLUMNS, rows)


@cache
def _insert_labels(rows: int) -> str:
    return _insert("labels", ("key", "value", "number"), rows)


@cache
def _insert_events(rows: int) -> str:
    return _insert("events", EVENT_COLUMNS, rows)


def _assignments(value: str) -> str:
    # a daemon that adopts a run knows its model only once the agent names it again
    once = ("model", "provider")
    names = ((name, value.format(name)) for name in SAVE_COLUMNS[1:])
    return ", ".join(f"{name} = ifnull({new}, runs.{name})" if name in once else f"{name} = {new}" for name, new in names)


_UPDATE_ONE = f"UPDATE runs SET {_assignments('?')} WHERE number = ?"  # noqa: S608

_UPSERT_RUN = f"{_insert('runs', RUN_COLUMNS, 1)} ON CONFLICT DO UPDATE SET {_assignments('excluded.{}')}"


def _updates(rows: Sequence[tuple[Any, ...]]) -> Iterator[Statement]:
    if len(rows) == 1:  # by far the most frequent, and a tenth of a transaction cheaper without the table of new values
        ((number, *values),) = rows
        yield _UPDATE_ONE, (*values, number)
    else:
        yield from _many(_update_runs, rows)


@cache
def _update_runs(rows: int) -> str:
    names = ", ".join(SAVE_COLUMNS)
    return (
        f"WITH new ({names}) AS ({_values(rows, len(SAVE_COLUMNS))}) "  # noqa: S608
        f"UPDATE runs SET {_assignments('new.{}')} FROM new WHERE runs.number = new.number"
    )
