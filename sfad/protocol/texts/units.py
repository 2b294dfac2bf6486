"""Durations, sizes, counts and money: as people write them in flags, environment and config, and as
they are shown."""

from __future__ import annotations

from collections.abc import Callable

# No `re`, `decimal` or `datetime` here: every start of `sfactl` would wait for their import.


_SECONDS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

_ENDLESS = float("inf")

DURATION_FORMS = "seconds, or a number with ms, s, m, h or d, or several, as in 1h30m"


def parse_duration(text: str | float) -> float:
    """Return seconds from `90`, `"90"`, `"90s"`, `"1.5m"`, `"2d"`, `"250ms"` or `"1h30m"`, the
    largest unit first. Raise `ValueError` for anything else, also negative and non-finite
    numbers."""
    if isinstance(text, str):
        seconds = _seconds(text)
    else:
        try:
            seconds = float(text)
        except OverflowError:
            seconds = _ENDLESS
    if isinstance(text, bool) or not 0 <= seconds < _ENDLESS:
        raise ValueError(f"{text!r} is not a duration: {DURATION_FORMS}")
    return seconds


def _seconds(text: str) -> float:
    """Return the sum of the numbers with units of a text; -1 for anything else."""
    total, above, rest = 0.0, _ENDLESS, text.strip()
    while rest:
        behind = rest.lstrip("0123456789. \t\n\r\f\v")
        after = behind.lstrip("dhms")
        whole, part, unit = _parts(rest[: len(rest) - len(after)])
        scale = _SECONDS.get(unit, _ENDLESS)
        alone = above == _ENDLESS and not after
        if not whole or scale >= above or (not unit and not alone):
            return -1.0
        total += float(f"{whole}.{part}") * scale
        above, rest = scale, after
    return total if above < _ENDLESS else -1.0


def _parts(text: str) -> tuple[str, str, str]:
    """Return the digits before and after the point, and the word that follows the number. The first
    is empty for no number."""
    text = text.strip()
    word = text.lstrip("0123456789.")
    whole, point, part = text[: len(text) - len(word)].partition(".")
    if "." in part or (point and not part):
        whole = ""
    return whole, part, word.lstrip(" \t\n\r\f\v")


def format_duration(seconds: float) -> str:
    """Return the shortest exact form that `parse_duration` reads back: `90` → `90s`, `60` → `1m`,
    `0.25` → `250ms`."""
    if 0 < seconds < 1 and seconds * 1000 == int(seconds * 1000):
        return f"{int(seconds * 1000)}ms"
    for unit in ("d", "h", "m"):
        count = seconds / _SECONDS[unit]
        if count >= 1 and count == int(count):
            return f"{int(count)}{unit}"
    return f"{seconds:.15g}s"


def format_elapsed(seconds: float) -> str:
    """Return a duration for people, in at most two units: `0.4s`, `12s`, `3m20s`, `2h05m`,
    `4d03h`."""
    whole = int(seconds)
    if seconds < 10:
        return f"{max(seconds, 0):.1f}s"
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def format_moment(unix_time: float) -> str:
    """Return a time for people: `2026-01-31 22:04:05 UTC`."""
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(unix_time, UTC):%Y-%m-%d %H:%M:%S} UTC"


_BYTES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}

_ONES = {"": 1, "k": 1_000, "m": 1_000_000}

_WHOLE_DIGITS, _PART_DIGITS = 19, 18
"""Digits of a number before and after the point."""

_MOST = 2**63 - 1
"""The largest signed 64-bit number: the kernel's files, SQLite and msgpack take no more."""

MOST_COUNTED = 10**10
"""Tokens, tool calls or messages in one report, or in all of one agent: a million tokens a second
for almost three hours. More is a wrong unit, or a lie."""

MOST_SPENT = 10_000.0
"""The same in USD: a hundred times the largest limit of cost."""

SIZE_FORMS = "bytes, or a number with K, M, G or T"

COUNT_FORMS = "a number, or one with k or m"


def parse_size(text: str | int) -> int:
    """Return bytes from `65536`, `"512B"`, `"64KiB"`, `"200M"`, `"1.5G"` or `"2TB"`. Letters in any
    case; K, M, G and T are powers of 1024 whether `i` and `B` follow or not, as in the kernel's
    files. Fractions of a byte are dropped. Raise `ValueError` for anything else, also negative
    numbers and those above 2^63 - 1."""
    found = _scaled(text, _size_letter, _BYTES)
    if found is None:
        raise ValueError(f"{str(text)[:80]!r} is not a size: {SIZE_FORMS}")
    return found[0]


def _size_letter(word: str) -> str:
    """Return `k` for `k`, `ki`, `kb` and `kib`."""
    letter = word.removesuffix("b")
    return letter[0] if len(letter) == 2 and letter[1] == "i" else letter


