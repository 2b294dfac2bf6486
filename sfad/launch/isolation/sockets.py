"""Unix sockets in files, which a read-only mount leaves open to connect(2)."""

from __future__ import annotations

import os
import stat

from .paths import ForbiddenError

_MOST = 256
_MOST_FILES = 100_000
"""A tenth of a second."""


def named() -> set[str]:
    """Return where sockets are by the name that they were bound to. Of one bound by a relative path, or renamed, the kernel tells
    no path."""
    try:
        with open("/proc/net/unix", "rb") as file:
            lines = file.read().split(b"\n")
    except OSError:
        return set()
    names = [os.fsdecode(line[line.index(b" /") + 1 :]) for line in lines if b" /" in line]
    return {os.path.realpath(name) for name in names if _is_socket(name)}


def below(directory: str) -> tuple[set[str], bool]:
    """Return the sockets in a directory, whatever they were bound to, and whether it was looked through. It is not if it has more
    than a hundred thousand files."""
    found: set[str] = set()
    left = [directory]
    seen = 0
    while left:
        try:
            entries = list(os.scandir(left.pop()))
        except OSError:  # the command cannot look into it either, or it is a file
            continue
        seen += len(entries)
        if seen > _MOST_FILES:
            return found, False
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                left.append(entry.path)
            elif not entry.is_file(follow_symlinks=False) and not entry.is_symlink() and _is_socket(entry.path):
                found.add(entry.path)
    return found, True


def check_count(found: set[str]) -> None:
    """Raise `ForbiddenError` for more than can be covered."""
    if len(found) > _MOST:
        raise ForbiddenError(f"{len(found)} Unix sockets would have to be covered, and at most {_MOST} can be")


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False
