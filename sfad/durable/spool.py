"""The directory `spool/`, with a part for each thing that is saved in it."""

from collections.abc import Callable, Iterable
from pathlib import Path

from ..host.clock import Timers
from ..host.tasks import LoopRounds
from ..protocol.types import RunId
from ..runs.live import Live
from ..storage.store import Store
from .saved import (
    BOOT,
    PLACE,
    EarlierSpool,
    EndedRuns,
    ReservedNumbers,
    SavedContinuedWith,
    SavedSpawns,
    this_boot,
)
from .snapshots import KEY, METER, NOW, RUN, Changes, RetryingStore, encode, origin_of, progress_of

# ---- The journal: snapshots of live runs, so that a daemon that is killed at any instruction loses
# none of them
#
# A snapshot is saved before what it says is done.


Position = Callable[[RunId], bytes | None]
"""Returns where a run's meter is; `None` for a run without one."""


class RunJournal:
    def __init__(
        self, store: RetryingStore, spawns: SavedSpawns, continued_with: SavedContinuedWith
    ) -> None:
        self._store = store
        self._spawns = spawns
        self._continued_with = continued_with

    def admit(self, runs: Iterable[Live], others: Iterable[Live], more: Changes) -> None:
        """Save runs that were admitted just now, others that this has changed, and `more`. Raises
        `OSError`, and then they must not be."""
        changes = more | self._changes(others)
        try:
            for live in runs:
                run = live.run.id
                self._spawns.save(live)
                if live.continued_with is not None:
                    self._continued_with.save(run, live.continued_with)
                changes[f"{RUN}{run}"] = origin_of(live)
                changes[f"{NOW}{run}"] = progress_of(live)
                if live.request_key is not None:
                    changes[f"{KEY}{run}"] = encode(live.key)
            self._store.write(changes)
        except OSError:
            for live in runs:
                self._spawns.forget(live.run.id)
                self._continued_with.forget(live.run.id)
            raise

    def renew(self, live: Live) -> None:
        """Save what was saved once of a run, because it is another now."""
        try:
            self._spawns.save(live)
        except OSError as error:
            self._store.trouble(f"what run {live.run.id} is started with cannot be saved: {error}")
        self._store.write_soon(
            {f"{RUN}{live.run.id}": origin_of(live), f"{NOW}{live.run.id}": progress_of(live)}
        )

    def save(self, runs: Iterable[Live], position: Position | None = None) -> None:
        """Save these runs, and with `position` where their meters are."""
        self._store.write_soon(self._changes(runs, position))

    def is_saved(self, run: RunId) -> bool:
        """Whether the newest snapshot of a run could be written."""
        return f"{NOW}{run}" not in self._store.unwritten

    def save_all(self, runs: Iterable[Live], position: Position) -> None:
        """Save all live runs as they are at this moment. Raises `OSError`."""
        self._store.write(self._changes(runs, position))

    def _changes(self, runs: Iterable[Live], position: Position | None = None) -> Changes:
        items, unwritten, changes = self._store.items, self._store.unwritten, Changes()
        for live in runs:
            run = live.run.id
            if f"{RUN}{run}" not in items:
                continue  # it was refused, or is saved with its admission
            found = [(f"{NOW}{run}", progress_of(live))]
            if position is not None and (where := position(run)) is not None:
                found.append((f"{METER}{run}", where))
            for key, value in found:
                # after an adoption all runs are saved, and few have changed
                if items.get(key) != value or key in unwritten:
                    changes[key] = value
        return changes


# ---- The parts of `spool/`


class Spool:
    """Raises `OSError` and `StoreError` if it cannot be opened. A write that fails later is told to
    `trouble` and tried again; only what must not begin without it raises. `lost`: see the store.
    `damaged` (else `trouble`) is told of each part that was set aside because it cannot be read."""

    def __init__(
        self,
        directory: Path,
        timers: Timers,
        rounds: LoopRounds,
        trouble: Callable[[str], None],
        lost: Callable[[], str | None] = lambda: None,
        damaged: Callable[[str], None] | None = None,
    ) -> None:
        damaged = damaged or trouble
        self.spawns = SavedSpawns(directory, trouble, damaged)
        self.continued_with = SavedContinuedWith(directory / "continued_with", trouble)
        store = Store(directory / "runs", lost)
        self.notes = store.take_notes()
        """What had to be repaired, as lines for the log."""
        self.values = RetryingStore(store, timers, rounds, trouble, damaged)
        self.earlier = EarlierSpool(store, self.values)
        self._trouble = trouble
        self.journal = RunJournal(self.values, self.spawns, self.continued_with)
        self.ended = EndedRuns(self.values, self.spawns)
        self.numbers = ReservedNumbers(self.values)

    def begin(self, place: str) -> None:
        """From now on it is written for this boot, and for the state directory `place`."""
        self.values.write_soon({BOOT: this_boot(), PLACE: place.encode(errors="surrogateescape")})

    def put_back(self, runs: Iterable[Live]) -> None:
        """Write the spool again if another process has removed or replaced it. `runs` are all live
        ones."""
        try:
            self.values.put_back(lambda: self.spawns.put_back(runs))
        except OSError as error:
            self._trouble(
                "the spool was removed or replaced by another process, "
                f"and cannot be written again: {error}"
            )

    def close(self) -> None:
        """Close it. The next daemon finds there what the ledger could not take."""
        self.values.close()
