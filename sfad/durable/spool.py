"""The directory `spool/`, with a part for each thing that is saved in it."""

from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct

from ..agents.command import Command
from ..core.state.run import Run, number_or_zero, run_number
from ..host.clock import Timers
from ..host.faults import crash_point
from ..host.files import UNDECODABLE
from ..host.probe import current_boot
from ..host.tasks import LoopRounds
from ..processes.kernel import is_alive
from ..protocol.messages import Spawn
from ..protocol.types import RunId, Status
from ..runs.live import ContinuedWith, Live, SavedMain, SpawnKey
from ..storage.store import RunFiles, Store
from .snapshots import (
    KEY,
    METER,
    NOW,
    RUN,
    Changes,
    RetryingStore,
    RunSnapshot,
    encode,
    origin_of,
    progress_of,
)

# ---- What runs are continued with at the next daemon's start, if this one or the machine ends them


class SavedContinuedWith:
    """A file for each run, for its user's secrets may be in there. `trouble` is told of one that
    cannot be deleted or read. Raises `OSError` if `directory` cannot be used."""

    def __init__(self, directory: Path, trouble: Callable[[str], None]) -> None:
        self._files = RunFiles(directory)
        self._trouble = trouble

    def save(self, run: RunId, continued_with: ContinuedWith) -> None:
        """Raises `OSError`."""
        self._files.save(run, encode(continued_with))

    def read(self, run: RunId) -> ContinuedWith | None:
        try:
            saved = self._files.read(run)
            return msgspec.msgpack.decode(saved, type=ContinuedWith) if saved is not None else None
        except (OSError, *UNDECODABLE) as error:
            self._trouble(
                f"run {run} cannot be continued: "
                f"its environment in the spool cannot be read: {error}"
            )
            return None

    def forget(self, run: RunId) -> None:
        try:
            self._files.forget(run)
        except OSError as error:
            self._trouble(f"run {run}: its environment is still in the spool: {error}")

    def runs(self) -> list[RunId]:
        """Return the runs, the oldest first."""
        try:
            return sorted(self._files.runs(), key=run_number)
        except OSError as error:
            self._trouble(f"lost runs cannot be continued: {error}")
            return []


# ---- What runs are started with that may start again, environment included


class Startable(Struct, frozen=True, array_like=True):
    command: Command
    order: Spawn | None
    """See `Live.order`."""


class SavedSpawns:
    """`trouble` is told of a request that cannot be deleted, and `damaged` of one that cannot be
    read. Raises `OSError` if `directory` cannot be used."""

    def __init__(
        self, directory: Path, trouble: Callable[[str], None], damaged: Callable[[str], None]
    ) -> None:
        self._files = RunFiles(directory)
        self._trouble = trouble
        self._damaged = damaged

    def save(self, live: Live) -> None:
        """Save the request of a run that was admitted, if it does not start at once and for the
        only time, or if more is executed in it. Raises `OSError`."""
        run = live.run
        if (
            run.status is Status.QUEUED
            or run.asked.retries.attempts > 1
            or run.remote is not None
            or run.asked.stages
        ):
            self._files.save(run.id, encode(Startable(live.command, live.order)))
            crash_point("spawn kept")

    def put_back(self, runs: Iterable[Live]) -> None:
        """Save again what another process has removed. Raises `OSError`."""
        for live in runs:
            run = live.run
            if (
                not run.attempt or run.attempt < run.asked.retries.attempts or run.asked.stages
            ) and not self._files.has(run.id):
                self._files.save(run.id, encode(Startable(live.command, live.order)))

    def read(self, run: RunId) -> Startable | None:
        """Return what a run is started with, if it is there still. What is damaged is set
        aside."""
        try:
            saved = self._files.read(run)
            return msgspec.msgpack.decode(saved, type=Startable) if saved is not None else None
        except (OSError, *UNDECODABLE) as error:
            kept = self._files.keep_damaged(run)
            self._damaged(
                f"run {run}: its request in the spool cannot be read, "
                f"so it cannot start again: {error}; {kept}"
            )
            return None

    def launched(self, run: Run) -> None:
        """An attempt was launched. If it is the last one, and no stage follows, its environment is
        not needed any more."""
        if run.asked.stages:
            return
        if run.id in self._files.saved and run.attempt >= run.asked.retries.attempts:
            self.forget(run.id)

    def forget(self, run: RunId) -> None:
        if run not in self._files.saved:
            return
        crash_point("forget spawn")
        try:
            self._files.forget(run)
        except OSError as error:
            self._trouble(f"run {run}: its environment is still in the spool: {error}")

    def forget_others(self, live: Container[RunId]) -> None:
        """Delete requests whose runs are not live: a daemon was killed before it had saved
        those."""
        with suppress(OSError):
            for run in self._files.runs():
                if run not in live:
                    self.forget(run)


