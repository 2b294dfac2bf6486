"""Keeps the state directory within bounds: its jobs, when each is due, and what is told of its
failure."""

import sqlite3
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from concurrent.futures import CancelledError, wait
from contextlib import closing
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import trio
from msgspec import Struct, field
from msgspec.structs import replace

from ..config import Configuration, RetentionConfig
from ..core.state.policy import SessionsConfig
from ..core.state.run import run_id
from ..host.clock import wall_clock
from ..host.files import make_directory
from ..host.headroom import DiskReserve
from ..host.log import Log
from ..host.tasks import FairLock, in_thread
from ..protocol.messages import Prune, Pruned
from ..protocol.paths import LEDGER
from ..protocol.types import RunId
from ..storage.ledger import Ledger, LedgerError, back_up
from ..storage.ledger.backup import BACKUP, Backup
from ..storage.ledger.database import LedgerDamaged, open_reader
from ..storage.ledger.opening import check_whole, suspect
from ..storage.ledger.queries import Reader
from ..storage.ledger.retention import Pruner
from ..storage.output import OutputFiles
from ..storage.output.files import remove, remove_above, remove_old

# ---- The jobs that keep the state directory within bounds, for a thread: old output and rows
# deleted, pages given back,
# backups


T = TypeVar("T")

_PAUSE = 0.02
"""Seconds between two small steps of the ledger's writer: 50 000 runs with their events take about
a minute."""

_COPY_PAUSE = 0.004
"""Seconds between two steps of a backup, which then copies 40 MB a second."""


class Old(Struct, frozen=True):
    """Which runs are old."""

    cutoff: float | None
    """Those that ended before, in seconds since the epoch; `None`: none."""
    ends: Callable[[Sequence[RunId]], Mapping[RunId, float | None]]
    """See `Reader.ends`."""
    live: Collection[RunId]
    now: float
    """In seconds since the epoch."""
    between: Callable[[], object]
    """Is called after each deletion, so that the disk has time for others."""


class Kept(Protocol):
    """Deletes what a feature keeps of ended runs beside their output, in a thread. Raises
    `OSError`."""

    def remove(self, runs: Collection[RunId], *, dry: bool) -> int:
        """Delete what is kept of runs, or only count it if `dry`. Return the bytes."""

    def remove_old(self, old: Old) -> str:
        """Delete what is kept of old runs. Return what was done, in words; empty if nothing."""


