"""The exporter of spans, `sfactl otel`: a process of its own, because it speaks with a collector
that may be slow or hostile.

It reads the config and the ended runs as any client does, and remembers itself where it was. It
ends when the daemon does, or when it becomes another program: its stdin is a pipe from the
daemon."""

import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

import trio

from ...config import OtelConfig
from ...host.log import Log
from ...processes.launcher import Launcher

# ---- Processes of the daemon's own that are no runs: how they are started, and how they ended


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


def start_helper(
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


# ---- The exporter of spans


PAUSE, PAUSE_MAX = 1.0, 300.0
"""Seconds until an ended exporter is started again: doubled each time, until one has lived for
`PAUSE_MAX`."""
MAX_LINE = 1000
"""Bytes of a line of its stderr that are logged."""
WORKS = "exporting "
"""How its line begins when the collector has taken spans, or none were refused yet."""


class OtelProcess:
    def __init__(self, config: OtelConfig, launcher: Launcher, log: Log, *, sock: str) -> None:
        self._config = config
        self._launcher = launcher
        self._log = log
        self._daemon = sock
        self._changed = trio.Event()
        self.pid: int | None = None
        self.trouble: str | None = None
        """What it said last, if that was no success."""

    @property
    def endpoint(self) -> str | None:
        return self._config.endpoint

    def reconfigure(self, config: OtelConfig) -> None:
        if config != self._config:
            self._config = config
            self._changed.set()

    async def serve(self) -> None:
        """Keep the exporter running where the config has an endpoint, until cancelled."""
        while True:
            self._changed, self.trouble = trio.Event(), None
            async with trio.open_nursery() as nursery:
                if self._config.endpoint is not None:
                    nursery.start_soon(self._keep)
                await self._changed.wait()
                nursery.cancel_scope.cancel()

    async def _keep(self) -> None:
        pause = PAUSE
        while True:
            began = trio.current_time()
            try:
                how = await self._run()
            except OSError as error:
                how = f"it cannot be started: {error}"
            pause = PAUSE if trio.current_time() - began > PAUSE_MAX else min(2 * pause, PAUSE_MAX)
            self.trouble = f"{self.trouble or 'the exporter of spans ended'} ({how})"
            self._log.warning(
                f"the exporter of spans ended ({how}); it is started again in {pause:g} s"
            )
            await trio.sleep(pause)

    async def _run(self) -> str:
        """Start it, log what it says, and return how it ended."""
        stdin, alive = os.pipe2(os.O_CLOEXEC)
        said, stderr = os.pipe2(os.O_CLOEXEC)
        try:
            pid = self._started(stdin, stderr)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._listen, said)
                how = await ended(pid)
                self._forget(pid)
                nursery.cancel_scope.cancel()
            return how or UNKNOWN
        finally:
            await self._end()
            os.close(said)
            os.close(alive)

    def _started(self, stdin: int, stderr: int) -> int:
        try:
            actions = [
                (os.POSIX_SPAWN_DUP2, stdin, 0),
                (os.POSIX_SPAWN_DUP2, stderr, 1),
                (os.POSIX_SPAWN_DUP2, stderr, 2),
            ]
            pid = start_helper(["-m", "sfactl.otel", self._daemon], actions)
        finally:
            os.close(stdin)
            os.close(stderr)
        self._launcher.own(pid)
        self.pid = pid
        self._log.info("exporter of spans", pid=pid, endpoint=self._config.endpoint)
        return pid

    async def _end(self) -> None:
        """Kill the process, unless it has ended. What it has not exported, the next one does."""
        if (pid := self.pid) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with trio.CancelScope(shield=True):
                await ended(pid)
            self._forget(pid)

    def _forget(self, pid: int) -> None:
        self._launcher.disown(pid)
        self.pid = None

    async def _listen(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        rest = b""
        while True:
            await trio.lowlevel.wait_readable(descriptor)
            with suppress(BlockingIOError):
                piece = os.read(descriptor, MAX_LINE)
                if not piece:
                    return
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    self._said(line[:MAX_LINE].decode(errors="replace"))
                rest = rest[:MAX_LINE]

    def _said(self, line: str) -> None:
        works = line.startswith(WORKS)
        self.trouble = None if works else line
        (self._log.info if works else self._log.warning)(f"spans: {line}")
