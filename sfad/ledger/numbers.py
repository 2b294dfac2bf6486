"""Ids as numbers, which is what rows are found by."""

from __future__ import annotations

from ..core.ids import run_number

_HIGHEST = 2**63 - 1
"""SQLite's integers end here."""

_MOST_DIGITS = 13


def number_of(text: str) -> int:
    """The number of an id; 0, which no row has, for text that cannot be one."""
    try:
        number = run_number(text)
    except ValueError:
        return 0
    return number if number <= _HIGHEST else 0


def numbers_of(prefix: str) -> tuple[int, int] | None:
    """The lowest and the highest number whose id begins with `prefix`: one range, since the first letter tells how many
    digits follow. `None` where no id does."""
    if not prefix:
        return 1, _HIGHEST
    missing = ord(prefix[0]) - ord("a") + 2 - len(prefix)
    if not 0 <= missing <= _MOST_DIGITS:
        return None
    # no id has a zero for its first digit
    lowest = "0" * missing if len(prefix) > 1 else "1".ljust(missing, "0")
    try:
        low, high = run_number(prefix + lowest), run_number(prefix + "v" * missing)
    except ValueError:
        return None
    return (low, min(high, _HIGHEST)) if low <= _HIGHEST else None
