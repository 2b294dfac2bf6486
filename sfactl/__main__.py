"""The command `sfactl`."""

import gc
import sys
from collections.abc import Callable
from typing import Any


def main() -> None:
    # Collections would take a sixth of a call, and hardly anything is garbage before the verb
    # begins, which enables them.
    gc.disable()
    from sfad.protocol.inherited import repair_process, unblock_signals

    repair_process()
    unblock_signals()
    from .entry import leave

    leave(execute(sys.argv[1:]))


def execute(arguments: list[str]) -> int:
    """Carry out a command line. Return its exit code; errors are printed on stderr."""
    from .app import carry_out
    from .entry import guarded

    return guarded(lambda: carry_out(arguments, _elsewhere))


def _elsewhere(verb: str, function: Callable[..., int], values: dict[str, Any]) -> int:
    from . import over_fleet  # most command lines are about this node

    return over_fleet.carry_out(verb, function, values)


if __name__ == "__main__":
    main()
