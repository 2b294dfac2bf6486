"""The exporter of spans, `sfactl otel`: a process of its own, because it speaks with a collector
that may be slow or hostile.

It reads the config and the ended runs as any client does, and remembers itself where it was. It
ends when the daemon does, or when it becomes another program: its stdin is a pipe from the
daemon."""

import os
from contextlib import suppress

import trio

from ...host.log import Log
from ...processes.launcher import Launcher
from ...processes.own_processes import UNKNOWN, OwnProcess, Restarts
from .feature import OtelConfig

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
        self._process = OwnProcess(launcher)
        self._log = log
        self._daemon = sock
        self._changed = trio.Event()
        self.trouble: str | None = None
        """What it said last, if that was no success."""

    @property
    def pid(self) -> int | None:
        return self._process.pid

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
        restarts = Restarts(PAUSE, PAUSE_MAX)
        while True:
            restarts.begins()
            try:
                how = await self._run()
            except OSError as error:
                how = f"it cannot be started: {error}"
            pause = restarts.pause()
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
            self._start(stdin, stderr)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._listen, said)
                how = await self._process.ended()
                nursery.cancel_scope.cancel()
            return how or UNKNOWN
        finally:
            await self._process.kill()  # what it has not exported, the next one does
            os.close(said)
            os.close(alive)

    def _start(self, stdin: int, stderr: int) -> None:
        try:
            actions = [
                (os.POSIX_SPAWN_DUP2, stdin, 0),
                (os.POSIX_SPAWN_DUP2, stderr, 1),
                (os.POSIX_SPAWN_DUP2, stderr, 2),
            ]
            pid = self._process.start(["-m", "sfactl.otel", self._daemon], actions)
        finally:
            os.close(stdin)
            os.close(stderr)
        self._log.info("exporter of spans", pid=pid, endpoint=self._config.endpoint)

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
