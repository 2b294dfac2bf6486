"""Processes of the daemon's own that are no runs: how they are started, and how they ended."""

import os
import re
import signal
import sys
from collections.abc import Sequence

import trio

UNKNOWN = "how is not known"
"""The end of a process that another has reaped."""
_FOREIGN = ("NOTIFY_SOCKET", "LISTEN_", "WATCHDOG_", "MAINPID", "FDSTORE", "SFA_")
_DEFAULT = (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR2, signal.SIGPIPE)

FileActions = Sequence[tuple[int, int, int]]


def start_helper(
    words: Sequence[str], file_actions: FileActions, blocked: Sequence[int] = (), env: re.Pattern[str] | None = None
) -> int:
    """Start this interpreter with `words`, in a process group of its own. `env` matches the names of the variables
    that it gets, if not all. Return its pid. Raises `OSError`."""
    given = {key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN) and (env is None or env.match(key))}
    return os.posix_spawn(
        sys.executable, [sys.executable, "-P", *words], given,
        file_actions=file_actions, setsigmask=blocked, setsigdef=_DEFAULT, setpgroup=0,
    )  # fmt: skip


async def ended(pid: int) -> str | None:
    """Wait until a process has ended, and reap it. Return how it ended; `None` if there is none any more."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    try:
        await trio.lowlevel.wait_readable(pidfd)
        return _reap(pidfd)
    finally:
        os.close(pidfd)


def _reap(pidfd: int) -> str:
    try:
        status = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:  # that of an earlier daemon
        status = None
    if status is None:
        return UNKNOWN
    return f"{'exit code' if status.si_code == os.CLD_EXITED else 'signal'} {status.si_status}"
