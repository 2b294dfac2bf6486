"""Room that is kept for a daemon that has to start on a full disk: SQLite opens nothing without some."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

SIZE = 2 * 1024 * 1024
"""Bytes: what opening a ledger, and writing down how the runs ended that a dead daemon had held in memory, can take."""


class Ballast:
    """A file that is of no use but to be thrown away."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "ballast"

    def take_on(self) -> None:
        """Takes the room, where there is any."""
        with suppress(OSError):
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, SIZE)
            except OSError:
                os.ftruncate(descriptor, 0)
            finally:
                os.close(descriptor)

    def throw_away(self) -> bool:
        """Gives the room back; whether there was any."""
        with suppress(OSError):
            size = self._path.stat().st_size
            self._path.unlink()
            return size > 0
        return False
