"""Settings in files: JSON with comments, TOML, and `.env` files."""

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_LAST_COMMA = re.compile(r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])')
_VARIABLE = re.compile(
    r"""^\s*(?:export\s+)?([\w.-]+)\s*=[ \t]*(?:'((?:\\'|[^'])*)'|"((?:\\"|[^"])*)"|([^\r\n]*?))[ \t]*(?:\#[^\r\n]*)?$""",
    re.MULTILINE,
)

Read = Callable[[str], bytes | None]


class UnreadableError(Exception):
    """A file of settings makes no sense, or cannot be read. The message names it."""


def json_object(text: str, source: str, *, comments: bool = True) -> dict[str, Any]:
    """Return an object of JSON. `comments`: it may have comments and last commas. Raises `UnreadableError`."""
    for pattern, instead in ((_COMMENT, " "), (_LAST_COMMA, "")) if comments else ():
        text = pattern.sub(lambda found, instead=instead: found[1] or instead, text)  # type: ignore[misc]
    try:
        found = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"{source} cannot be read as JSON: {error}") from None
    if not isinstance(found, dict):
        raise UnreadableError(f"{source} is not a JSON object")
    return found


def json_file(read: Read, path: str, *, comments: bool = True) -> dict[str, Any]:
    """Return the object in a file of JSON; empty if there is none. Raises `UnreadableError`."""
    data = read(path)
    return {} if data is None else json_object(data.decode(errors="replace").removeprefix("\ufeff"), path, comments=comments)


def toml_file(read: Read, path: str) -> dict[str, Any]:
    """Return the table in a file of TOML; empty if there is none. Raises `UnreadableError`."""
    try:
        return tomllib.loads((read(path) or b"").decode(errors="replace").removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"{path} cannot be read as TOML: {error}") from None


def dotenv(data: bytes | None) -> dict[str, str]:
    """Return the variables that a `.env` file sets."""
    found = _VARIABLE.finditer((data or b"").decode(errors="replace").removeprefix("\ufeff"))
    return {name: next(filter(None, values), "") for name, *values in (match.groups() for match in found)}


def merged(*objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return the objects merged into each other; the later takes precedence."""
    result: dict[str, Any] = {}
    for each in objects:
        for key, value in each.items():
            old = result.get(key)
            result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def at(settings: Any, *keys: str) -> Any:
    """Return the value at a path of keys; `None` if there is none."""
    for key in keys:
        settings = settings.get(key) if isinstance(settings, dict) else None
    return settings


def upwards(directory: str) -> Iterator[str]:
    """Yield a directory and those above it, up to the root."""
    while True:
        yield directory
        above = directory.rpartition("/")[0] or "/"
        if above == directory:
            return
        directory = above
