"""`make trampoline`: compile trampoline.c, and write the image into the package."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

import sfad.processes.trampoline
from tests.bench.native import COMPILER

PACKAGE = Path(sfad.processes.trampoline.__file__).parent
OPTIONS = """
-Os -ffreestanding -fno-pie -fno-stack-protector -fno-stack-clash-protection -fcf-protection=none
-mgeneral-regs-only -fno-asynchronous-unwind-tables -fno-ident -Wall -Wextra -Werror
-nostdlib -static -no-pie
-Wl,--build-id=none -Wl,-z,noseparate-code -Wl,-z,noexecstack
"""
LOAD = 0x400000
"""Where the linker puts the file's first byte."""
MODULE = '''"""trampoline.c, compiled. Written by `make trampoline`; do not edit."""

COMPILER = "{compiler}"
SOURCE = "{source}"
"""SHA-256 of trampoline.c."""
CLONE_AT = {clone_at}
"""Where in the image `clone_child` is."""
IMAGE = bytes.fromhex("""
{image}
""")
'''


class Compiled(NamedTuple):
    compiler: str
    """Of which only the same version makes the same bytes."""
    source: str
    clone_at: int
    image: bytes


def source() -> str:
    """Return the digest of the C file."""
    return hashlib.sha256((PACKAGE / "trampoline.c").read_bytes()).hexdigest()


@cache
def compiled() -> Compiled:
    """Compile it. Raises `subprocess.CalledProcessError`."""
    with tempfile.TemporaryDirectory() as place:
        program = Path(place, "trampoline")
        output_of(
            str(COMPILER), *OPTIONS.split(), "-o", str(program), str(PACKAGE / "trampoline.c")
        )
        symbols = {
            name: int(at, 16)
            for at, _, name in (line.split() for line in output_of("nm", str(program)).splitlines())
        }
        output_of("strip", "--strip-all", str(program))
        version = output_of(str(COMPILER), "-dumpfullversion").strip()
        return Compiled(
            f"gcc {version}", source(), symbols["clone_child"] - LOAD, program.read_bytes()
        )


def output_of(*argv: str) -> str:
    return subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout


def in_lines(image: bytes) -> str:
    """Return it in hexadecimal, in lines."""
    text = image.hex()
    return "\n".join(text[at : at + 64] for at in range(0, len(text), 64))


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