# ---- Ended runs: how long the spool keeps what it has of them


KEYS_KEPT = 1000
"""Ended runs whose requests are known still."""

SNAPSHOTS_KEPT = 4096
"""Ended runs that are kept until the ledger is checkpointed, which is every 500 rows, or 8 000
under load: 1 KiB a run."""


class EndedRuns:
    """Deletes a snapshot when the ledger's database, not only its log, has the run's end."""

    def __init__(self, store: RetryingStore, spawns: SavedSpawns) -> None:
        self._store = store
        self._spawns = spawns
        self._recorded: dict[RunId, None] = {}
        """Runs whose ends may be in the ledger's log only, in the order of their ends."""
        known = (key.removeprefix(KEY) for key in store.items if key.startswith(KEY))
        self._known = dict.fromkeys(
            sorted((run for run in known if f"{RUN}{run}" not in store.items), key=run_number)
        )
        """Runs whose requests are known, the oldest first."""

    def recorded(self, runs: Iterable[RunId]) -> None:
        """The ledger has these ends, but maybe in its log only, of which SQLite skips a damaged
        part without an error. Their snapshots stay until that is checkpointed."""
        for run in runs:
            self._spawns.forget(run)
            self._recorded[run] = None
        surplus = len(self._recorded) - SNAPSHOTS_KEPT
        # another process keeps reading the ledger, so that it cannot be checkpointed
        if surplus > 0:
            self._delete_oldest(surplus)

    def checkpointed(self) -> None:
        """The ledger's database itself has the ends that were recorded."""
        self._delete_oldest(len(self._recorded))

    def forget(self, runs: Iterable[RunId]) -> None:
        """Forget runs that no client heard of. A request with the key of one is to get another
        run."""
        changes: Changes = {}
        for run in runs:
            self._spawns.forget(run)
            self._recorded.pop(run, None)
            self._known.pop(run, None)
            changes |= self._snapshot(run) | (
                {f"{KEY}{run}": None} if f"{KEY}{run}" in self._store.items else {}
            )
        self._store.write_soon(changes)

    def pruned(self, runs: Iterable[RunId]) -> None:
        """Forget runs that were deleted from the ledger. Else the next daemon would write their
        ends there again."""
        self.forget(run for run in runs if f"{RUN}{run}" in self._store.items)

    def _delete_oldest(self, count: int) -> None:
        changes: Changes = {}
        for run in list(self._recorded)[:count]:
            del self._recorded[run]
            changes |= self._snapshot(run)
            if f"{KEY}{run}" in self._store.items:
                self._known.setdefault(run)
        for run in list(self._known)[: max(0, len(self._known) - KEYS_KEPT)]:
            del self._known[run]
            changes[f"{KEY}{run}"] = None
        self._store.write_soon(changes)

    def _snapshot(self, run: RunId) -> Changes:
        keys = (f"{RUN}{run}", f"{NOW}{run}", f"{METER}{run}")
        return {
            key: None for key in keys if key in self._store.items or key in self._store.unwritten
        }


# ---- What an earlier daemon has saved in the spool


BOOT = "boot"
PLACE = "place"


class EarlierSpool:
    def __init__(self, store: Store, values: RetryingStore) -> None:
        self._values = values
        self._items = store.items
        self.sound = store.sound
        """Whether everything that was saved can be read. Otherwise something may be lost, such as
        what was charged."""
        self.found = store.found
        self.same_boot = self._items.get(BOOT) == this_boot()
        """Whether it was written since the machine was booted."""
        place = self._items.get(PLACE)
        self.place = (
            place.decode(errors="surrogateescape")
            if place is not None and place.startswith(b"/")
            else None
        )
        """The state directory that it was written for. Processes of its runs are known by that
        path."""

    def moved_alive(self, here: Path) -> list[RunId]:
        """Return runs that are alive and began when the state directory had another path."""
        if self.place in (None, str(here.resolve())):
            return []
        return [run for run, main in self._mains() if is_alive(main.pid, main.started)]

    def snapshots(self) -> tuple[dict[RunId, RunSnapshot], dict[RunId, Exception]]:
        """Return what is saved, by run, and why the snapshots of other runs cannot be read."""
        found: dict[RunId, RunSnapshot] = {}
        broken: dict[RunId, Exception] = {}
        for key, origin in self._items.items():
            if not key.startswith(RUN):
                continue
            run = key.removeprefix(RUN)
            try:
                found[run] = RunSnapshot.decoded(
                    origin, self._items[f"{NOW}{run}"], self._items.get(f"{METER}{run}")
                )
            except UNDECODABLE as error:
                broken[run] = error
        return found, broken

    def set_aside(self, run: RunId) -> str:
        """Set a damaged snapshot aside. Return where it is, as the end of a sentence."""
        return "; ".join(
            self._values.set_aside(key)
            for key in (f"{RUN}{run}", f"{NOW}{run}")
            if key in self._items
        )

    def keys(self) -> dict[SpawnKey, RunId]:
        """Return the runs that were admitted, by the keys of their requests."""
        found: dict[SpawnKey, RunId] = {}
        for key in [key for key in self._items if key.startswith(KEY)]:
            spawn_key: SpawnKey | None = self._values.decoded(key, cast("Any", SpawnKey))
            if spawn_key is not None:
                found[spawn_key] = key.removeprefix(KEY)
        return found

    def _mains(self) -> list[tuple[RunId, SavedMain]]:
        """Return the main processes that were launched since the machine was booted."""
        snapshots = self.snapshots()[0] if self.same_boot else {}
        return [
            (run, saved.progress.main)
            for run, saved in snapshots.items()
            if saved.progress.main is not None
        ]


