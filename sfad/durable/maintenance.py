"""Keeps the state directory within bounds: when each job is due, and what is told of its failure."""

import sqlite3
from collections.abc import Callable, Collection, Hashable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from functools import partial

import trio

from ..config import RetentionConfig
from ..host.tasks import FairLock, in_thread
from ..ledger import LedgerError
from ..protocol.messages import Prune, Pruned
from ..protocol.types import RunId
from .jobs import MaintenanceJobs

FIRST_ROUND_AFTER = 60.0
"""Seconds after the start until the first round of jobs."""


@dataclass(slots=True)
class Maintenance:
    """Carries out the `[retention]` settings. One job runs after the other, in a thread. `report` is told of each failure once,
    until it changes or is over."""

    jobs: MaintenanceJobs
    settings: RetentionConfig
    report: Callable[[str], object]
    _told: dict[str, str] = field(default_factory=dict)
    _changed: trio.Event = field(default_factory=trio.Event)
    _deleting: FairLock = field(default_factory=FairLock)
    """Two deletions at once would count the same rows."""

    def reconfigure(self, settings: RetentionConfig) -> None:
        """Follow other settings. The next round comes when they say, counted from now."""
        self.settings = settings
        self._changed.set()

    async def serve(self) -> None:
        """Check the ledger; do what is due a minute after that and then every `sweep_every`, until cancelled. That waits for a step
        that has begun, some milliseconds."""
        await self._try("check", self.jobs.check)
        await trio.sleep(FIRST_ROUND_AFTER)
        while True:
            await self.look()
            await self._rest()

    async def look(self) -> None:
        """Do everything that is due. Raises nothing."""
        jobs = self.jobs
        await self._try("ballast", jobs.keep_room)
        async with self._deleting.turn():
            # output first, because that frees the room that the other jobs need
            await self._try("output", partial(jobs.delete_output, self.settings.output))
            await self._try("ledger", partial(jobs.delete_rows, self.settings.ledger))
            await self._try("compaction", jobs.compact)
        if jobs.backup_is_due(self.settings.backup_every):
            await self._try("backup", jobs.back_up)

    async def prune(
        self, wanted: Prune, uid: int | None, forget: Callable[[Collection[RunId]], object], asker: Sequence[Hashable] = ()
    ) -> Pruned:
        """Remove trees that have ended, of one user or of all, with their output and events. `forget` is told in the
        trio thread which runs are gone. `asker`: see `FairLock`. What was removed until an error stays removed. Raises `OSError`,
        `sqlite3.Error`, `LedgerError`, and `CancelledError` if the ledger is closed in the meantime."""
        async with self._deleting.turn(asker):
            return await in_thread(self.jobs.prune, wanted, uid, forget)

    async def _rest(self) -> None:
        while True:
            self._changed = trio.Event()
            with trio.move_on_after(self.settings.sweep_every):
                await self._changed.wait()
                continue
            return

    async def _try(self, job: str, call: Callable[[], object]) -> None:
        try:
            await in_thread(call)
        except (OSError, sqlite3.Error, LedgerError) as error:
            if self._told.get(job) != (text := f"{job}: {error}"):
                self._told[job] = text
                self.report(text)
        except CancelledError:
            pass  # the ledger has been closed
        else:
            self._told.pop(job, None)
