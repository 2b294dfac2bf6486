"""Sizes, counts and durations as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfad.protocol.texts.units import (
    format_elapsed,
    format_size,
    format_usd,
    parse_count,
    parse_duration,
    parse_size,
    parse_whole,
)
from tests.together import together

MOST = 2**63 - 1


@together(
    ("text", "size"),
    [
        (0, 0), (65536, 65536), (MOST, MOST), ("0", 0), ("512", 512), ("512B", 512), ("512b", 512),
        ("64K", 65536), ("64k", 65536), ("1TiB", 2**40), ("64KB", 65536), ("64KiB", 65536),
        ("64kib", 65536), ("200M", 200 * 2**20), ("2G", 2**31), ("1.5G", 3 * 2**29),
        (" 2 G ", 2**31), ("0.3K", 307), ("1.0", 1), ("8388607T", 8388607 * 2**40),
        (str(MOST), MOST),
    ],
)  # fmt: skip
def test_sizes(text: str | int, size: int) -> None:
    assert parse_size(text) == size


NO_NUMBERS = [
    "",
    "-1",
    "+1",
    "1e3",
    "nan",
    "inf",
    "1_000",
    "0x10",
    "٣",
    "1.",
    ".5",
    "1,5",
    "1 2",
    -1,
    True,
    False,
    MOST + 1,
    10**400,
    "9" * 19,
]


@together(
    "text",
    [
        *NO_NUMBERS,
        "K",
        "KiB",
        "1iB",
        "1Kb i",
        "1Ki B",
        "1P",
        "64KK",
        "1kk",
        "9999999T",
        "8388608T",
        "9" * 10_000_000,
    ],
)
def test_an_invalid_size(text: str | int) -> None:
    with pytest.raises(ValueError, match="is not a size: bytes, or a number with K, M, G or T"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (0, 0),
        (200, 200),
        ("200", 200),
        ("200k", 200_000),
        ("200K", 200_000),
        ("1.5m", 1_500_000),
        (" 2 M ", 2_000_000),
        ("1.0", 1),
    ],
)
def test_counts(text: str | int, count: int) -> None:
    assert parse_count(text) == count


@together("text", [*NO_NUMBERS, "k", "1g", "1.5", "1.0001k", "200kB", "200 tokens"])
def test_an_invalid_count(text: str | int) -> None:
    with pytest.raises(ValueError, match="is not a count: a number, or one with k or m"):
        parse_count(text)


@given(
    st.integers(0, MOST // 2)
    | st.builds(
        lambda number, power: number << 10 * power, st.integers(0, 2**20), st.integers(0, 4)
    )
)
def test_a_formatted_size_is_read_back_to_its_decimal(size: int) -> None:
    shown = format_size(size)
    assert abs(parse_size(shown) - size) <= size // 20
    assert format_size(parse_size(shown)) == shown


def test_sizes_are_short() -> None:
    sizes = (0, 1, 1000, 1024, 65536, 2**20 - 1, 3 * 2**29, 2**31, 2**40, 2**50)
    assert [format_size(size) for size in sizes] == [
        "0 B", "1 B", "1000 B", "1 KiB", "64 KiB", "1 MiB", "1.5 GiB", "2 GiB", "1 TiB", "1024 TiB"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        (0, "0.00"),
        (2.5, "2.50"),
        (12, "12.00"),
        (0.45123, "0.4512"),
        (0.003, "0.003"),
        (0.000031, "0.000031"),
        (1e-9, "0.00"),
    ],
)
def test_money_shows_as_many_decimals_as_it_takes(amount: float, shown: str) -> None:
    assert format_usd(amount) == shown


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (90, 90), (1.5, 1.5), ("90", 90), ("90s", 90), ("1.5m", 90), ("250ms", 0.25),
        ("1h", 3600), ("2d", 172800), (" 5 m ", 300), ("1h30m", 5400), ("2m30s", 150),
        ("1d12h", 129600), ("1m500ms", 60.5), ("1h 30m 15.5s", 5415.5), ("2h05m", 7500),
        ("1d2h3m4s5ms", 93784.005),
    ],
)  # fmt: skip
def test_durations(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == seconds


@together(
    "text",
    [
        "", " ", "h", "ms", "1x", "1w", "1.h", ".5h", "-1", "1e3", "inf", "nan", "٣s", "1_0s",
        "1 2", "1h30", "30m1h", "1m1m", "1h-3m", "1hm", "1mss", "1h,30m", "1h30m5", "1 30m",
        "5 1h", "1h30mx", "5 parsecs", -1, True, float("nan"), float("inf"), "9" * 400 + "h",
    ],
)  # fmt: skip
def test_no_durations(text: str | float) -> None:
    with pytest.raises(ValueError, match="is not a duration: seconds, or a number with"):
        parse_duration(text)


@given(st.integers(min_value=10, max_value=10**9))
def test_durations_are_read_as_they_are_shown_to_people(seconds: int) -> None:
    assert seconds - 3600 < parse_duration(format_elapsed(seconds)) <= seconds


def test_a_duration_too_large_for_a_float() -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(10**400)


@pytest.mark.parametrize("text", ["abc", "", "²", "1_000", "-1", "9" * 20, "9" * 5000])
def test_an_invalid_whole_number(text: str) -> None:
    with pytest.raises(ValueError, match="is not a whole number from 0 to 2147483647"):
        parse_whole(text, 0)
