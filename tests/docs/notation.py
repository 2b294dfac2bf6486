"""How protocol.md shows a message: JSON, with `b"…"` for binary and `t"…"` for the timestamp extension."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

_STRING = re.compile(r'([bt]?)("(?:[^"\\]|\\.)*")')


def read(text: str) -> Any:
    """The value that is shown: dicts, lists, text, numbers, bytes and datetimes."""

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
    """The reverse, an entry a line where one line would be too long."""
    line = _line(value)
    if len(indent + line) <= 110 or not isinstance(value, dict | list):
        return line
    deeper = indent + "  "
    if isinstance(value, dict):
        inner = [f"{deeper}{json.dumps(key)}: {write(each, deeper)}" for key, each in value.items()]
        return "{\n" + ",\n".join(inner) + f"\n{indent}}}"
    return "[\n" + ",\n".join(deeper + write(each, deeper) for each in value) + f"\n{indent}]"


def _line(value: Any) -> str:
    match value:
        case dict():
            return "{" + ", ".join(f"{json.dumps(key)}: {_line(each)}" for key, each in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_line, value)) + "]"
        case bytes():
            return f"b{json.dumps(value.decode())}"
        case datetime():
            return f't"{value.astimezone(UTC).isoformat().replace("+00:00", "Z")}"'
    return json.dumps(value, ensure_ascii=False)
