"""A test of many rows tries them all, and tells of each that failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.together import together


@together("number", [1, 2])
@together(("word", "length"), [("a", 1), ("bc", 2)])
def note(number: int, word: str, length: int, seen: list[tuple[int, str]]) -> None:
    assert len(word) == length
    seen.append((number, word))


def test_all_rows_are_tried() -> None:
    seen: list[tuple[int, str]] = []
    note(seen=seen)
    assert seen == [(1, "a"), (1, "bc"), (2, "a"), (2, "bc")]


@together("number", [1, 2])
def test_fixtures_are_those_of_the_test(number: int, tmp_path: Path) -> None:
    assert number
    assert tmp_path.is_dir()


def test_each_row_that_fails_is_named() -> None:
    @together("number", [1, 2, 3])
    def odd(number: int) -> None:
        assert number == 2

    with pytest.raises(ExceptionGroup, match="2 of 3 rows") as caught:
        odd()
    assert [error.__notes__ for error in caught.value.exceptions] == [
        ["with number = 1"],
        ["with number = 3"],
    ]
