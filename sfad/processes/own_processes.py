"""Processes of the daemon's own that are no runs: the gateways, the exporter of spans, what makes
the actor of a fleet's node. How they are started, how they ended, and when they are started
again."""

import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

import trio

from .launcher import Launcher

UNKNOWN = "how is not known"
"""The end of a process that another has reaped."""
_FOREIGN = ("NOTIFY_SOCKET", "LISTEN_", "WATCHDOG_", "MAINPID", "FDSTORE", "SFA_")
_DEFAULT = (
    signal.SIGCHLD,
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGUSR2,
    signal.SIGPIPE,
)

FileActions = Sequence[tuple[int, int, int]]


def start_own(
    words: Sequence[str],
    file_actions: FileActions,
    blocked: Sequence[int] = (),
    env: re.Pattern[str] | None = None,
) -> int:
    """Start this interpreter with `words`, in a process group of its own. `env` matches the names
    of the variables that it gets, if not all. Return its pid. Raises `OSError`."""
    given = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(_FOREIGN) and (env is None or env.match(key))
    }
    return os.posix_spawn(
        sys.executable, [sys.executable, "-P", "-X", "utf8", *words], given,
        file_actions=file_actions, setsigmask=blocked, setsigdef=_DEFAULT, setpgroup=0,
    )  # fmt: skip


async def ended(pid: int) -> str | None:
    """Wait until a process has ended, and reap it. Return how it ended; `None` if there is none any
    more."""
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


class OwnProcess:
    """One such process at a time, which nothing else reaps."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self.pid: int | None = None

    def start(self, words: Sequence[str], file_actions: FileActions) -> int:
        """As `start_own`."""
        self.pid = start_own(words, file_actions)
        self._launcher.own(self.pid)
        return self.pid

    async def ended(self) -> str | None:
        """Wait until it has ended, as `ended` does."""
        assert self.pid is not None
        how = await ended(self.pid)
        self._launcher.disown(self.pid)
        self.pid = None
        return how

    async def kill(self) -> None:
        """Kill it, unless it has ended, and wait for that even where this task is cancelled."""
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            with trio.CancelScope(shield=True):
                await self.ended()


class Restarts:
    """How long to wait until what has ended is started again: each time twice as long, until one
    has lived for `most` seconds."""

    def __init__(self, first: float, most: float) -> None:
        self._first = self._pause = first
        self._most = most
        self._began = 0.0

    def begins(self) -> None:
        """It is started now."""
        self._began = trio.current_time()

    def pause(self) -> float:
        """Return the seconds to wait, now that it has ended."""
        lived = trio.current_time() - self._began
        self._pause = self._first if lived > self._most else min(2 * self._pause, self._most)
        return self._pause
