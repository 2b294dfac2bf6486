"""The journal: snapshots of live runs, so that a daemon that is killed at any instruction loses none of them.

    run/ID             fixed at admission: the core's `Birth` and the shell's part
    now/ID             what changes: the core's `State` and the shell's part
    meter/ID           where the run's meter was, at most `SAVE_USE` old
    key/ID             the key of its request, also after its end, for a client that has lost the answer
    charge/SCOPE/NAME  what a budget was charged in its period

A snapshot is saved before what it says is done. It is deleted when the ledger's database, not only its log, holds the run's end.
"""

from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from ..core.ids import number_or_zero, run_number
from ..core.run import Run
from ..faults import effect
from ..host.clock import Timers
from ..host.probe import current_boot
from ..launch.procfs import is_alive
from ..protocol.messages import Spawn
from ..protocol.types import RunId, Status
from ..runs.live import Live, SavedMain, SpawnKey
from ..spool import Spawns, Store
from .retrying import Changes, RetryingStore
from .snapshots import RunSnapshot, encode, origin_of, progress_of

AHEAD = 256
"""Run numbers that a crash skips at most. A write for each refusal would use up the spare room of a full disk sooner."""

KEYS = 1000
"""Ended runs whose requests are known still."""

RECORDED = 4096
"""Ended runs that are kept until the ledger is checkpointed, which is every 500 rows, or 8 000 under load: 1 KiB a run."""

Position = Callable[[RunId], bytes | None]
"""Returns where a run's meter is; `None` for a run without one."""

_RUN = "run/"
_KEY = "key/"
_BOOT = "boot"
_EVENTS = "events"
_NUMBERS = "numbers"
_PLACE = "place"


def nowhere(_run: RunId) -> None:
    """The position where nothing new is to be saved of meters."""


class Charged(Struct, frozen=True, array_like=True):
    """What a budget was charged in the period that began then."""

    begins: datetime
    usd: float
    partial: bool = False


