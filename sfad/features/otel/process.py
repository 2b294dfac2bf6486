"""The exporter of spans, `sfactl otel`: a process of its own, because it speaks with a collector
that may be slow or hostile.

It reads the config and the ended runs as any client does, and remembers itself where it was. It
ends when the daemon does, or when it becomes another program."""

import trio

from ...host.log import Log
from ...processes.launcher import Launcher
from ...processes.own_processes import OwnProcess, keep
from .feature import OtelConfig

PAUSE, PAUSE_MAX = 1.0, 300.0
"""Seconds until an ended exporter is started again."""
WORKS = "exporting "
"""How its line begins when the collector has taken spans, or none were refused yet."""


class OtelProcess:
    def __init__(self, config: OtelConfig, launcher: Launcher, log: Log, *, sock: str) -> None:
        self._config = config
        self._process = OwnProcess(launcher)
        self.is_process = self._process.has
        self._log = log
        self._daemon = sock
        self._changed = trio.Event()
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
                    nursery.start_soon(keep, self._run, self._ended, PAUSE, PAUSE_MAX)
                await self._changed.wait()
                nursery.cancel_scope.cancel()

    async def _run(self) -> str:
        """Start it, and return how it ended. What it has not exported then, the next one does."""
        self._log.info("exporter of spans", endpoint=self._config.endpoint)
        return await self._process.run(["-m", "sfactl.otel", self._daemon], self._said)

    def _ended(self, how: str, pause: float) -> None:
        self.trouble = f"{self.trouble or 'the exporter of spans ended'} ({how})"
        self._log.warning(
            f"the exporter of spans ended ({how}); it is started again in {pause:g} s"
        )

    def _said(self, line: str) -> None:
        works = line.startswith(WORKS)
        self.trouble = None if works else line
        (self._log.info if works else self._log.warning)(f"spans: {line}")
