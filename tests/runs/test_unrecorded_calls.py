"""Calls that the ledger may not have yet: kept until it has them, and not more than a few a minute
of those that are not made."""

from __future__ import annotations

from sfad.protocol.types import CallInfo
from sfad.runs.live import KEPT, ROWS_A_MINUTE, UnrecordedCalls
from tests.ledger.samples import call


def refused(number: int) -> CallInfo:
    return call(number, state="refused", cost_usd=None, refused="too much")


def test_a_call_is_kept_until_its_row_is_in_the_file() -> None:
    calls = UnrecordedCalls()
    for number in (1, 2):
        calls.add(call(number))
    calls.recorded(call(1).time.timestamp(), 1)
    calls.recorded(call(1).time.timestamp(), 1)
    assert list(calls) == [call(2)]
    for number in range(3, KEPT + 3):
        calls.add(call(number))
    assert [each.number for each in calls] == list(range(3, KEPT + 3))


def test_calls_that_are_not_made_get_a_few_rows_a_minute() -> None:
    calls = UnrecordedCalls()
    rows = [
        calls.add_not_made(refused(number), now=float(number))
        for number in range(ROWS_A_MINUTE + 5)
    ]
    assert [row.number for row in rows] == [*range(ROWS_A_MINUTE), *[ROWS_A_MINUTE - 1] * 5]
    assert [row.more for row in rows[-6:]] == [0, 1, 2, 3, 4, 5]
    assert len(list(calls)) == ROWS_A_MINUTE
    assert calls.add_not_made(refused(99), now=60.0) == refused(99)
