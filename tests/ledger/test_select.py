"""Pages and filters: what they show, and that indices bear them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sfad.core.ids import run_id
from sfad.ledger import RunExtra
from sfad.ledger.numbers import number_of, numbers_of
from sfad.ledger.reader import Page, Reader, queries
from sfad.ledger.rows import insert_op, save_op
from sfad.ledger.schema import migrate
from sfad.ledger.writer import statements
from sfad.protocol.messages import List
from sfad.protocol.types import RunInfo, Status

from .samples import PLAIN, WHEN, run, started

LIVE, DONE = Status.RUNNING, Status.COMPLETED


def memory(rows: list[tuple[RunInfo, RunExtra]]) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection)
    for sql, values in statements([insert_op("admit", info, extra, None) for info, extra in rows]):
        connection.execute(sql, values)
    return connection


def ids(runs: list[RunInfo]) -> list[str]:
    return [info.id for info in runs]


PREFIXES = st.one_of(
    st.text("abcm0123fgvw", max_size=4),
    st.text(max_size=3),
    st.builds(lambda number, length: run_id(number)[:length], st.integers(1, 2**63 - 1) | st.integers(1, 2000), st.integers(0, 14)),
)


async def test_the_default_page_is_what_lives_and_the_newest_that_ended(tmp_path: Path) -> None:
    with started(tmp_path) as ledger:
        for number in range(1, 101):
            ledger.admit(run(number, status=LIVE if number in (3, 99) else DONE), PLAIN)
        await ledger.flush()
        page = ids(ledger.select(List(id=1)))
        assert page == ids([run(3)]) + [run_id(n) for n in range(50, 101)]
        assert ids(ledger.select(List(id=1, rows=0))) == [run_id(3), run_id(99)]
        assert ids(ledger.select(List(id=1, rows=-1))) == [run_id(3), run_id(99)]
        assert ids(ledger.select(List(id=1, rows=1, status=[DONE, LIVE]))) == [run_id(3), run_id(99), run_id(100)]
        assert ids(ledger.select(List(id=1, status=[LIVE]))) == [run_id(3), run_id(99)]


async def test_prefixes(tmp_path: Path) -> None:
    with started(tmp_path) as ledger:
        for number in (1, 2, *range(32, 50)):
            ledger.admit(run(number), PLAIN)
        await ledger.flush()
        assert ledger.find("a1") == ["a1"]
        assert ledger.find("b") == [run_id(n) for n in range(32, 42)]
        assert ledger.find("b1g") == ["b1g"]
        assert (ledger.find("c"), ledger.find("%"), ledger.find("")[:2]) == ([], [], ["a1", "a2"])


@given(numbers=st.sets(st.integers(1, 2**63 - 1) | st.integers(1, 2000), max_size=20), prefix=PREFIXES)
def test_a_prefix_is_a_range_of_numbers(numbers: set[int], prefix: str) -> None:
    fitting = {number for number in numbers if run_id(number).startswith(prefix)}
    low, high = numbers_of(prefix) or (1, 0)
    assert {number for number in numbers if low <= number <= high} == fitting
    for edge in {low, high} if low <= high else ():
        assert run_id(edge).startswith(prefix)


@pytest.mark.parametrize("text", ["", "a", "b1", "a0", "b01", "zz", "A1", "a1 ", "%", "\U0010ffff", "m" + "v" * 13, "n" + "1" * 14])
def test_what_is_no_id_is_no_run(text: str) -> None:
    assert number_of(text) == 0
    with closing(memory([(run(1), PLAIN)])) as connection:
        assert Reader(connection).get(text) is None


async def test_a_chain_begins_at_the_root(tmp_path: Path) -> None:
    with started(tmp_path) as ledger:
        for number, parent in ((1, None), (2, "a1"), (3, "a2"), (4, "a1")):
            ledger.admit(run(number, parent_id=parent, root_id="a1"), PLAIN)
        await ledger.flush()
        assert ledger.chain("a3") == ["a1", "a2", "a3"]
        assert (ledger.chain("a1"), ledger.chain("zz")) == (["a1"], ["zz"])
        assert ids(ledger.select(List(id=1), within="a2")) == ["a2", "a3"]
        assert ids(ledger.select(List(id=1, root="a1"))) == ["a1", "a2", "a3", "a4"]


NAMES, USERS, LABELS = (
    st.sampled_from("ab"),
    st.sampled_from(["ann", "bob"]),
    st.dictionaries(st.sampled_from("kl"), st.sampled_from("xy"), max_size=2),
)
STATUSES = st.sampled_from([LIVE, Status.PAUSED, DONE, Status.FAILED, Status.REJECTED_DEPTH])


@st.composite
def ledgers(draw: st.DrawFn) -> list[tuple[RunInfo, RunExtra]]:
    rows: list[tuple[RunInfo, RunExtra]] = []
    for number in range(1, draw(st.integers(1, 12)) + 1):
        parent = draw(st.none() | st.integers(1, number - 1)) if number > 1 else None
        root = number if parent is None else next(i.root_id for i, _ in rows if i.id == run_id(parent))
        info = run(
            number,
            parent_id=None if parent is None else run_id(parent),
            root_id=run_id(number) if parent is None else root,
            status=draw(STATUSES),
            name=draw(NAMES),
            user=draw(USERS),
            labels=draw(LABELS),
            created_at=WHEN + timedelta(seconds=draw(st.integers(-3, 12))),
        )
        rows.append((info, RunExtra(uid=draw(st.integers(1, 2)))))
    return rows


PAGES = st.builds(
    Page,
    st.builds(
        List,
        id=st.just(1),
        status=st.lists(STATUSES, max_size=3),
        name=st.none() | NAMES,
        user=st.none() | USERS,
        root=st.none() | st.sampled_from(["a1", "a2", "a3"]),
        since=st.none() | st.just(WHEN.timestamp()),
        labels=LABELS,
        rows=st.integers(0, 4),
    ),
    uid=st.none() | st.integers(1, 2),
    within=st.none() | st.sampled_from(["a1", "a2", "a3"]),
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(rows=ledgers(), page=PAGES)
def test_sql_and_python_agree_on_every_filter(rows: list[tuple[RunInfo, RunExtra]], page: Page) -> None:
    parents = {info.id: info.parent_id for info, _ in rows}

    def below(one: str | None) -> bool:
        return page.within is None or (one is not None and (one == page.within or below(parents[one])))

    fitting = [info for info, extra in rows if page.admits(info, extra) and below(info.id)]
    ended = [info.id for info in fitting if info.status.terminal]
    expected = {i.id for i in fitting if not i.status.terminal} | set(ended[max(0, len(ended) - page.query.rows) :])
    connection = memory(rows)
    found = sorted(Reader(connection).select(page), key=lambda info: info.id)
    connection.close()
    kept = [i.id for i in found if i.status.terminal][-page.query.rows or len(found) :]
    assert {i.id for i in found if not i.status.terminal} | set(kept) == expected


@pytest.fixture(scope="module")
def big() -> Iterator[sqlite3.Connection]:
    """100 000 rows, three of them live."""
    rows = [
        (run(n, status=LIVE if n % 40_000 == 1 else DONE, labels={"n": str(n)}, name=f"n{n % 1000}"), PLAIN)
        for n in range(1, 100_001)
    ]
    connection = memory(rows)
    yield connection
    connection.close()


BY_NAME, BY_NUMBER = "SEARCH runs USING INDEX runs_name (name=?)", "SEARCH runs USING INTEGER PRIMARY KEY (rowid=?)"
BY_STATUS, BY_ROOT = "SEARCH runs USING INDEX runs_status (status=?)", "SEARCH runs USING INDEX runs_root (root_id=?)"
WALK = "SCAN runs"
"""In the order of numbers, newest first, until the page is full."""
TERMINAL = [status for status in Status if status.terminal]


@pytest.mark.parametrize(
    ("query", "options", "expected"),
    [
        ({}, {}, [BY_STATUS, WALK]),
        ({"since": 5e9}, {}, [BY_STATUS, *[BY_STATUS] * len(TERMINAL)]),
        ({"since": 5e9, "name": "n7"}, {}, [BY_STATUS, BY_NAME]),
        ({"status": [DONE, LIVE]}, {}, [BY_STATUS, BY_STATUS]),
        ({"name": "n7"}, {}, [BY_STATUS, BY_NAME]),
        ({"name": "n7", "user": "ann", "status": [DONE]}, {"uid": 1000}, [BY_NAME]),
        ({"root": "a1", "name": "x"}, {}, [BY_STATUS, BY_NUMBER, BY_ROOT]),
        ({"user": "ann"}, {}, [BY_STATUS, WALK]),
        ({}, {"uid": 1000}, [BY_STATUS, WALK]),
    ],
)
def test_every_page_stops_at_its_limit_on_an_index(
    big: sqlite3.Connection, query: dict[str, Any], options: dict[str, Any], expected: list[str]
) -> None:
    assert [plan(big, *each) for each in queries(Page(List(id=1, **query), **options))] == expected


@pytest.mark.parametrize(
    "query",
    [{}, {"name": "n7"}, {"status": [DONE]}, {"status": [Status.FAILED]}, {"root": "a1"}, {"user": "ann"}, {"labels": {"n": "7"}}],
)
def test_a_page_costs_no_more_than_its_rows(big: sqlite3.Connection, query: dict[str, Any]) -> None:
    assert steps(big, lambda: Reader(big).select(Page(List(id=1, **query)))) < 20_000


def test_a_search_by_time_reads_no_row_that_is_too_old(big: sqlite3.Connection) -> None:
    # it walks an index of 100 000 entries; a row read costs some fifty steps, an entry seven
    assert steps(big, lambda: Reader(big).select(Page(List(id=1, since=5e9)))) < 1_000_000


def steps(connection: sqlite3.Connection, what: Callable[[], object]) -> int:
    """Instructions of SQLite's machine, to the nearest thousand: a cost that does not depend on the machine."""
    ticks: list[None] = []
    connection.set_progress_handler(lambda: ticks.append(None), 1000)
    what()
    connection.set_progress_handler(None, 0)
    return len(ticks) * 1000


