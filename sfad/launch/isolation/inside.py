"""The command within a sandbox, as the processes outside see it.

bwrap         the main process: waits for the command, and ends with its exit code
└ bwrap       the first process of the sandbox's pid namespace
  └ command   the second
"""

from .. import procfs


def command_of(main: int) -> int | None:
    """Return the pid of the command that a main process keeps in a sandbox; `None` while there is none."""
    for first in procfs.children(main):
        if procfs.innermost_pid(first) == 1:
            return next((pid for pid in procfs.children(first) if procfs.innermost_pid(pid) == 2), None)
    return None
