"""The directory of shims, which comes first in the PATH of each run (docs/shims.md)."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from ..protocol.paths import shim_dir


class ShimDirectory:
    """What there is in the directory, as of the last look: at the start, at a reload, and at each `status`. No launch looks."""

    def __init__(self, state: Path) -> None:
        self.path = shim_dir(state)
        self.programs: Sequence[str] = ()
        self.look()

    def look(self) -> None:
        """Find out which programs have a shim. Without a shim, or with a path that PATH cannot hold, no run gets the directory."""
        self.programs = () if ":" in str(self.path) else sorted(_executables(self.path))

    @property
    def in_path(self) -> bytes | None:
        """What the PATH of a run begins with."""
        return os.fsencode(self.path) if self.programs else None


def _executables(directory: Path) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in entries if entry.is_file() and stat.S_IMODE(entry.stat().st_mode) & 0o111]
    except OSError:
        return []