def parse_count(text: str | int) -> int:
    """Return a whole number from `200`, `"200"`, `"200k"` or `"1.5m"`: k and m, in any case, are 1
    000 and 1 000 000. Raise `ValueError` for anything else, also negative numbers, those above 2^63
    - 1 and fractions (`"1.5"`)."""
    found = _scaled(text, str, _ONES)
    if found is None or found[1]:
        raise ValueError(f"{str(text)[:80]!r} is not a count: {COUNT_FORMS}")
    return found[0]


MOST_WHOLE = 2**31 - 1
"""Far above every setting that is a plain number, and within every format that one is sent in."""


def parse_whole(text: str, least: int = -MOST_WHOLE, most: int = MOST_WHOLE) -> int:
    """Return a whole number in ASCII digits, with or without a sign. Raise `ValueError` for
    anything else, and outside `least` to `most`. `int` alone would also take underscores and other
    digits, and refuse more than 4300 digits in words of its own."""
    digits = text.strip()
    digits = digits[1:] if digits.startswith(("+", "-")) else digits
    number = (
        int(text)
        if digits.isascii() and digits.isdigit() and len(digits) <= _WHOLE_DIGITS
        else None
    )
    if number is None or not least <= number <= most:
        raise ValueError(f"{text[:80]!r} is not a whole number from {least} to {most}")
    return number


USD_FORM = "an amount of USD, like 2.50"


def parse_decimal(text: str) -> float:
    """Return a number from `2`, `2.5` or `.5`. Raise `ValueError`."""
    if not (text.isascii() and text.replace(".", "", 1).isdigit() and float(text) < _ENDLESS):
        raise ValueError(f"{text[:80]!r} is not a decimal number")
    return float(text)


def parse_usd(text: str) -> float:
    """Return US dollars from `2.50` or `$2.50`. Raise `ValueError`."""
    try:
        return parse_decimal(text.strip().removeprefix("$"))
    except ValueError:
        raise ValueError(f"{text!r} is not {USD_FORM}") from None


PERCENT_FORM = "a percentage, like 10%"


def parse_percent(text: str) -> float:
    """Return the number of `10%` or `10`, at most 100. Raise `ValueError`."""
    number = parse_decimal(text.strip().removesuffix("%").rstrip())
    if number > 100:
        raise ValueError(f"{text!r} is more than 100 %")
    return number


def _scaled(
    text: str | int, letter: Callable[[str], str], scale: dict[str, int]
) -> tuple[int, int] | None:
    """Return a number that is not too large as a whole number and what is left of it; `None` for
    anything else."""
    if not isinstance(text, str):
        return (text, 0) if type(text) is int and 0 <= text <= _MOST else None
    whole, part, word = _parts(text)
    unit = letter(word.lower())
    if not (
        0 < len(whole) <= _WHOLE_DIGITS
        and len(part) <= _PART_DIGITS
        and word.isascii()
        and unit in scale
    ):
        return None
    number, rest = divmod(int(whole + part) * scale[unit], 10 ** len(part))
    return (number, rest) if number + (rest > 0) <= _MOST else None


def format_size(size: float) -> str:
    """Return bytes for people, with at most one decimal: `512 B`, `64 KiB`, `69.9 MiB`, `2 GiB`.
    `parse_size` reads the form."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if round(size, 1) < 1024:
            return f"{_decimals(size, 0 if unit == 'B' else 1)} {unit}"
        size /= 1024
    return f"{_decimals(size, 1)} TiB"


def format_short(count: int) -> str:
    """Return a count in at most five characters: `9999`, `12.3k`, `1.2M`."""
    if count < 10_000:
        return str(count)
    return f"{count / 1000:.1f}k" if count < 999_950 else f"{count / 1e6:.1f}M"


def format_usd(amount: float) -> str:
    """Return US dollars with two decimals, or with as many more as it takes to see them: `2.50`,
    `0.4512`, `0.000031`."""
    exact = f"{amount:.4f}" if amount >= 0.01 or amount == 0 else f"{amount:.6f}"
    whole, _, part = exact.partition(".")
    return f"{whole}.{part.rstrip('0').ljust(2, '0')}"


def _decimals(number: float, most: int) -> str:
    return f"{number:.{most}f}".removesuffix(".0")


def counted(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def in_snake_case(name: str) -> str:
    """Return `run_id` for `runId`, and `max_cost_usd` for `maxCostUSD`."""
    before = ("", *name)
    return "".join(
        f"_{letter}" if letter.isupper() and last.islower() else letter
        for last, letter in zip(before, name, strict=False)
    ).lower()