def test_labels_and_subtrees_are_looked_up_by_their_indices(big: sqlite3.Connection) -> None:
    _, labelled = queries(Page(List(id=1, labels={"n": "5", "m": "6"}, name="n5")))
    text = plan(big, *labelled)
    assert text.startswith("SEARCH labels USING PRIMARY KEY (key=? AND value=?)")
    assert "TEMP B-TREE" not in text
    _, below = queries(Page(List(id=1), within="a1"))
    text = plan(big, *below)
    assert text.startswith(BY_NUMBER)
    assert "USING INDEX runs_parent" in text
    assert "SCAN runs" not in text


def test_a_saved_run_is_found_by_its_number(big: sqlite3.Connection) -> None:
    for sql, values in statements([save_op(run(n), PLAIN, None) for n in range(1, 5)]):
        assert "SEARCH runs USING INTEGER PRIMARY KEY" in plan(big, sql, list(values))


def test_lookups_do_not_depend_on_the_ledger_s_size(big: sqlite3.Connection) -> None:
    reader = Reader(big)
    assert reader.find("d2", 3) == [run_id(2 * 32**3 + n) for n in range(3)]
    assert len(reader.select(Page(List(id=1)))) == 53
    assert [info.id for info in reader.open_runs()] == [run_id(n) for n in (1, 40_001, 80_001)]
    for what in (
        reader.open_runs,
        lambda: reader.find("d2", 10),
        lambda: reader.get(run_id(70_000)),
        lambda: reader.last("runs", "number"),
    ):
        assert steps(big, what) < 5_000


def plan(connection: sqlite3.Connection, sql: str, values: list[Any]) -> str:
    return "; ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values))


async def test_queries_take_no_part_of_their_values_as_sql(tmp_path: Path) -> None:
    with started(tmp_path) as ledger:
        nasty = "x' OR 1=1 --"
        assert ledger.select(List(id=1, name=nasty, user=nasty, root=nasty, labels={nasty: nasty}), within=nasty) == []
        assert ledger.get(nasty) is None