class MaintenanceJobs(Struct, frozen=True):
    """`live` returns the runs whose output must stay. `say` is told what was done, a line each, and
    `damaged` what is wrong with the ledger. Jobs raise `OSError`, `sqlite3.Error`, `LedgerError`,
    and `CancelledError` if the ledger is closed meanwhile."""

    ledger: Ledger
    output: OutputFiles
    live: Callable[[], Collection[RunId]]
    say: Callable[[str], object]
    damaged: Callable[[str], object]
    now: Callable[[], datetime] = wall_clock
    kept: Callable[[], Sequence[Kept]] = tuple
    """Returns what deletes what features keep of runs."""

    def keep_room(self) -> None:
        """Keep some room of the disk for a start when it is full."""
        DiskReserve(self.ledger.file.directory).fill()

    def check(self) -> None:
        """Read the ledger to its last page, which a start does not wait for."""
        wrong = check_whole(self.ledger.file.directory, trio.from_thread.check_cancelled)
        if wrong is not None:
            self._suspect(wrong)

    def _suspect(self, wrong: str) -> None:
        directory = self.ledger.file.directory
        suspect(directory, wrong)
        text = (
            f"the ledger {directory / LEDGER} is damaged: {wrong}; "
            "the next start sets it aside and begins another"
        )
        trio.from_thread.run_sync(self.damaged, text)

    def delete_output(self, age: float | None) -> None:
        if age is None:
            return
        live = trio.from_thread.run_sync(lambda: frozenset(self.live()))
        cutoff = self.now().timestamp() - age
        with closing(Reader(open_reader(self.ledger.file.directory))) as reader:
            count = remove_old(
                self.output.directory, cutoff, ends=reader.ends, live=live, between=_pause
            )
        if count:
            self._tell(f"deleted {count} output files of runs that ended long ago")

    def bound_output(self, most: int | None) -> None:
        """Keep the output of each user below `most` bytes."""
        if most is None:
            return
        live = trio.from_thread.run_sync(lambda: frozenset(self.live()))
        with closing(Reader(open_reader(self.ledger.file.directory))) as reader:
            count = remove_above(
                self.output.directory, most,
                ends=reader.ends, owners=reader.owners, live=live, between=_pause,
            )  # fmt: skip
        if count:
            self._tell(
                f"deleted {count} output files of the runs that ended first, because those of "
                f"their user took more than {most} bytes (retention.output_size)"
            )

    def delete_kept(self, age: float | None) -> None:
        """Delete what features keep of runs, as their output."""
        kept, live = trio.from_thread.run_sync(lambda: (self.kept(), frozenset(self.live())))
        if not kept:
            return
        now = self.now().timestamp()
        cutoff = None if age is None else now - age
        with closing(Reader(open_reader(self.ledger.file.directory))) as reader:
            old = Old(cutoff, reader.ends, live, now, _pause)
            for each in kept:
                if done := each.remove_old(old):
                    self._tell(done)

    def delete_rows(self, age: float | None) -> None:
        if age is None:
            return
        deleted = self._pruner().delete(self.now() - timedelta(seconds=age))
        if deleted.runs or deleted.events:
            self._tell(
                f"deleted {deleted.runs} runs and {deleted.events} events from the ledger, "
                "which are old"
            )

    def compact(self) -> None:
        pages = self._pruner().compact()
        if pages:
            self._tell(f"gave {pages} pages of the ledger back")

    def backup_is_due(self, every: float | None) -> bool:
        last = self.ledger.file.backup
        if every is None:
            return False
        # from the future, where the clock was ahead: not an age to wait for
        return last is None or not 0 <= (self.now() - last.at).total_seconds() < every

    def back_up(self) -> None:
        target = self.ledger.file.directory / BACKUP
        make_directory(target.parent)
        try:
            backup = back_up(self.ledger.file.directory, target, replace=True, between=_copy_pause)
        except LedgerDamaged as error:
            self._suspect(str(error))
            raise
        trio.from_thread.run_sync(self._backed_up, backup)

    def _backed_up(self, backup: Backup) -> None:
        self.ledger.file.backed_up(backup)
        self.say(f"backed up the ledger, {backup.size_bytes} bytes")

    def prune(
        self, wanted: Prune, uid: int | None, forget: Callable[[Collection[RunId]], object]
    ) -> Pruned:
        pruner, dry = Pruner(self.ledger.file.directory, self._errand, _copy_pause), wanted.dry_run
        cutoff = self.now() - timedelta(seconds=wanted.older_than or 0)
        live = trio.from_thread.run_sync(lambda: frozenset(self.live()))
        with pruner.choose(cutoff, keep=wanted.keep, uid=uid, live=live) as chosen:
            files = freed = 0
            kept = trio.from_thread.run_sync(self.kept)
            # output first: a row without output can be pruned again, output without its row would
            # stay
            for numbers in chosen.batches():
                runs = list(map(run_id, numbers))
                count, size = remove(self.output.directory, runs, dry=dry, between=_copy_pause)
                files, freed = files + count, freed + size
                freed += sum(each.remove(runs, dry=dry) for each in kept)
            deleted = pruner.remove(chosen, dry=dry)
            if not dry:
                # a power failure may lose what is in the log only, and then only the spool has the
                # runs' ends
                pruner.checkpoint()
                for numbers in chosen.batches():
                    trio.from_thread.run_sync(forget, list(map(run_id, numbers)))
        pruned = Pruned(
            id=wanted.id,
            trees=chosen.trees,
            runs=deleted.runs,
            events=deleted.events,
            files=files,
            output_bytes=freed,
            ledger_bytes=0,
        )
        if dry:
            return pruned
        before = self.ledger.records.size_bytes
        pruner.compact()
        shrunk = max(0, before - self.ledger.records.size_bytes)
        self._tell(
            f"pruned {deleted.runs} runs and {deleted.events} events, "
            f"and {files} output files of {freed} bytes"
        )
        return replace(pruned, ledger_bytes=shrunk)

    def _tell(self, line: str) -> None:
        trio.from_thread.run_sync(self.say, line)

    def _pruner(self) -> Pruner:
        return Pruner(self.ledger.file.directory, self._errand, _pause)

    def _errand(self, work: Callable[[sqlite3.Connection], T]) -> T:
        future = self.ledger.when_idle(work)
        try:
            while not wait([future], 0.1).done:
                trio.from_thread.check_cancelled()
        except BaseException:
            future.cancel()
            raise
        return future.result()


