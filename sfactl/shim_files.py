"""Shims as files: their text, and how to tell them from programs. Imports little, because each shim imports it."""

import os
import sys

MARK = b"# sfad shim of "
"""The second line of a shim begins so, whatever its name, and wherever it was copied or linked to."""
_HEAD = 1024
_SHEBANG = 127
"""Bytes of an interpreter line that every kernel reads."""


def text(program: str) -> bytes:
    """Return the shim of a program: it runs with this interpreter and these packages, whatever the environment says."""
    import msgspec

    packages = list(dict.fromkeys(os.path.dirname(os.path.dirname(file)) for file in (__file__, msgspec.__file__)))
    lines = [
        *_interpreter(os.fsencode(sys.executable)),
        MARK + program.encode() + b", made by: sfactl shim install",
        b"import sys",
        b"sys.path[:0] = " + ascii(packages).encode(),
        b"from sfactl.shim import main",
        b"main(" + ascii(program).encode() + b")",
    ]
    return b"\n".join(lines) + b"\n"


def _interpreter(python: bytes) -> list[bytes]:
    line = b"#!" + python + b" -IS"
    if len(line) <= _SHEBANG and not set(python) & set(b" \t"):
        return [line]
    # to the shell a command that replaces it, to Python a string
    quoted = python.replace(b"'", b"'\"'\"'")
    return [b"#!/bin/sh", b"'''exec' '" + quoted + b'\' -IS "$0" "$@"', b"' '''"]


def is_shim(path: bytes) -> bool:
    """Return whether a file is a shim, of any installation. A file that may be executed but not read is not."""
    try:
        with open(path, "rb") as file:
            return b"\n" + MARK in file.read(_HEAD)
    except OSError:
        return False
