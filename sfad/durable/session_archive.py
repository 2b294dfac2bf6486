"""Deletes the output of sessions that ended a while ago. Their rows and events stay: they tell what was spent, and what failed."""

import sqlite3
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio

from ..config import SessionsConfig
from ..host.clock import wall_clock
from ..host.tasks import in_thread
from ..ledger.database import open_reader
from ..ledger.reader import Reader
from ..output import OutputFiles
from ..output.deletion import remove
from ..protocol.types import RunId

EARLIER = 2 * 86400.0
"""Seconds before the start in which an earlier daemon's sessions are looked for. What is older goes with other old output."""


@dataclass(slots=True)
class SessionArchive:
    """Carries out `archive_ttl_minutes` and `cleanup_interval_seconds`. `report` is told of failures."""

    ledger: Path
    """Its directory."""
    output: OutputFiles
    settings: SessionsConfig
    report: Callable[[str], object]
    _ended: deque[tuple[float, RunId]] = field(default_factory=deque)
    """When sessions ended, in seconds since the epoch, the oldest first."""

    def ended(self, run: RunId) -> None:
        self._ended.append((wall_clock().timestamp(), run))

    def reconfigure(self, settings: SessionsConfig) -> None:
        self.settings = settings

    async def look_for_earlier(self) -> None:
        """Find the sessions that ended under an earlier daemon."""
        since = wall_clock().timestamp() - EARLIER - self.settings.archive_ttl_minutes * 60
        try:
            earlier = await in_thread(_ended_sessions, self.ledger, since)  # no index has them: it reads each run since then
        except (OSError, sqlite3.Error) as error:
            self.report(
                f"sessions that have ended cannot be read from the ledger: {error}; their output goes with other old output"
            )
        else:
            self._ended.extendleft(reversed(earlier))

    async def serve(self) -> None:
        """Delete what is due, again and again, until cancelled."""
        await self.look_for_earlier()
        while True:
            await self.look()
            await trio.sleep(self.settings.cleanup_interval_seconds)

    async def look(self) -> None:
        """Delete what is due. Raise nothing: what cannot be deleted goes with other old output."""
        cutoff = wall_clock().timestamp() - self.settings.archive_ttl_minutes * 60
        due: list[RunId] = []
        while self._ended and self._ended[0][0] <= cutoff:
            due.append(self._ended.popleft()[1])
        if due:
            try:
                await in_thread(partial(remove, self.output.directory, due, dry=False, between=lambda: None))
            except OSError as error:
                self.report(f"output of sessions that have ended could not be deleted: {error}")


def _ended_sessions(directory: Path, since: float) -> list[tuple[float, RunId]]:
    with closing(Reader(open_reader(directory))) as reader:
        return reader.ended_sessions(since)
