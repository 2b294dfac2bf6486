"""Values in a config file: how each kind is written, converted, and described in an error."""

import grp
import ipaddress
import math
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from .core.state.policy import COUNT as COUNT
from .core.state.policy import NAMES as NAMES
from .core.state.policy import SIZE as SIZE
from .protocol.texts import units


class NotAllowed(ValueError):
    """A value that its key may not have. The message says which values are allowed."""


class Form(NamedTuple):
    """How a value of a feature is written: `Meta(extra={"form": Form(…)})`."""

    words: str
    """What is allowed."""
    check: Callable[[Any], object] = lambda _: None
    """Raises `ValueError`, or `NotAllowed` with other words."""


OFF = "off"
"""The value for "no limit", where the field may be `None`."""

PERCENT = {"unit": "percent"}
PATH = {"unit": "path"}
TEXT = {"unit": "text"}
COMMAND = {"unit": "command"}
LIMITS = {"unit": "limits"}
SHELL = {"unit": "shell"}
URL = {"unit": "url"}
VARIABLE = {"unit": "variable"}
AGENT = {"unit": "agent"}
GROUP = {"unit": "group"}

NAME_MAX = 256
"""The most characters of a name that the operator chooses (a model, a user, a team)."""


def _gid(group: Any) -> int:
    """Return the number of a group that is given by its name or its number."""
    if isinstance(group, str) and not group.isdecimal():
        return grp.getgrnam(group).gr_gid
    if isinstance(group, float):
        raise TypeError
    return int(group)


def _share(value: Any) -> float:
    """Return 0.2 for `20%`. A number is the part itself: 20 is outside the range."""
    if isinstance(value, str):
        if not value.strip().endswith("%"):
            raise ValueError
        return round(units.parse_percent(value) / 100, 6)
    return float(value)


_PARSERS: dict[str, Callable[[Any], float]] = {
    "duration": units.parse_duration,
    "size": units.parse_size,
    "count": units.parse_count,
    "group": _gid,
    "percent": _share,
}

_WORDS = {
    "path": "an absolute path",
    "names": "a list of names of 1 to 64 of A-Z a-z 0-9 . _ -",
    "agent": "the name of an agent",
    "group": "name or number of a group of this machine",
    "variable": "the name of an environment variable",
    "url": (
        'a URL that begins with http:// or https:// and does not end with "/", without user or '
        "password (use key_file)"
    ),
    "command": "a list of texts: the program and its arguments, one text each",
    "shell": 'a list of at most 16 commands for a shell, such as ["make test"]',
    "limits": 'a list of limits as --limit takes them, such as "turns=50" or "cost=2.50:warn"',
}


_HOST = re.compile(r"[^\s\x00-\x1f\x7f\"%<>\\\\^`{|}@]+")


@lru_cache
def is_base_url(url: str) -> bool:
    """Return whether requests can be sent to paths below a URL."""
    try:
        found = urlsplit(url)
        host, port = found.hostname or "", found.port
        if ":" in host:
            ipaddress.IPv6Address(host)
    except ValueError:
        return False
    well_formed = (
        found.scheme in {"http", "https"}
        and _HOST.fullmatch(host)
        and not re.search(r"[\s\x00-\x1f\x7f?#]", url)
    )
    return bool(well_formed) and port != 0


def converted(kind: Any, value: Any) -> Any:
    """Return a value from TOML as the type of its field. Raises `NotAllowed`, `ValueError`,
    `TypeError`, `OverflowError`, and `KeyError` for a group that does not exist."""
    if value == OFF and _may_be_off(kind):
        return None
    unit = _unit(kind)
    if unit in _PARSERS:
        if not isinstance(value, str | int | float):
            raise ValueError
        value = _PARSERS[unit](value)
    elif unit == "path" and not Path(value).is_absolute():
        raise ValueError
    result = msgspec.convert(value, kind)
    if (form := _form(kind)) is not None:
        form.check(result)
    if (unit == "url" and not is_base_url(value)) or (
        unit == "shell" and not all(map(str.strip, result))
    ):
        raise ValueError
    if isinstance(result, float) and not math.isfinite(result):
        raise ValueError
    return result


def allowed(kind: Any) -> str:
    """Return the values that a field of this type may have, in words."""
    meta = _meta(kind)
    if meta is None:
        return _allowed_unbounded(kind)
    return (
        f'{_allowed_range(kind, meta)}, or "{OFF}"'
        if _may_be_off(kind)
        else _allowed_range(kind, meta)
    )


def _allowed_unbounded(kind: Any) -> str:
    if kind is bool:
        return "true or false"
    if bool in get_args(kind):
        words = [f'"{word}"' for part in get_args(kind) for word in get_args(part)]
        return f"true, false or {' or '.join(words)}"
    if get_origin(kind) is tuple:
        return "a list of names"
    choices = [
        choice for part in _parts(kind) if get_origin(part) is Literal for choice in get_args(part)
    ]
    return "one of " + ", ".join(
        f'"{choice}"' for choice in [*choices, *([OFF] if _may_be_off(kind) else [])]
    )


def _allowed_range(kind: Any, meta: Meta) -> str:
    unit = _unit(kind)
    if (form := _form(kind)) is not None:
        return form.words
    if unit in _WORDS:
        return _WORDS[unit]
    if unit == "text":
        return f"a text of at most {meta.max_length} characters"
    if unit == "duration":
        return f"a duration of {_range(meta, units.format_duration)} ({units.DURATION_FORMS})"
    if unit == "size":
        return f"a size of {_range(meta, units.format_size)} ({units.SIZE_FORMS})"
    if unit == "percent":
        return 'a percentage from "0%" to below "100%"'
    if unit == "count":
        return f"a whole number {_between(meta)} ({units.COUNT_FORMS})"
    return f"{'a number' if float in _parts(kind) else 'a whole number'} {_between(meta)}"


def _range(meta: Meta, shown: Callable[[Any], str]) -> str:
    least = shown(meta.ge or 0)
    return f"{least} or more" if meta.le is None else f"{least} to {shown(meta.le)}"


def _between(meta: Meta) -> str:
    if meta.gt is not None:
        return f"above {_plain(meta.gt)}" + (
            "" if meta.lt is None else f" and below {_plain(meta.lt)}"
        )
    return f"{'of' if meta.le is None else 'from'} {_range(meta, _plain)}"


def _plain(number: float) -> str:
    return f"{number:.15g}"


def _meta(kind: Any) -> Meta | None:
    return next((part for part in _parts(kind) if isinstance(part, Meta)), None)


def _unit(kind: Any) -> str:
    meta = _meta(kind)
    return "" if meta is None else str((meta.extra or {}).get("unit", ""))


def _form(kind: Any) -> Form | None:
    meta = _meta(kind)
    return None if meta is None else (meta.extra or {}).get("form")


def _may_be_off(kind: Any) -> bool:
    return NoneType in _parts(kind) and _unit(kind) != "text"


def _parts(kind: Any) -> Iterator[Any]:
    yield kind
    for part in get_args(kind):
        yield from _parts(part)
