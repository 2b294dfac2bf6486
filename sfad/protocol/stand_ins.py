"""Stand-ins for agent programs, as those know them that come upon one."""

from __future__ import annotations

from .known import STAND_IN

_HEAD = 1024


def is_stand_in(path: bytes) -> bool:
    """Return whether a file is one, of any installation. A file that may be executed but not read
    is not."""
    try:
        with open(path, "rb") as file:
            return b"\n" + STAND_IN in file.read(_HEAD)
    except OSError:
        return False
