"""Programs and libraries in C, where a compiler is there."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

COMPILER = shutil.which("cc") or shutil.which("gcc")


@cache
def compiled(source: str, *options: str) -> Path | None:
    """Return the program or library from `source`, a file beside this one; None without a compiler."""
    if COMPILER is None:
        return None
    place = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, place)
    made = Path(place, source).with_suffix("")
    subprocess.run([COMPILER, "-O2", *options, "-o", made, Path(__file__).with_name(source)], check=True)
    return made
