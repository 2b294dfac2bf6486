"""Run numbers as text: base 32 after a letter that tells how many digits follow.

Plain base 32 stops being in order where a digit is added ("v" > "10") unless it is padded, and padded numbers make every
short prefix ambiguous. With the letter, text order is number order, and the first 1 023 ids have at most three characters.
"""

from functools import lru_cache

from ...protocol.types import RunId

_DIGITS = "0123456789abcdefghijklmnopqrstuv"


def run_id(number: int) -> RunId:
    """`1` → `a1`, `31` → `av`, `32` → `b10`. Numbers start at 1."""
    if number < 1:
        raise ValueError(f"run numbers start at 1, got {number}")
    digits = ""
    while number:
        number, digit = divmod(number, 32)
        digits = _DIGITS[digit] + digits
    return chr(ord("a") + len(digits) - 1) + digits


@lru_cache(maxsize=4096)
def run_number(run: RunId) -> int:
    """The inverse of `run_id`. Raises `ValueError` for text that is not a whole id."""
    digits = run[1:]
    if len(run) < 2 or ord(run[0]) - ord("a") + 1 != len(digits) or digits[0] == "0" or not set(digits) <= set(_DIGITS):
        raise ValueError(f"{run!r} is not a run id")
    return int(digits, 32)


def number_or_zero(text: str) -> int:
    """Return the number of an id; 0, which no run has, for any other text."""
    try:
        return run_number(text)
    except ValueError:
        return 0
