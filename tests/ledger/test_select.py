"""Pages and filters: what they show, and which indices they use."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sfad.core.state.access import EVERYTHING, Scope
from sfad.core.state.run import run_id
from sfad.protocol.messages import List
from sfad.protocol.types import RunInfo, Status
from sfad.storage.ledger import RunExtra
from sfad.storage.ledger.queries import Page, Reader, Selection, ended_queries, live_queries
from sfad.storage.ledger.rows import insert_op, number_of, numbers_of, state_op, statements
from sfad.storage.ledger.schema import migrate

from .samples import PLAIN, WHEN, run, runs_of, started

LIVE, DONE = Status.RUNNING, Status.COMPLETED


def memory(rows: list[tuple[RunInfo, RunExtra]]) -> sqlite3.Connection:
    """Return a ledger with these rows."""
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
    st.builds(
        lambda number, length: run_id(number)[:length],
        st.integers(1, 2**63 - 1) | st.integers(1, 2000),
        st.integers(0, 14),
    ),
)


async def test_the_default_page_is_what_lives_and_the_newest_that_ended(tmp_path: Path) -> None:
    with started(tmp_path) as ledger:
        for number in range(1, 101):
            ledger.admit(run(number, status=LIVE if number in (3, 99) else DONE), PLAIN)
        await ledger.flush()
        page = ids(runs_of(ledger.records, Page(List(id=1), EVERYTHING)))
        assert page == ids([run(3)]) + [run_id(n) for n in range(50, 101)]
        assert ids(runs_of(ledger.records, Page(List(id=1, rows=0), EVERYTHING))) == [
            run_id(3),
            run_id(99),
        ]
        assert ids(runs_of(ledger.records, Page(List(id=1, rows=-1), EVERYTHING))) == [
            run_id(3),
            run_id(99),
        ]
        assert ids(
            runs_of(ledger.records, Page(List(id=1, rows=1, status=[DONE, LIVE]), EVERYTHING))
        ) == [
            run_id(3),
            run_id(99),
            run_id(100),
        ]
        assert ids(runs_of(ledger.records, Page(List(id=1, status=[LIVE]), EVERYTHING))) == [
            run_id(3),
            run_id(99),
        ]


async def test_a_page_is_held_until_something_is_committed(tmp_path: Path) -> None:
    with started(tmp_path) as ledger:
        page = Page(List(id=1), EVERYTHING)
        for number in (1, 2, 3):
            ledger.admit(run(number, status=DONE), PLAIN)
            await ledger.flush()
            assert ids(runs_of(ledger.records, page)) == [
                run_id(each) for each in range(1, number + 1)
            ]
            assert ledger.records.select(page) is ledger.records.select(page)
        assert ids(runs_of(ledger.records, Page(List(id=1), Scope(uid=1, run=None)))) == []


async def test_prefixes(tmp_path: Path) -> None:
    with started(tmp_path) as ledger:
        for number in (1, 2, *range(32, 50)):
            ledger.admit(run(number), PLAIN)
        await ledger.flush()
        assert ledger.records.find("a1", EVERYTHING) == ["a1"]
        assert ledger.records.find("b", EVERYTHING) == [run_id(n) for n in range(32, 42)]
        assert ledger.records.find("b1g", EVERYTHING) == ["b1g"]
        for prefix, found in (("c", []), ("%", []), ("", ["a1", "a2"])):
            assert ledger.records.find(prefix, EVERYTHING)[:2] == found


@given(
    numbers=st.sets(st.integers(1, 2**63 - 1) | st.integers(1, 2000), max_size=20), prefix=PREFIXES
)
def test_a_prefix_is_a_range_of_numbers(numbers: set[int], prefix: str) -> None:
    fitting = {number for number in numbers if run_id(number).startswith(prefix)}
    low, high = numbers_of(prefix) or (1, 0)
    assert {number for number in numbers if low <= number <= high} == fitting
    for edge in {low, high} if low <= high else ():
        assert run_id(edge).startswith(prefix)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "b1",
        "a0",
        "b01",
        "zz",
        "A1",
        "a1 ",
        "%",
        "\U0010ffff",
        "m" + "v" * 13,
        "n" + "1" * 14,
    ],
)
def test_text_that_is_not_an_id_is_no_run(text: str) -> None:
    assert number_of(text) == 0
    with closing(memory([(run(1), PLAIN)])) as connection:
        assert Reader(connection).get(text) is None


async def test_a_chain_begins_at_the_root(tmp_path: Path) -> None:
    with started(tmp_path) as ledger:
        for number, parent in ((1, None), (2, "a1"), (3, "a2"), (4, "a1")):
            ledger.admit(run(number, parent_id=parent, root_id="a1"), PLAIN)
        await ledger.flush()
        assert ledger.records.lineage("a3") == ["a1", "a2", "a3"]
        assert (ledger.records.lineage("a1"), ledger.records.lineage("zz")) == (["a1"], ["zz"])
        assert ids(runs_of(ledger.records, Page(List(id=1), EVERYTHING, within="a2"))) == [
            "a2",
            "a3",
        ]


NAMES, USERS, LABELS = (
    st.sampled_from("ab"),
    st.sampled_from(["ann", "bob"]),
    st.dictionaries(st.sampled_from("kl"), st.sampled_from("xy"), max_size=2),
)
TYPES = st.sampled_from(["qa", "cli"])
GROUPS = st.sampled_from(["day", "night"])
MODELS = st.sampled_from(["opus-4", "opus-5", "o[pu]s?", "Opus-4"])
PATTERNS = MODELS | st.sampled_from(["opus-*", "*", "*-4", "o*s*", "none"])
STATUSES = st.sampled_from([LIVE, Status.PAUSED, DONE, Status.FAILED, Status.REJECTED_DEPTH])


UIDS = st.sampled_from([1000, 1001, None])
SCOPES = st.just(EVERYTHING) | st.builds(
    Scope, uid=UIDS, run=st.none() | st.sampled_from(["a1", "a2", "a3"])
)


@st.composite
def ledgers(draw: st.DrawFn) -> list[tuple[RunInfo, RunExtra]]:
    rows: list[tuple[RunInfo, RunExtra]] = []
    for number in range(1, draw(st.integers(1, 12)) + 1):
        parent = draw(st.none() | st.integers(1, number - 1)) if number > 1 else None
        root = (
            number if parent is None else next(i.root_id for i, _ in rows if i.id == run_id(parent))
        )
        info = run(
            number,
            parent_id=None if parent is None else run_id(parent),
            root_id=run_id(number) if parent is None else root,
            status=draw(STATUSES),
            name=draw(NAMES),
            user=draw(USERS),
            labels=draw(LABELS),
            type=draw(st.none() | TYPES),
            channel=draw(TYPES),
            model=draw(st.none() | MODELS),
            group=draw(st.none() | GROUPS),
            started_at=draw(st.none() | st.just(WHEN)),
            created_at=WHEN + timedelta(seconds=draw(st.integers(-3, 12))),
        )
        session = draw(st.booleans())
        info = replace(info, session=session)
        mode = "session" if session else draw(st.none() | st.just("detached"))
        rows.append((info, RunExtra(uid=draw(UIDS), mode=mode)))
    return rows


PAGES = st.builds(
    Page,
    st.builds(
        List,
        id=st.just(1),
        status=st.lists(STATUSES, max_size=3),
        name=st.none() | NAMES | st.lists(NAMES, max_size=3),
        user=st.none() | USERS,
        since=st.none() | st.just(WHEN.timestamp()),
        labels=LABELS | st.just({"k": ["x", "y"], "l": "x"}),
        run_type=st.none() | TYPES | st.lists(TYPES, max_size=2),
        channel=st.none() | TYPES,
        model=st.none() | PATTERNS | st.lists(PATTERNS, max_size=2),
        group=st.none() | GROUPS,
        sessions=st.booleans(),
        rows=st.integers(1, 4),
        after=st.none() | st.just(""),
    ),
    SCOPES,
    within=st.none() | st.sampled_from(["a1", "a2", "a3"]),
    started=st.booleans(),
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    rows=ledgers(),
    page=PAGES,
    walked=st.integers(1, 4),
    most_below=st.integers(0, 3),
    times=st.integers(1, 4),
    uids=st.integers(1, 3),
)
def test_sql_and_python_agree_on_every_filter_page_by_page(
    rows: list[tuple[RunInfo, RunExtra]],
    page: Page,
    walked: int,
    most_below: int,
    times: int,
    uids: int,
) -> None:
    parents = {info.id: info.parent_id for info, _ in rows}

    def chain(one: str | None) -> list[str]:
        return [*chain(parents[one]), one] if one is not None else []

    fitting = [info.id for info, extra in rows if page.admits(info, extra.uid, chain(info.id))]
    with (
        closing(memory(rows)) as connection,
        patch.multiple(
            "sfad.storage.ledger.queries",
            MAX_WALKED=walked,
            MOST_BELOW=most_below,
            MAX_TIMES=times,
            MAX_UIDS=uids,
        ),
    ):
        found = list(pages(Reader(connection), page))
        by_prefix = Reader(connection).find("a", page.scope, 20)
    assert all(len(selection.ended) <= page.query.rows for selection in found)
    listed = [run_id(number) for selection in found for number in selection.numbers]
    assert sorted(listed) == fitting
    if page.up:
        assert listed == fitting, "the pages are in order"
        assert all(len(selection.numbers) <= page.query.rows for selection in found)
    assert by_prefix == [
        info.id for info, extra in rows if page.scope.admits(extra.uid, chain(info.id))
    ]


def pages(reader: Reader, page: Page) -> Iterator[Selection]:
    """Page after page, as a client requests them; the first has the live runs."""
    selection = reader.select(page)
    yield selection
    while selection.reached:
        before, after = page.query.before, page.query.after
        reached = run_id(selection.reached)
        if after is not None:
            assert reached > after, "each page is higher than the one before"
            query = replace(page.query, after=reached)
        else:
            assert before is None or reached < before, "each page is lower than the one before"
            query = replace(page.query, before=reached)
        page = replace(page, query=query)
        selection = reader.select(page)
        yield selection


@pytest.fixture(scope="module")
def big() -> Iterator[sqlite3.Connection]:
    """100 000 rows, three of them live."""
    rows = [
        (
            run(
                n,
                status=LIVE if n % 40_000 == 1 else DONE,
                labels={"n": str(n), "even": "yes"} if n % 2 == 0 else {"n": str(n)},
                name=f"n{n % 1000}",
            ),
            PLAIN,
        )
        for n in range(1, 100_001)
    ]
    connection = memory(rows)
    yield connection
    connection.close()


SPAN = "number>? AND number<?"
BY_STATUS, BY_NUMBER = (
    "SEARCH runs USING INDEX runs_status (status=?)",
    "SEARCH runs USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)",
)
BY_NAME, ENDED, BY_LIVE_SPAN = (
    f"SEARCH runs USING INDEX {index} AND {SPAN})"
    for index in (
        "runs_name (name=?",
        "runs_status (status=?",
        "runs_status (status=?",
    )
)
BY_MARK = f"SEARCH marks USING PRIMARY KEY (kind=? AND value=? AND {SPAN})"
ALONE = "SEARCH runs USING INTEGER PRIMARY KEY (rowid=?)"
COVERED = "COVERING "
"""A query that walks only an index reads no rows."""


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, [BY_STATUS, BY_NUMBER]),
        ({"before": "b10"}, [BY_NUMBER]),
        ({"since": 5e9}, [BY_STATUS, BY_NUMBER]),
        ({"since": 5e9, "name": "n7"}, [BY_STATUS, BY_NAME]),
        ({"status": [DONE, LIVE]}, [BY_STATUS, ENDED]),
        ({"name": "n7"}, [BY_STATUS, BY_NAME]),
        ({"name": "n7", "user": "ann", "status": [DONE]}, [BY_NAME]),
        ({"user": "ann"}, [BY_STATUS, BY_NUMBER]),
        ({"name": ["n5", "n6"], "user": "ann"}, [BY_STATUS, BY_NUMBER]),
        ({"labels": {"n": ["5", "6"]}, "name": "n7"}, [BY_STATUS, BY_NAME]),
        ({"group": "night"}, [BY_STATUS, BY_MARK]),
        ({"sessions": True}, [BY_STATUS, BY_MARK]),
        ({"after": "b10"}, [BY_LIVE_SPAN, BY_NUMBER]),
        ({"after": "b10", "name": "n7"}, [BY_LIVE_SPAN, BY_NAME]),
    ],
)
def test_every_page_walks_an_index_in_order(
    big: sqlite3.Connection, query: dict[str, Any], expected: list[str]
) -> None:
    page = Page(List(id=1, **query), EVERYTHING)
    walks = [one.sql(page, 0) for one in ended_queries(page)]
    plans = [
        plan(big, *each).partition("; ")[0].replace(COVERED, "")
        for each in (*live_queries(page), *walks)
    ]
    assert plans == expected
    assert not any("TEMP B-TREE" in plan(big, *each) for each in walks)
    for one in ended_queries(page):
        if (walk := one.walk(page))[0]:
            assert "INDEX" not in plan(big, *walk) or COVERED in plan(big, *walk)


@pytest.mark.parametrize(
    ("query", "most"),
    [
        ({}, 20_000),
        ({"name": "n7"}, 20_000),
        ({"user": "ann"}, 50_000),
        ({"user": "bob"}, 1000),
        ({"run_type": "rare"}, 120_000),
        ({"group": "night"}, 2000),
        ({"sessions": True}, 2000),
        ({"after": ""}, 20_000),
        ({"after": "", "run_type": "rare"}, 120_000),
        ({"after": "", "since": 5e9}, 2000),
        ({"since": 5e9}, 120_000),
        ({"status": [DONE]}, 50_000),
        ({"status": [Status.FAILED]}, 20_000),
        ({"labels": {"n": "7"}}, 20_000),
        ({"labels": {"n": ["7", "8"]}}, 250_000),
    ],
)
def test_a_page_costs_no_more_than_what_it_may_walk(
    big: sqlite3.Connection, query: dict[str, Any], most: int
) -> None:
    assert steps(big, lambda: Reader(big).select(Page(List(id=1, **query), EVERYTHING))) < most


def test_a_user_without_runs_walks_none(big: sqlite3.Connection) -> None:
    stranger = Scope(uid=1001, run=None)
    reader = Reader(big)
    assert steps(big, lambda: reader.select(Page(List(id=1), stranger))) < 2000
    assert steps(big, lambda: reader.find("d", stranger, 10)) < 1000


def test_a_search_by_time_ends_where_there_is_no_more(big: sqlite3.Connection) -> None:
    assert len(list(pages(Reader(big), Page(List(id=1, since=5e9), EVERYTHING)))) == 1
    rare = Page(List(id=1, run_type="rare"), EVERYTHING)
    assert len(list(pages(Reader(big), rare))) == 20


def steps(connection: sqlite3.Connection, what: Callable[[], object]) -> int:
    """Instructions of SQLite's virtual machine, to the nearest thousand: a cost that does not
    depend on the hardware."""
    ticks: list[None] = []
    connection.set_progress_handler(lambda: ticks.append(None), 1000)
    what()
    connection.set_progress_handler(None, 0)
    return len(ticks) * 1000


def test_labels_and_subtrees_are_looked_up_by_their_indices(big: sqlite3.Connection) -> None:
    labelled = Page(List(id=1, labels={"n": "5", "m": "6"}, name="n5"), EVERYTHING)
    text = plan(big, *next(ended_queries(labelled)).sql(labelled, 0))
    assert text.startswith("SEARCH labels USING PRIMARY KEY (key=? AND value=?")
    assert "TEMP B-TREE" not in text
    subtree = Page(List(id=1), EVERYTHING, within="a1")
    text = plan(big, *next(ended_queries(subtree)).sql(subtree, 0))
    assert text.startswith(ALONE)
    assert "USING INDEX runs_parent" in text
    assert "SCAN runs" not in text


def test_the_first_run_since_a_time_is_looked_for_page_by_page(big: sqlite3.Connection) -> None:
    """Each page walks a part of the index of times, and knows the place when it has all."""
    reader, since = Reader(big), WHEN.timestamp()
    page = Page(List(id=1, since=since, run_type="rare"), EVERYTHING)
    with patch.multiple("sfad.storage.ledger.queries", MAX_TIMES=30_000):
        assert steps(big, lambda: reader.select(page)) < 600_000
        assert len(list(pages(reader, page))) == 20
        far = Page(List(id=1, since=since + 1, run_type="rare", after=""), EVERYTHING)
        assert len(list(pages(reader, far))) == 1


def test_a_page_is_read_by_the_index_that_leads_farthest(big: sqlite3.Connection) -> None:
    """By its status, of all rows, it would take twenty pages."""
    page = Page(List(id=1, status=[DONE], user="ann", group="night"), EVERYTHING)
    assert len(list(pages(Reader(big), page))) == 1
    rare = Page(List(id=1, labels={"even": "yes", "n": "2"}, status=[DONE]), EVERYTHING)
    assert len(list(pages(Reader(big), rare))) == 1


def test_a_saved_run_is_found_by_its_number(big: sqlite3.Connection) -> None:
    for sql, values in statements([state_op(run(n), PLAIN, None) for n in range(1, 5)]):
        assert "SEARCH runs USING INTEGER PRIMARY KEY" in plan(big, sql, list(values))


def test_lookups_do_not_depend_on_the_ledger_s_size(big: sqlite3.Connection) -> None:
    reader = Reader(big)
    assert reader.find("d2", EVERYTHING, 3) == [run_id(2 * 32**3 + n) for n in range(3)]
    assert len(runs_of(reader, Page(List(id=1), EVERYTHING))) == 53
    assert [info.id for info in reader.open_runs()] == [run_id(n) for n in (1, 40_001, 80_001)]
    for what in (
        reader.open_runs,
        lambda: reader.find("d2", EVERYTHING, 10),
        lambda: reader.get(run_id(70_000)),
        lambda: reader.last("runs", "number"),
    ):
        assert steps(big, what) < 5_000


def plan(connection: sqlite3.Connection, sql: str, values: list[Any]) -> str:
    return "; ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values))


async def test_values_are_never_sql(tmp_path: Path) -> None:
    with started(tmp_path) as ledger:
        nasty = "x' OR 1=1 --"
        assert (
            runs_of(
                ledger.records,
                Page(
                    List(id=1, name=nasty, user=nasty, labels={nasty: nasty}),
                    EVERYTHING,
                    within=nasty,
                ),
            )
            == []
        )
        assert ledger.records.get(nasty) is None
