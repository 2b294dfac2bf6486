"""Paths as the kernel follows them."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # as in `typing`, which takes ten milliseconds to import
if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST_LINKS = 40


class ForbiddenError(Exception):
    """A sandbox cannot be as it is asked for. The message says why."""


def within(path: str, top: str) -> bool:
    """Return whether a path is `top` or below it."""
    return path == top or top == "/" or path.startswith(top + "/")


def within_any(path: str, tops: Iterable[str]) -> bool:
    return any(within(path, top) for top in tops)


def followed(path: str) -> tuple[str, list[str]]:
    """Return the real path, and the links on the way to it. Each is read once, so that both tell of the same moment. Raise
    `ForbiddenError`."""
    names = path.split("/")[::-1]
    links: list[str] = []
    real = ""
    while names:
        name = names.pop()
        if name in ("", "."):
            continue
        if name == "..":
            real = real.rpartition("/")[0]
            continue
        try:
            target = os.readlink(f"{real}/{name}")
        except OSError:  # no link, or not there
            real = f"{real}/{name}"
            continue
        links.append(f"{real}/{name}")
        if len(links) > _MOST_LINKS:
            raise ForbiddenError(f"{path} is a link with too many others behind it")
        names += target.split("/")[::-1]
        real = "" if target.startswith("/") else real
    return real or "/", links


def topmost(paths: Iterable[str]) -> list[str]:
    """Return the paths that lie in no other."""
    found: list[str] = []
    for path in sorted(set(paths), key=len):
        if not within_any(path, found):
            found.append(path)
    return found