class RunJournal:
    """The spool in `directory`. Raises `OSError` and `StoreError`.

    A write that fails is told to `trouble` and tried again. Only what must not begin without it raises. `lost`: see the store."""

    def __init__(
        self, directory: Path, timers: Timers, trouble: Callable[[str], None], lost: Callable[[], str | None] = lambda: None
    ) -> None:
        self.spawns = Spawns(directory)
        store = Store(directory / "runs", lost)
        self._store = RetryingStore(store, timers, trouble, self._save_late)
        self._items = store.items
        self._trouble = trouble
        self._late: dict[RunId, Live] = {}
        """Runs whose newest snapshot could not be written."""
        self._gone: set[RunId] = set()
        """Runs whose snapshot could not be deleted."""
        self._recorded: dict[RunId, None] = {}
        """Ended runs that may be in the ledger's log only, in the order of their ends."""
        known = (key.removeprefix(_KEY) for key in self._items if key.startswith(_KEY))
        ended = sorted((run for run in known if f"{_RUN}{run}" not in self._items), key=run_number)
        self._known = dict.fromkeys(ended)
        """Ended runs whose requests are known, the oldest first."""
        self.notes = store.take_notes()
        self.sound = store.sound
        """Whether everything that was saved can be read. Otherwise something may be lost, such as what a budget was charged."""
        self.found = store.found
        """Whether there was a journal."""
        self.same_boot = self._items.get(_BOOT) == _boot()
        """Whether it was written since the machine was booted."""

    def begin(self, place: str) -> None:
        """From now on it is written for this boot, and for the state directory `place`."""
        self._store.add_to_next({_BOOT: _boot(), _PLACE: place.encode(errors="surrogateescape")})
        self._store.try_write({})

    def put_back(self, runs: Iterable[Live]) -> None:
        """Write the spool again if another process has removed or replaced it. `runs` are all live ones."""
        try:
            self._store.put_back(lambda: self._save_spawns(runs))
        except OSError as error:
            self._trouble(f"the spool was removed or replaced by another process, and cannot be written again: {error}")

    def close(self) -> None:
        """Close it. The next daemon finds there what the ledger could not take."""
        self._store.close()

    # ---- what an earlier daemon left

    @property
    def place(self) -> str | None:
        """The state directory that it was written for. Processes of its runs are known by that path."""
        saved = self._items.get(_PLACE)
        return saved.decode(errors="surrogateescape") if saved is not None else None

    def moved_alive(self, here: Path) -> list[RunId]:
        """Return runs that are alive and began when the state directory had another path."""
        if self.place in (None, str(here.resolve())):
            return []
        return [run for run, main in self.mains() if is_alive(main.pid, main.started)]

    def snapshots(self) -> tuple[dict[RunId, RunSnapshot], list[RunId]]:
        """Return what is saved, by run, and the runs whose snapshot cannot be read."""
        found: dict[RunId, RunSnapshot] = {}
        broken: list[RunId] = []
        for key, origin in self._items.items():
            if not key.startswith(_RUN):
                continue
            run = key.removeprefix(_RUN)
            try:
                found[run] = RunSnapshot.decoded(origin, self._items[f"now/{run}"], self._items.get(f"meter/{run}"))
            except (msgspec.MsgspecError, KeyError):
                broken.append(run)
        return found, broken

    def mains(self) -> list[tuple[RunId, SavedMain]]:
        """Return the main processes that were launched since the machine was booted."""
        snapshots = self.snapshots()[0] if self.same_boot else {}
        return [(run, saved.progress.main) for run, saved in snapshots.items() if saved.progress.main is not None]

    def keys(self) -> dict[SpawnKey, RunId]:
        """Return the runs that were admitted, by the keys of their requests."""
        saved = {key.removeprefix(_KEY): value for key, value in self._items.items() if key.startswith(_KEY)}
        return {msgspec.msgpack.decode(value, type=SpawnKey): run for run, value in saved.items()}

    def spawn(self, run: RunId) -> Spawn | None:
        """Return the whole request of a run, if it is there still."""
        try:
            saved = self.spawns.read(run)
            return msgspec.msgpack.decode(saved, type=Spawn) if saved is not None else None
        except (OSError, msgspec.MsgspecError) as error:
            self._trouble(f"run {run}: its request in the spool cannot be read: {error}")
            return None

    # ---- live runs

    def admit(self, live: Live, others: Iterable[Live]) -> None:
        """Save a run that was admitted just now, and others that this has changed. Raises `OSError`, and then it must not be."""
        run = live.run
        if run.status is Status.QUEUED or run.asked.attempts > 1:
            self.spawns.save(run.id, encode(live.spawn))
            effect("spawn kept")
        try:
            own: Changes = {f"{_RUN}{run.id}": origin_of(live), f"now/{run.id}": progress_of(live)}
            if live.key is not None:
                own[f"{_KEY}{run.id}"] = encode(live.key)
            self._store.write(own | self._changes(others, nowhere))
        except OSError:
            self.spawns.forget(run.id)
            raise

    def save(self, runs: Iterable[Live], position: Position = nowhere) -> None:
        """Save runs as they are now, and where their meters are."""
        due = self._late | {live.run.id: live for live in runs}
        self._late = {} if self._store.try_write(self._changes(due.values(), position)) else due

    def is_saved(self, run: RunId) -> bool:
        """Whether the newest snapshot of a run could be written."""
        return run not in self._late

    def save_all(self, runs: Iterable[Live], position: Position) -> None:
        """Save all live runs as they are at this moment. Raises `OSError`."""
        self._store.write(self._changes(runs, position))
        self._late.clear()

    def launched(self, run: Run) -> None:
        """An attempt was launched. If it is the last one, its environment is not needed any more."""
        if run.asked.attempts <= 1 or run.attempt >= run.asked.attempts:
            self._forget_spawn(run.id)

    def _changes(self, runs: Iterable[Live], position: Position) -> Changes:
        changes: Changes = {}
        for live in runs:
            run = live.run.id
            if f"{_RUN}{run}" not in self._items:
                continue  # it was refused
            changes[f"now/{run}"] = progress_of(live)
            if (where := position(run)) is not None:
                changes[f"meter/{run}"] = where
        # after an adoption all runs are saved, and few have changed
        return {key: value for key, value in changes.items() if self._items.get(key) != value}

    def _save_late(self) -> None:
        self._delete(())
        self.save(())

    def _save_spawns(self, runs: Iterable[Live]) -> None:
        for live in runs:
            run = live.run
            if (not run.attempt or run.attempt < run.asked.attempts) and not self.spawns.has(run.id):
                self.spawns.save(run.id, encode(live.spawn))

    # ---- ended runs

    def recorded(self, runs: Iterable[RunId]) -> None:
        """The ledger holds how they ended, but maybe in its log only, of which SQLite skips a damaged part without an error. Their
        snapshots stay until that is checkpointed."""
        for run in runs:
            self._late.pop(run, None)
            self._forget_spawn(run)
            self._recorded[run] = None
        surplus = len(self._recorded) - RECORDED
        if surplus > 0:  # another process keeps reading the ledger, so that it cannot be checkpointed
            self._delete_oldest(surplus)

    def checkpointed(self) -> None:
        """The ledger's database itself holds how the recorded runs ended."""
        self._delete_oldest(len(self._recorded))

    def forget_entirely(self, runs: Iterable[RunId]) -> None:
        """Forget runs that no client heard of. A request with the key of one is to get another run."""
        never = list(runs)
        self._store.try_write({f"{_KEY}{run}": None for run in never if f"{_KEY}{run}" in self._items})
        self.recorded(never)
        for run in never:
            self._recorded.pop(run, None)
        self._delete(never)

    def pruned(self, runs: Iterable[RunId]) -> None:
        """Forget runs that were deleted from the ledger. Else the next daemon would write their ends there again."""
        self.forget_entirely([run for run in runs if f"{_RUN}{run}" in self._items])

    def forget_spawns(self, *, but: Container[RunId]) -> None:
        """Delete requests whose runs are not live: a daemon was killed before it had saved those."""
        with suppress(OSError):
            for run in self.spawns.runs():
                if run not in but:
                    self._forget_spawn(run)

    def _delete_oldest(self, count: int) -> None:
        runs = list(self._recorded)[:count]
        for run in runs:
            del self._recorded[run]
        self._delete(runs)

    def _delete(self, runs: Iterable[RunId]) -> None:
        self._gone.update(runs)
        changes: Changes = {}
        for run in self._gone:
            changes |= {key: None for key in (f"{_RUN}{run}", f"now/{run}", f"meter/{run}") if key in self._items}
            if f"{_KEY}{run}" in self._items:
                self._known.setdefault(run)
        for run in list(self._known)[: max(0, len(self._known) - KEYS)]:
            del self._known[run]
            changes[f"{_KEY}{run}"] = None
        if self._store.try_write(changes):
            self._gone.clear()

    def _forget_spawn(self, run: RunId) -> None:
        effect("forget spawn")
        try:
            self.spawns.forget(run)
        except OSError as error:
            self._trouble(f"run {run}: its environment is still in the spool: {error}")

    # ---- numbers

    @property
    def highest_number(self) -> int:
        """The highest number that a run may have had; 0 for none."""
        return max([self._skipped, *(number_or_zero(key.removeprefix(_RUN)) for key in self._items if key.startswith(_RUN))])

    def skip_number(self, number: int) -> None:
        """Have no other run bear this number: a client was told of a run that may never be on record. Some of the next numbers are
        skipped as well, because the client will ask again."""
        if number > self._skipped:
            self._store.try_write({_NUMBERS: str(number + AHEAD).encode()})

    @property
    def _skipped(self) -> int:
        return int(self._items.get(_NUMBERS, b"0"))

    @property
    def events(self) -> int:
        """The highest number that an event may bear."""
        return int(self._items.get(_EVENTS, b"0"))

    def reserve_events(self, number: int) -> None:
        """Let events bear numbers up to this one. They are pushed before they are on record, and the next daemon must not give
        their numbers to other events."""
        self._store.try_write({_EVENTS: str(number).encode()})

    # ---- budgets

    def charged(self, scope: str, name: str) -> Charged | None:
        saved = self._items.get(f"charge/{scope}/{name}")
        return msgspec.msgpack.decode(saved, type=Charged) if saved is not None else None

    def charge(self, scope: str, name: str, begins: datetime, usd: float, *, partial: bool = False) -> None:
        """Save what a budget was charged since `begins`, together with the next snapshot: of the run that has used it."""
        self._store.add_to_next({f"charge/{scope}/{name}": encode(Charged(begins, usd, partial))})


def _boot() -> bytes:
    return (current_boot() or "unknown").encode()
