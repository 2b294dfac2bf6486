"""Programs and libraries in C, where a compiler is there."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path


class NoCompiler(Exception):
    """What is measured needs a C compiler."""


COMPILER = shutil.which("cc") or shutil.which("gcc")


@cache
def compiled(source: str, *options: str) -> Path | None:
    """Return the program or library from `source`, a file beside this one; None without a
    compiler."""
    if COMPILER is None:
        return None
    place = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, place)
    made = Path(place, source).with_suffix("")
    subprocess.run(
        [COMPILER, "-O2", *options, "-o", made, Path(__file__).with_name(source)], check=True
    )
    return made


def floor(*words: object) -> list[str]:
    """Return the command line of a part of floor.c."""
    if (program := compiled("floor.c")) is None:
        raise NoCompiler("a C compiler is needed")
    return [str(program), *map(str, words)]


def numbers(*words: object, env: Mapping[str, str] | None = None) -> list[int]:
    """Return what a part of floor.c prints."""
    done = subprocess.run(floor(*words), stdout=subprocess.PIPE, check=True, env=env)
    return [int(word) for word in done.stdout.split()]
