"""A shim: it stands in for an agent program in the PATH of a run, and starts the program as a child run (docs/shims.md).

Outside any run it becomes the program. So it does for a question such as `claude --version`, which calls no model.
"""

from __future__ import annotations

import sys

import sfad.protocol.light  # noqa: F401 - before any declaration of the protocol

from .entry import guarded, own_standard_descriptors
from .inside import inside_run
from .real_program import become

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


INFORMATIONAL = frozenset({"--version", "-V", "--help", "-h"})


def main(program: str) -> None:
    """Stand in for the program, with the arguments of this process."""
    own_standard_descriptors()
    sys.exit(guarded(lambda: _stand_in(program, sys.argv[1:])))


def _stand_in(program: str, arguments: Sequence[str]) -> int:
    if inside_run() is None or (len(arguments) == 1 and arguments[0] in INFORMATIONAL):
        become(program, arguments, below=False)
    # imported here, because it takes 30 ms
    from .shimmed_run import carry_out

    return carry_out(program, arguments)
