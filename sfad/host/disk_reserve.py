"""Room that is kept for a daemon that has to start on a full disk: SQLite opens nothing without some."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from .private_files import create

SIZE = 2 * 1024 * 1024
"""Bytes: what opening a ledger, and writing down how the runs ended that a dead daemon had held in memory, can take."""


class DiskReserve:
    """A file that is of no use but to be thrown away."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "ballast"

    def fill(self) -> None:
        """Takes the room, where there is any."""
        with suppress(OSError):
            if self._size() >= SIZE:
                return
            descriptor = create(self._path)
            try:
                os.posix_fallocate(descriptor, 0, SIZE)
            except OSError:
                os.ftruncate(descriptor, 0)
            finally:
                os.close(descriptor)

    def release(self) -> bool:
        """Gives the room back; whether there was any."""
        with suppress(OSError):
            size = self._size()
            self._path.unlink()
            return size > 0
        return False

    def _size(self) -> int:
        """Bytes that unlinking the file gives back: none of a symlink, or of a second link to another file."""
        try:
            found = self._path.lstat()
        except FileNotFoundError:
            return 0
        return found.st_blocks * 512 if stat.S_ISREG(found.st_mode) and found.st_nlink == 1 else 0
