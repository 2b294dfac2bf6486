"""`make trampoline`, too: compile holder.c, and write the image into the package."""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import sfad.features.terminals
from tests.bench.native import COMPILER
from tests.processes.trampoline_image import OPTIONS, in_lines, output_of

PACKAGE = Path(sfad.features.terminals.__file__).parent
MODULE = '''"""holder.c, compiled. Written by `make trampoline`; do not edit."""

COMPILER = "{compiler}"
SOURCE = "{source}"
"""SHA-256 of holder.c."""
IMAGE = bytes.fromhex("""
{image}
""")
'''


class Compiled(NamedTuple):
    compiler: str
    """Of which only the same version makes the same bytes."""
    source: str
    image: bytes


def source() -> str:
    """Return the digest of the C file."""
    return hashlib.sha256((PACKAGE / "holder.c").read_bytes()).hexdigest()


def compiled() -> Compiled:
    """Compile it. Raises `subprocess.CalledProcessError`."""
    with tempfile.TemporaryDirectory() as place:
        program = Path(place, "holder")
        output_of(str(COMPILER), *OPTIONS.split(), "-o", str(program), str(PACKAGE / "holder.c"))
        output_of("strip", "--strip-all", str(program))
        version = output_of(str(COMPILER), "-dumpfullversion").strip()
        return Compiled(f"gcc {version}", source(), program.read_bytes())


def main() -> None:
    """Write the module."""
    if COMPILER is None:
        sys.exit("make trampoline: no C compiler: install gcc and libc6-dev")
    found = compiled()
    (PACKAGE / "image.py").write_text(
        MODULE.format(**found._asdict() | {"image": in_lines(found.image)})
    )


if __name__ == "__main__":
    main()
