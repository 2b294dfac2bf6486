"""Durations as people write them. Pure; the same rules for flags, environment and config."""

from __future__ import annotations

import math
import re

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)?", re.ASCII)

DURATION_FORMS = "seconds, or a number with ms, s, m, h or d"
"""How a duration may be written, for messages."""


def parse_duration(text: str | float) -> float:
    """Seconds from `90`, `"90"`, `"90s"`, `"1.5m"`, `"1h"`, `"2d"` or `"250ms"`.

    Raises `ValueError` for anything else, negative and non-finite numbers included.
    """
    seconds = float(text) if isinstance(text, int | float) else _parse(text)
    if isinstance(text, bool) or not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"{text!r} is not a duration: {DURATION_FORMS}")
    return seconds


def _parse(text: str) -> float:
    found = _DURATION.fullmatch(text.strip())
    return math.nan if found is None else float(found[1]) * _SECONDS[found[2] or "s"]


def format_duration(seconds: float) -> str:
    """The shortest exact form that `parse_duration` reads back: `90` → `90s`, `60` → `1m`, `0.25` → `250ms`."""
    if 0 < seconds < 1 and seconds * 1000 == int(seconds * 1000):
        return f"{int(seconds * 1000)}ms"
    for unit in ("d", "h", "m"):
        count = seconds / _SECONDS[unit]
        if count >= 1 and count == int(count):
            return f"{int(count)}{unit}"
    return f"{seconds:.15g}s"
