"""Shims as files: where they are, their text, and how a login shell finds them again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from ...protocol.known import STAND_IN
from ...protocol.paths import is_systems

SYSTEM_SHIMS = Path("/usr/local/lib/sfad/shims")
BASH_ENV = ".bash_env"
"""The file in a directory of shims that bash reads before a script, and in `bash -lc` after
/etc/profile has set PATH."""
FIND_AGAIN = rb"""# sfad: a login shell sets PATH again, and would lose the shims
if [ -n "${SFA_BASH_ENV-}" ]; then
    eval "_sfa=\"$SFA_BASH_ENV\""
    [ ! -r "$_sfa" ] || . "$_sfa"
    unset _sfa
fi
case "$PATH:" in "${SFA_SHIMS-}":*) ;; *) PATH="${SFA_SHIMS:+$SFA_SHIMS:}$PATH" ;; esac
"""
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
_SHEBANG = 127
"""Bytes of an interpreter line that every kernel reads."""


def shim_dir(state: Path) -> Path:
    """The directory of the shims that the runs of a daemon find first in their PATH, given its
    state directory.

    The system's state is open to root only, but its runs have other users."""
    return SYSTEM_SHIMS if is_systems(state) else state / "shims"


def text(program: str, *, automatic: bool = False) -> bytes:
    """Return the shim of a program: it runs with this interpreter and these packages, whatever the
    environment says. `automatic`: the daemon makes it, and no person has installed it."""
    packages = list(
        dict.fromkeys(
            (os.path.dirname(_PACKAGE), os.path.dirname(os.path.dirname(msgspec.__file__)))
        )
    )
    how = b"sfad, for runs that use the gateway" if automatic else b"sfactl shim install"
    lines = [
        *_interpreter(os.fsencode(sys.executable)),
        STAND_IN + program.encode() + b", made by: " + how,
        b"import sys",
        b"sys.path[:0] = " + ascii(packages).encode(),
        b"from sfactl.shim import main",
        b"main(" + ascii(program).encode() + (b", automatic=True)" if automatic else b")"),
    ]
    return b"\n".join(lines) + b"\n"


def _interpreter(python: bytes) -> list[bytes]:
    line = b"#!" + python + b" -IS"
    if len(line) <= _SHEBANG and not set(python) & set(b" \t"):
        return [line]
    # to the shell a command that replaces it, to Python a string
    quoted = python.replace(b"'", b"'\"'\"'")
    return [b"#!/bin/sh", b"'''exec' '" + quoted + b'\' -IS "$0" "$@"', b"' '''"]
