"""Room that is kept for the start of a daemon on a full disk, where SQLite cannot open the ledger without some."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from .private_files import create

SIZE = 2 * 1024 * 1024
"""Bytes that a start can need: to open the ledger, and to record the ends of runs that a dead daemon held in memory."""


class DiskReserve:
    """A file without content, which is removed when the disk is full."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "ballast"

    def fill(self) -> None:
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
        """Give the room back. Return whether there was any."""
        with suppress(OSError):
            size = self._size()
            self._path.unlink()
            return size > 0
        return False

    def _size(self) -> int:
        # what unlinking the file gives back: nothing for a symlink, or for a second link to another file
        try:
            found = self._path.lstat()
        except FileNotFoundError:
            return 0
        return found.st_blocks * 512 if stat.S_ISREG(found.st_mode) and found.st_nlink == 1 else 0
