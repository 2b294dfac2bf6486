"""Run ids as numbers, by which rows are found."""

from __future__ import annotations

from ..core.ids import run_number

_HIGHEST = 2**63 - 1
"""SQLite's largest integer."""

_MOST_DIGITS = 13


def number_of(text: str) -> int:
    """Return the number of an id; for text that is no id return 0, which no row has."""
    try:
        number = run_number(text)
    except ValueError:
        return 0
    return number if number <= _HIGHEST else 0


def numbers_of(prefix: str) -> tuple[int, int] | None:
    """Return the lowest and the highest number whose id begins with `prefix`, or `None` if no id does.

    The numbers in between fit as well, because the first letter of an id says how many digits follow."""
    if not prefix:
        return 1, _HIGHEST
    missing = ord(prefix[0]) - ord("a") + 2 - len(prefix)
    if not 0 <= missing <= _MOST_DIGITS:
        return None
    # the first digit of an id is not zero
    lowest = "0" * missing if len(prefix) > 1 else "1".ljust(missing, "0")
    try:
        low, high = run_number(prefix + lowest), run_number(prefix + "v" * missing)
    except ValueError:
        return None
    return (low, min(high, _HIGHEST)) if low <= _HIGHEST else None
