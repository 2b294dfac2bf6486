"""Starts, watches, restarts and ends processes that are no runs and serve the program that starts
them: gateways, the readers of bodies for gateways, the exporter of spans and the like."""

import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import trio

from . import kernel

UNKNOWN = "how is not known"
"""The end of a process that another has reaped."""
GONE = "while no daemon was there"
LAST_WORDS = 1.0
"""Seconds after its end for which a process is listened to: what it has started may still have its
stderr."""
MAX_LINE = 2000
"""Bytes of a line that are heard."""
_FOREIGN = ("NOTIFY_SOCKET", "LISTEN_", "WATCHDOG_", "MAINPID", "FDSTORE", "SFA_")
_DEFAULT = (
    signal.SIGCHLD,
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGUSR2,
    signal.SIGPIPE,
)

FileActions = Sequence[tuple[Any, ...]]


class Owner(Protocol):
    """The launcher, which reaps orphans of runs."""

    def own(self, pid: int) -> None:
        """Take a child of the caller for no orphan."""

    def disown(self, pid: int) -> None:
        """Undo `own`: the process was reaped."""


class OwnProcess:
    """One such process at a time, which nothing else reaps."""

    def __init__(self, owner: Owner | None = None) -> None:
        self._owner = owner
        self._pid = 0
        self.started = 0
        """When it was started, in clock ticks: its pid may be used again."""

    @property
    def pid(self) -> int | None:
        """`None` while there is none."""
        return self._pid if self._pid and kernel.is_alive(self._pid, self.started) else None

    def has(self, pid: int) -> bool:
        return self._pid == pid and self.pid == pid

    def start(
        self,
        words: Sequence[str],
        file_actions: FileActions = (),
        *,
        blocked: Sequence[int] = (),
        env: re.Pattern[str] | None = None,
    ) -> int:
        """Start this interpreter with `words`, in a process group of its own. `blocked`: signals.
        `env` matches the names of the variables that it gets, if not all. Return its pid. Raises
        `OSError`."""
        if self._pid:
            _reap(os.P_PID, self._pid)
            self._forget(self._pid)
        given = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(_FOREIGN) and (env is None or env.match(key))
        }
        pid = os.posix_spawn(
            sys.executable, [sys.executable, "-P", "-X", "utf8", *words], given,
            file_actions=file_actions, setsigmask=blocked, setsigdef=_DEFAULT, setpgroup=0,
        )  # fmt: skip
        found = kernel.stat(pid)
        self._own(pid, found.started if found is not None else 0)
        return pid

    def adopt(self, pid: int, started: int) -> None:
        """Watch the one that an earlier daemon has started, if it is alive."""
        if pid and kernel.is_alive(pid, started):
            self._own(pid, started)

    def _own(self, pid: int, started: int) -> None:
        self._pid, self.started = pid, started
        if self._owner is not None:
            self._owner.own(pid)

    def _forget(self, pid: int) -> None:
        if self._owner is not None:
            self._owner.disown(pid)
        if self._pid == pid:
            self._pid = 0

    async def ended(self) -> str:
        """Wait until it has ended, and reap it. Return how it ended."""
        if not (pid := self._pid):
            return GONE
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._forget(pid)
            return GONE
        try:
            await trio.lowlevel.wait_readable(pidfd)
            how = _reap(os.P_PIDFD, pidfd)
        finally:
            os.close(pidfd)
        self._forget(pid)
        return how

    def signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if (pid := self.pid) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    async def kill(self) -> None:
        """Kill it, unless it has ended, and wait for that even where this task is cancelled."""
        self.signal(signal.SIGKILL)
        with trio.CancelScope(shield=True):
            await self.ended()

    async def run(self, words: Sequence[str], heard: Callable[[str], object]) -> str:
        """Start it, call `heard` with each line that it writes, and return how it ended. It is
        killed where this is cancelled. Its stdin is a pipe, which ends when this process does, or
        becomes another program. Raises `OSError`."""
        stdin, alive = os.pipe2(os.O_CLOEXEC)
        said, stderr = os.pipe2(os.O_CLOEXEC)
        try:
            try:
                numbers = ((stdin, 0), (stderr, 1), (stderr, 2))
                self.start(words, [(os.POSIX_SPAWN_DUP2, *each) for each in numbers])
            finally:
                os.close(stdin)
                os.close(stderr)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_listen, said, heard)
                how = await self.ended()
                nursery.cancel_scope.deadline = trio.current_time() + LAST_WORDS
            return how
        finally:
            await self.kill()
            os.close(said)
            os.close(alive)


def _reap(kind: int, name: int) -> str:
    try:
        status = os.waitid(kind, name, os.WEXITED | os.WNOHANG)
    except ChildProcessError:  # that of an earlier daemon
        status = None
    if status is None:
        return UNKNOWN
    return f"{'exit code' if status.si_code == os.CLD_EXITED else 'signal'} {status.si_status}"


async def _listen(descriptor: int, heard: Callable[[str], object]) -> None:
    os.set_blocking(descriptor, False)
    rest = b""
    while True:
        await trio.lowlevel.wait_readable(descriptor)
        with suppress(BlockingIOError):
            piece = os.read(descriptor, MAX_LINE)
            *lines, rest = (rest + (piece or b"\n")).split(b"\n")
            for line in filter(None, lines):
                heard(line[:MAX_LINE].decode(errors="replace"))
            if not piece:
                return
            rest = rest[:MAX_LINE]


async def keep(
    once: Callable[[], Awaitable[str | None]],
    failed: Callable[[str, float], object],
    first: float,
    most: float,
    *,
    wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Call `once` again and again while it is `wanted`. It returns how what it has started ended,
    or `None` if there is nothing wrong with that. Else `failed` is told how, and after how many
    seconds it is called again: `first`, then twice as many each time, up to `most`, and `first`
    again once it has taken longer than `most`."""
    pause = first
    while wanted():
        began = trio.current_time()
        try:
            how = await once()
        except OSError as error:
            how = f"it cannot be started: {error}"
        if how is not None:
            if trio.current_time() - began > most:
                pause = first
            failed(how, pause)
            await trio.sleep(pause)
            pause = min(2 * pause, most)
