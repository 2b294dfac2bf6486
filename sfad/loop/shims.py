"""The directory of shims, which comes first in the PATH of each run (docs/shims.md)."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from ..protocol.paths import SYSTEM_SHIMS, shim_dir


class ShimDirectory:
    """What there is in the directory, as of the last look: at the start, at a reload, and at each `status`. No launch looks."""

    def __init__(self, state: Path) -> None:
        self.path = shim_dir(state)
        self.programs: Sequence[str] = ()
        self.in_path: bytes | None = None
        """What the PATH of a run begins with; `None` if there is no shim."""
        self.look()

    def look(self) -> None:
        self.programs = sorted(_executables(self.path)) if ":" not in str(self.path) else ()  # PATH could not hold it
        self.in_path = os.fsencode(self.path) if self.programs else None

    def open_to(self, uid: int) -> bool:
        """Return whether a user can enter the directory: a state directory is open to the daemon's own user only."""
        return self.path == SYSTEM_SHIMS or uid == os.geteuid()


def _executables(directory: Path) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in entries if entry.is_file() and stat.S_IMODE(entry.stat().st_mode) & 0o111]
    except OSError:
        return []