def this_boot() -> bytes:
    return (current_boot() or "unknown").encode()


# ---- Numbers of runs and events that the next daemon must not use, though the ledger may not know
# of them


RUNS_SKIPPED = 256
"""Run numbers that a crash skips at most. A write for each refusal would use up the spare room of a
full disk sooner."""

_EVENTS = "events"
_NUMBERS = "numbers"


class ReservedNumbers:
    def __init__(self, store: RetryingStore) -> None:
        self._store = store

    @property
    def highest_run(self) -> int:
        """The highest number that a run may have had; 0 for none."""
        return max(
            [
                self._skipped,
                *(
                    number_or_zero(key.removeprefix(RUN))
                    for key in self._store.items
                    if key.startswith(RUN)
                ),
            ]
        )

    def skip_run(self, number: int) -> None:
        """Have no other run bear this number: a client was told of a run that may never be on
        record. Some of the next numbers are skipped as well, because the client will ask again."""
        if number > self._skipped:
            self._store.write_soon({_NUMBERS: str(number + RUNS_SKIPPED).encode()})

    @property
    def _skipped(self) -> int:
        return self._store.whole(_NUMBERS)

    @property
    def highest_event(self) -> int:
        return self._store.whole(_EVENTS)

    def reserve_events(self, number: int) -> None:
        """Let events bear numbers up to this one. They are pushed before they are on record, and
        the next daemon must not give their numbers to other events."""
        self._store.write_soon({_EVENTS: str(number).encode()})


# ---- The journal: snapshots of live runs, so that a daemon that is killed at any instruction loses
# none of them
#
# A snapshot is saved before what it says is done.


Position = Callable[[RunId], bytes | None]
"""Returns where a run's meter is; `None` for a run without one."""


class RunJournal(Struct):
    store: RetryingStore
    spawns: SavedSpawns
    continued_with: SavedContinuedWith

    def admit(self, runs: Iterable[Live], others: Iterable[Live], more: Changes) -> None:
        """Save runs that were admitted just now, others that this has changed, and `more`. Raises
        `OSError`, and then they must not be."""
        changes = more | self._changes(others)
        try:
            for live in runs:
                run = live.run.id
                self.spawns.save(live)
                if live.continued_with is not None:
                    self.continued_with.save(run, live.continued_with)
                changes[f"{RUN}{run}"] = origin_of(live)
                changes[f"{NOW}{run}"] = progress_of(live)
                if live.request_key is not None:
                    changes[f"{KEY}{run}"] = encode(live.key)
            self.store.write(changes)
        except OSError:
            for live in runs:
                self.spawns.forget(live.run.id)
                self.continued_with.forget(live.run.id)
            raise

    def renew(self, live: Live) -> None:
        """Save what was saved once of a run, because it is another now."""
        try:
            self.spawns.save(live)
        except OSError as error:
            self.store.trouble(f"what run {live.run.id} is started with cannot be saved: {error}")
        self.store.write_soon(
            {f"{RUN}{live.run.id}": origin_of(live), f"{NOW}{live.run.id}": progress_of(live)}
        )

    def save(self, runs: Iterable[Live], position: Position | None = None) -> None:
        """Save these runs, and with `position` where their meters are."""
        self.store.write_soon(self._changes(runs, position))

    def is_saved(self, run: RunId) -> bool:
        """Whether the newest snapshot of a run could be written."""
        return f"{NOW}{run}" not in self.store.unwritten

    def save_all(self, runs: Iterable[Live], position: Position) -> None:
        """Save all live runs as they are at this moment. Raises `OSError`."""
        self.store.write(self._changes(runs, position))

    def _changes(self, runs: Iterable[Live], position: Position | None = None) -> Changes:
        items, unwritten, changes = self.store.items, self.store.unwritten, Changes()
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
