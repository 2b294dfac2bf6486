"""The notation of messages in protocol.md: JSON, with `b"…"` for binary and `t"…"` for the
timestamp extension."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

WIDTH = 110
"""Characters on a line."""

_STRING = re.compile(r'([bt]?)("(?:[^"\\]|\\.)*")')


def read(text: str) -> Any:
    """Return the value of a text: dicts, lists, text, numbers, bytes and datetimes."""

    def tagged(found: re.Match[str]) -> str:
        return f'{{"${found[1]}": {found[2]}}}' if found[1] else found[2]

    return json.loads(_STRING.sub(tagged, text), object_hook=_untag)


def _untag(value: dict[str, Any]) -> Any:
    match value:
        case {"$b": content}:
            return content.encode()
        case {"$t": moment}:
            return datetime.fromisoformat(moment)
    return value


def write(value: Any, indent: str = "") -> str:
    """Return the notation of a value, in lines of at most 110 characters where its entries
    allow."""
    line = _line(value)
    if len(indent + line) <= WIDTH or not isinstance(value, dict | list):
        return line
    deeper = indent + "  "
    if isinstance(value, dict):
        return (
            "{\n"
            + _fill(
                [f"{json.dumps(key)}: {write(each, deeper)}" for key, each in value.items()], deeper
            )
            + f"\n{indent}}}"
        )
    return "[\n" + _fill([write(each, deeper) for each in value], deeper) + f"\n{indent}]"


def _fill(entries: list[str], indent: str) -> str:
    """Put as many entries on a line as fit."""
    lines = [indent + entries[0]]
    for entry in entries[1:]:
        longer = f"{lines[-1]}, {entry}"
        if len(longer) < WIDTH and "\n" not in longer:
            lines[-1] = longer
        else:
            lines[-1] += ","
            lines.append(indent + entry)
    return "\n".join(lines)


def _line(value: Any) -> str:
    match value:
        case dict():
            return (
                "{"
                + ", ".join(f"{json.dumps(key)}: {_line(each)}" for key, each in value.items())
                + "}"
            )
        case list():
            return "[" + ", ".join(map(_line, value)) + "]"
        case bytes():
            return f"b{json.dumps(value.decode())}"
        case datetime():
            return f't"{value.astimezone(UTC).isoformat().replace("+00:00", "Z")}"'
    return json.dumps(value, ensure_ascii=False)