def _pause(seconds: float = _PAUSE) -> None:
    trio.from_thread.check_cancelled()
    time.sleep(seconds)


_copy_pause = partial(_pause, _COPY_PAUSE)


# ---- Keeps the state directory within bounds: when each job is due, and what is told of its
# failure


FIRST_ROUND_AFTER = 60.0
"""Seconds after the start until the first round of jobs."""


class Maintenance(Struct):
    """Carries out the `[retention]` settings. One job runs after the other, in a thread. `report`
    is told of each failure once, until it changes or is over."""

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
        """Check the ledger; do what is due a minute after that and then every `sweep_every`, until
        cancelled. That waits for a step that has begun, some milliseconds."""
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
            await self._try("room", partial(jobs.bound_output, self.settings.output_size))
            await self._try("kept", partial(jobs.delete_kept, self.settings.output))
            await self._try("ledger", partial(jobs.delete_rows, self.settings.ledger))
            await self._try("compaction", jobs.compact)
        if jobs.backup_is_due(self.settings.backup_every):
            await self._try("backup", jobs.back_up)

    async def prune(
        self,
        wanted: Prune,
        uid: int | None,
        forget: Callable[[Collection[RunId]], object],
        asker: Sequence[Hashable] = (),
    ) -> Pruned:
        """Remove trees that have ended, of one user or of all, with their output and events.
        `forget` is told in the trio thread which runs are gone. `asker`: see `FairLock`. What was
        removed until an error stays removed. Raises `OSError`, `sqlite3.Error`, `LedgerError`, and
        `CancelledError` if the ledger is closed in the meantime."""
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


# ---- Deletes the output of sessions that ended a while ago. Their rows and events stay: they tell
# what was spent, and what
# failed.


EARLIER = 2 * 86400.0
"""Seconds before the start in which an earlier daemon's sessions are looked for. What is older goes
with other old output."""


class SessionArchive(Struct):
    """Carries out `archive_ttl_minutes` and `cleanup_interval_seconds`. `report` is told of
    failures."""

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
            # no index has them: it reads each run since then
            earlier = await in_thread(_ended_sessions, self.ledger, since)
        except (OSError, sqlite3.Error) as error:
            self.report(
                f"sessions that have ended cannot be read from the ledger: {error}; "
                "their output goes with other old output"
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
                await in_thread(
                    partial(remove, self.output.directory, due, dry=False, between=lambda: None)
                )
            except OSError as error:
                self.report(f"output of sessions that have ended could not be deleted: {error}")


def _ended_sessions(directory: Path, since: float) -> list[tuple[float, RunId]]:
    with closing(Reader(open_reader(directory))) as reader:
        return reader.ended_sessions(since)


# ---- Both, as a daemon follows its config


class Upkeep:
    def __init__(
        self,
        config: Configuration,
        ledger: Ledger,
        output: OutputFiles,
        log: Log,
        live: Collection[RunId],
        kept: Callable[[], Sequence[Kept]],
        damaged: Callable[[str], object],
    ) -> None:
        """`live`: the runs whose output must stay. For `kept` and `damaged`, see
        `MaintenanceJobs`."""
        jobs = MaintenanceJobs(ledger, output, lambda: live, log.info, damaged, kept=kept)
        self.maintenance = Maintenance(jobs, config.retention, log.warning)
        directory = ledger.file.directory
        self.archive = SessionArchive(directory, output, config.sessions, log.warning)

    def reconfigure(self, config: Configuration) -> None:
        self.maintenance.reconfigure(config.retention)
        self.archive.reconfigure(config.sessions)
