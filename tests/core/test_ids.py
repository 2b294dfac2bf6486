"""Run ids: short, in order, and each one whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfad.core.state.run import run_id, run_number

NUMBERS = st.integers(1, 2**63 - 1)


@pytest.mark.parametrize(
    ("number", "text"), [(1, "a1"), (31, "av"), (32, "b10"), (1023, "bvv"), (1024, "c100")]
)
def test_known_ids(number: int, text: str) -> None:
    assert run_id(number) == text
    assert run_number(text) == number


@given(NUMBERS)
def test_an_id_names_its_number(number: int) -> None:
    assert run_number(run_id(number)) == number


@given(NUMBERS, NUMBERS)
def test_text_order_is_number_order_and_no_id_is_another_s_prefix(one: int, other: int) -> None:
    assert (run_id(one) < run_id(other)) == (one < other)
    assert one == other or not run_id(one).startswith(run_id(other))


@pytest.mark.parametrize(
    "text", ["", "a", "a0", "b1", "b01", "a12", "aw", "A1", "a-", "1", "a٣", "../a1", "a1\n", "éa"]
)
def test_what_is_no_id(text: str) -> None:
    with pytest.raises(ValueError, match="not a run id"):
        run_number(text)


@pytest.mark.parametrize("number", [0, -1])
def test_numbers_start_at_one(number: int) -> None:
    with pytest.raises(ValueError, match="start at 1"):
        run_id(number)
