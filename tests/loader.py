"""For which programs glibc's dynamic loader obeyed an environment, by what it wrote because of
LD_DEBUG (ld.so(8))."""

from __future__ import annotations

import os
import re
from pathlib import Path


def tracing(output: Path) -> list[bytes]:
    """Return an environment that has the loader write to files whose names begin with `output`."""
    return [b"PATH=/usr/bin:/bin", b"LD_DEBUG=libs", b"LD_DEBUG_OUTPUT=" + os.fsencode(output)]


def traced(output: Path) -> set[tuple[str, int]]:
    """Return the names of these programs, and the users who own what was written."""
    found = set()
    for file in output.parent.glob(f"{output.name}.*"):
        programs = re.findall(r"initialize program: (\S+)", file.read_text())
        found |= {(os.path.basename(program), file.stat().st_uid) for program in programs or ["?"]}
    return found
