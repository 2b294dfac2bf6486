"""Pages of events: which there are, and how many each looks at."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfad.core.state.access import EVERYTHING, Scope
from sfad.core.state.run import run_id, run_number
from sfad.protocol.messages import EventPage, Events
from sfad.storage.ledger.records import EventFilter, event_page
from sfad.storage.ledger.rows import NUMBER_OF
from sfad.storage.ledger.schema import migrate

from . import big
from .test_select import steps

RUNS, EVENTS = 1000, 2000


@pytest.fixture(scope="module")
def ledger() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection)
        big.add(connection, RUNS, EVENTS)
        connection.execute("DELETE FROM events WHERE seq <= 500 OR seq % 7 = 0")
        yield connection


def forward(connection: sqlite3.Connection, wanted: EventFilter, rows: int) -> Iterator[EventPage]:
    after, more = 0, True
    while more:
        page = event_page(connection, wanted, Events(id=1, after=after), rows)
        assert page.reached > after or not page.more, "each page leads on"
        yield page
        after, more = page.reached, page.more


def back(connection: sqlite3.Connection, wanted: EventFilter, rows: int) -> Iterator[EventPage]:
    before: int | None = None
    while True:
        page = event_page(connection, wanted, Events(id=1, before=before), rows)
        yield page
        if page.older is None:
            return
        assert before is None or page.older < before, "each page leads back"
        before = page.older


SCOPES = st.sampled_from([EVERYTHING, Scope(1001, None), Scope(1003, None), Scope(None, "a5")])
FILTERS = st.builds(
    EventFilter,
    SCOPES,
    types=st.sampled_from([(), ("run_started",), ("alert_*",), ("run_f*", "alert_*")]),
    runs=st.sampled_from([(), ("a9",), ("a9", run_id(RUNS))]),
)


@settings(max_examples=60, deadline=None)
@given(wanted=FILTERS, rows=st.integers(1, 400), looked=st.integers(50, 3000))
def test_pages_both_ways_have_the_same_events_however_few_each_looks_at(
    ledger: sqlite3.Connection, wanted: EventFilter, rows: int, looked: int
) -> None:
    with patch.multiple("sfad.storage.ledger.records", MAX_EVENTS=100_000):
        whole = event_page(ledger, wanted, Events(id=1, after=0), EVENTS)
    assert not whole.more
    expected = [event.number for event in whole.events]
    with patch.multiple("sfad.storage.ledger.records", MAX_EVENTS=looked):
        found = [event.number for page in forward(ledger, wanted, rows) for event in page.events]
        older = [page.events for page in back(ledger, wanted, rows)]
    assert found == expected
    assert [event.number for events in reversed(older) for event in events] == expected
    if wanted.scope.uid == 1001 and not (wanted.types or wanted.runs):
        assert 0 < len(expected) < EVENTS


def test_a_page_without_a_match_looks_at_so_many_and_tells_how_far(
    ledger: sqlite3.Connection,
) -> None:
    nothing = EventFilter(Scope(9, None))
    with patch.multiple("sfad.storage.ledger.records", MAX_EVENTS=100):
        page = event_page(ledger, nothing, Events(id=1, after=0), 50)
        assert (page.events, page.reached, page.more) == ([], 600, True)
        page = event_page(ledger, nothing, Events(id=1), 50)
        assert (page.events, page.reached, page.older) == ([], EVENTS, EVENTS - 99)
        cost = steps(ledger, lambda: event_page(ledger, nothing, Events(id=1), 50))
    assert cost < 20_000, "it looks at no other runs of the user"


def test_the_number_of_an_id_in_sql() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        for number in (1, 31, 32, 33, 1023, 1024, 4711, 32**4 - 1, 987_654_321):
            sql = f"SELECT {NUMBER_OF.format('?1')}"
            (found,) = connection.execute(sql, (run_id(number),)).fetchone()
            assert found == number == run_number(run_id(number))
        assert connection.execute(f"SELECT {NUMBER_OF.format('NULL')}").fetchone() == (None,)
