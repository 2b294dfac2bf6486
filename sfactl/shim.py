"""A shim: it stands in for an agent program in the PATH of a run, and starts the program as a child
run (docs/agents.md).

Outside any run it becomes the program. So it does for a question such as `claude --version`, which
calls no model.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sfad.protocol.inherited import own_standard_descriptors, repair_process, unblock_signals

from .connecting.inside import inside_run
from .connecting.signals import end_waits
from .entry import guarded, leave
from .shims.real_program import become

INFORMATIONAL = frozenset({"--version", "-V", "--help", "-h"})
_OWN_DESCRIPTORS = ("/dev/fd/", "/proc/self/fd/")
"""What an argument holds that names a descriptor of this process, as `claude --mcp-config <(…)`
does. A child run would not have the descriptor, so the program is then not a child run."""


def main(program: str, *, automatic: bool = False) -> None:
    """Stand in for the program, with the arguments of this process. `automatic`: no person has
    installed this shim."""
    own_standard_descriptors()
    end_waits()
    leave(guarded(lambda: _stand_in(program, sys.argv[1:], automatic=automatic)))


def _stand_in(program: str, arguments: Sequence[str], *, automatic: bool) -> int:
    if inside_run() is None or (len(arguments) == 1 and arguments[0] in INFORMATIONAL):
        become(program, arguments, below=False)
    if any(place in word for word in arguments for place in _OWN_DESCRIPTORS):
        become(program, arguments, below=True)
    repair_process()
    unblock_signals()
    # imported here, because a program that is no child run does not need it
    from .shims.shimmed_run import carry_out

    return carry_out(program, arguments, automatic=automatic)
