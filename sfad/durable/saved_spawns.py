"""The requests of runs that may start again, environment included."""

from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from ..core.run import Run
from ..faults import crash_point
from ..host.damage import UNDECODABLE
from ..protocol.messages import Spawn
from ..protocol.types import RunId, Status
from ..runs.live import Live
from ..spool import Spawns
from .snapshots import encode


class SavedSpawns:
    """`trouble` is told of a request that cannot be deleted, and `damaged` of one that cannot be read. Raises `OSError` if
    `directory` cannot be used."""

    def __init__(self, directory: Path, trouble: Callable[[str], None], damaged: Callable[[str], None]) -> None:
        self._files = Spawns(directory)
        self._trouble = trouble
        self._damaged = damaged

    def save(self, live: Live) -> None:
        """Save the request of a run that was admitted, if it does not start at once and for the only time. Raises `OSError`."""
        run = live.run
        if run.status is Status.QUEUED or run.asked.attempts > 1:
            self._files.save(run.id, encode(live.spawn))
            crash_point("spawn kept")

    def put_back(self, runs: Iterable[Live]) -> None:
        """Save again what another process has removed. Raises `OSError`."""
        for live in runs:
            run = live.run
            if (not run.attempt or run.attempt < run.asked.attempts) and not self._files.has(run.id):
                self._files.save(run.id, encode(live.spawn))

    def read(self, run: RunId) -> Spawn | None:
        """Return the whole request of a run, if it is there still. A damaged one is set aside."""
        try:
            saved = self._files.read(run)
            return msgspec.msgpack.decode(saved, type=Spawn) if saved is not None else None
        except (OSError, *UNDECODABLE) as error:
            kept = self._files.keep_damaged(run)
            self._damaged(f"run {run}: its request in the spool cannot be read, so it cannot start again: {error}; {kept}")
            return None

    def launched(self, run: Run) -> None:
        """An attempt was launched. If it is the last one, its environment is not needed any more."""
        if run.asked.attempts <= 1 or run.attempt >= run.asked.attempts:
            self.forget(run.id)

    def forget(self, run: RunId) -> None:
        crash_point("forget spawn")
        try:
            self._files.forget(run)
        except OSError as error:
            self._trouble(f"run {run}: its environment is still in the spool: {error}")

    def forget_others(self, live: Container[RunId]) -> None:
        """Delete requests whose runs are not live: a daemon was killed before it had saved those."""
        with suppress(OSError):
            for run in self._files.runs():
                if run not in live:
                    self.forget(run)
