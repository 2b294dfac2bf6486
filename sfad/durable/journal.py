"""What is remembered of live runs in the spool, so that a daemon that is killed at any instruction loses none of them.

    run/ID            settled at admission: the core's `Birth` and the shell's part
    now/ID            what changes: the core's `State` and the shell's part
    meter/ID          where its meter was, at most `SAVE_USE` old
    key/ID            what its request is known by; that of an ended run as well, for who has lost the answer
    charge/SCOPE/NAME what a budget was charged in its period

It is written before what was decided is done, and goes when the ledger's database, not only its log, holds the run's end.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec
import trio
from msgspec import Struct

from ..core.ids import run_number
from ..core.run import Run
from ..core.snapshot import Birth, State, birth_of, state_of
from ..faults import effect
from ..host.timers import Timers
from ..launch.procfs import is_alive
from ..ledger.ledger import current_boot
from ..meters import Reading
from ..protocol.messages import Spawn
from ..protocol.types import RunId, Status
from ..runs.live import Live, Main
from ..spool import Journal, Spawns
from .accounts import from_saved, to_saved

AHEAD = 256
"""Numbers that a crash costs at most: a write for each refusal would use up a full disk's spare room sooner."""

AGAIN = 1.0
"""Seconds between two tries to remember what the disk had no room for."""

Position = Callable[[RunId], bytes | None]
"""Where a run's meter is; `None` for one without."""

KEYS = 1000
"""Ended runs whose requests are known still."""


RECORDED = 4096
"""Ended runs that are remembered until the ledger is checkpointed, every 500 rows, or 8 000 under load: some 1 KiB a run."""


def nowhere(_run: RunId) -> None:
    """The position where nothing new is to be said of meters."""


_RUN = "run/"
_KEY = "key/"
_BOOT = "boot"
_EVENTS = "events"
_NUMBERS = "numbers"
_PLACE = "place"


SpawnKey = tuple[int, RunId | None, str]
"""A uid, the run that asked, and what it called its request (`Spawn.key`)."""


class Origin(Struct, frozen=True, array_like=True):
    """What is settled when a run is admitted."""

    birth: Birth
    spawn: Spawn
    """Without command and environment: `Spawns` has them until its last start, and then they are nobody's business. Of the
    environment only what says where the agent keeps its session files."""
    nonce: str
    created_at: datetime
    program: str | None
    """What its stdout is metered as."""
    asker: RunId | None
    """The run that the peer was in."""


class Progress(Struct, frozen=True, array_like=True):
    """What changes."""

    state: State
    started_at: datetime | None
    ended_at: datetime | None
    main: Main | None
    attempted_at: datetime | None = None
    sessions: tuple[Reading, ...] = ()
    """What the session files of earlier attempts told."""


class Charged(Struct, frozen=True, array_like=True):
    """What a budget was charged in the period that began then."""

    begins: datetime
    usd: float
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """A run as it was when it was last remembered."""

    origin: Origin
    progress: Progress
    meter: bytes | None


class Memory:
    """The spool in `directory`. Raises `OSError` and `JournalError`. Failures to write are told to `trouble` and tried again; only
    what must not begin without it raises."""

    def __init__(self, directory: Path, trouble: Callable[[str], None], lost: Callable[[], str | None] = lambda: None) -> None:
        """`lost`: see `Journal`."""
        self.spawns = Spawns(directory)
        self._journal = Journal(directory / "runs", lost)
        self.notes = self._journal.take_notes()
        """What opening had to fix, a line each."""
        self._trouble = trouble
        self._late: dict[RunId, Live] = {}
        """Runs of which something newer is to be remembered than could be written."""
        self._gone: set[RunId] = set()
        """Runs that could not be forgotten yet."""
        self._recorded: dict[RunId, None] = {}
        """Ended runs that may be in the ledger's log only, the first recorded first."""
        self._encode = msgspec.msgpack.Encoder(enc_hook=to_saved).encode
        known = (key.removeprefix(_KEY) for key in self._journal.items if key.startswith(_KEY))
        ended = sorted((run for run in known if f"{_RUN}{run}" not in self._journal.items), key=run_number)
        self._known = dict.fromkeys(ended)
        """Ended runs whose requests are known, the oldest first."""
        self._closed = False
        self._failing = False
        self._displaced = False
        """Another process has removed or replaced the spool, maybe with the files of `spawns`."""
        self._first: dict[str, bytes | None] = {}
        """What goes with the next change."""
        self._timers: Timers
        self.same_boot = self._journal.items.get(_BOOT) == _boot()
        """Whether what is remembered was so since the machine was booted."""

    @property
    def sound(self) -> bool:
        """Whether everything that was remembered can be read: if not, something may have been forgotten, such as what a budget was
        charged."""
        return self._journal.sound

    @property
    def found(self) -> bool:
        """Whether there was one."""
        return self._journal.found

    @property
    def highest_number(self) -> int:
        """That was given to a run, as far as is remembered; 0 for none."""
        return max([self._told, *(_number(key) for key in self._journal.items if key.startswith(_RUN))])

    @property
    def _told(self) -> int:
        return int(self._journal.items.get(_NUMBERS, b"0"))

    def never_again(self, number: int) -> None:
        """Somebody is told of a run with this number that may never be on record: no other run is to have it. Written down
        for the next ones as well, for who is refused asks again."""
        if number > self._told:
            self._written({_NUMBERS: str(number + AHEAD).encode()})

    @property
    def place(self) -> str | None:
        """The state directory that it was written for; its path is what processes of runs are known by."""
        kept = self._journal.items.get(_PLACE)
        return kept.decode(errors="surrogateescape") if kept is not None else None

    def moved_alive(self, here: Path) -> list[RunId]:
        """Runs that are still alive and were begun when the state directory had another path: by that one they are known."""
        if self.place in (None, str(here.resolve())):
            return []
        return [run for run, main in self.mains() if is_alive(main.pid, main.started)]

    def begin(self, timers: Timers, place: str) -> None:
        """From now on things are remembered, of this boot, and of the state directory `place`."""
        self._timers = timers
        self._first = {_BOOT: _boot(), _PLACE: place.encode(errors="surrogateescape")}
        self._written({})

    @property
    def events(self) -> int:
        """No event bears a higher number, as far as is known."""
        return int(self._journal.items.get(_EVENTS, b"0"))

    def reserve_events(self, number: int) -> None:
        """Events may bear numbers up to this one from now on. They are pushed before they are on record, and a daemon that comes
        after this one must not give their numbers to others."""
        self._written({_EVENTS: str(number).encode()})

    def close(self) -> None:
        """Gives the descriptor back. What the ledger still has to tell is for the next daemon to find."""
        self._closed = True
        self._journal.close()

    # ---- runs

    def entries(self) -> tuple[dict[RunId, Entry], list[RunId]]:
        """What is remembered, by run, and the runs of which it cannot be read."""
        found: dict[RunId, Entry] = {}
        broken: list[RunId] = []
        for key, value in self._journal.items.items():
            if not key.startswith(_RUN):
                continue
            run = key.removeprefix(_RUN)
            try:
                found[run] = self._entry(run, value)
            except (msgspec.MsgspecError, KeyError):
                broken.append(run)
        return found, broken

    def _entry(self, run: RunId, origin: bytes) -> Entry:
        items = self._journal.items
        return Entry(
            msgspec.msgpack.decode(origin, type=Origin),
            msgspec.msgpack.decode(items[f"now/{run}"], type=Progress, dec_hook=from_saved),
            items.get(f"meter/{run}"),
        )

    def mains(self) -> list[tuple[RunId, Main]]:
        """The main processes that are remembered, if they were launched since the machine was booted."""
        entries = self.entries()[0] if self.same_boot else {}
        return [(run, entry.progress.main) for run, entry in entries.items() if entry.progress.main is not None]

    def admit(self, live: Live, others: Iterable[Live]) -> None:
        """Remembers a run that was admitted just now, and those that this has changed. Raises `OSError`: then it must not be."""
        run = live.run
        if run.status is Status.QUEUED or run.asked.attempts > 1:
            self.spawns.keep(run.id, self._encode(live.spawn))
            effect("spawn kept")
        try:
            key = {f"{_KEY}{run.id}": self._encode(live.key)} if live.key is not None else {}
            others_now = self._all(others, nowhere)
            self._write({f"{_RUN}{run.id}": self._encode(self._origin(live)), **self._now(live), **key, **others_now})
        except OSError:
            self.spawns.forget(run.id)
            raise

    def keep(self, runs: Iterable[Live], position: Position = nowhere) -> None:
        """Remembers them as they are now, with where their meters are."""
        due = self._late | {live.run.id: live for live in runs}
        self._late = {} if self._written(self._all(due.values(), position)) else due

    def look_after(self, runs: Iterable[Live]) -> None:
        """Writes the spool again if another process has removed or replaced it. `runs` are all that live."""
        if self._closed:
            return
        try:
            self._journal.stay()
            self._tell_notes()
            if self._displaced:
                self._keep_spawns(runs)
                self._displaced = False
        except OSError as error:
            self._trouble(f"the spool was removed or replaced by another process, and cannot be written again: {error}")

    def _keep_spawns(self, runs: Iterable[Live]) -> None:
        for live in runs:
            run = live.run
            if (not run.attempt or run.attempt < run.asked.attempts) and not self.spawns.keeps(run.id):
                self.spawns.keep(run.id, self._encode(live.spawn))

    def _tell_notes(self) -> None:
        for note in self._journal.take_notes():
            self._displaced = True
            self._trouble(note)

    def remembers(self, run: RunId) -> bool:
        """Whether the next daemon would know of the run what there is to know."""
        return run not in self._late

    def bring_up_to_date(self, runs: Iterable[Live], position: Position) -> None:
        """Remembers everything as it is at this moment. Raises `OSError`."""
        self._write(self._all(runs, position))
        self._late.clear()

    def _all(self, runs: Iterable[Live], position: Position) -> dict[str, bytes | None]:
        changes: dict[str, bytes | None] = {}
        for live in runs:
            if f"{_RUN}{live.run.id}" not in self._journal.items:
                continue  # it was refused, and there is nothing to find again
            changes |= self._now(live)
            if (where := position(live.run.id)) is not None:
                changes[f"meter/{live.run.id}"] = where
        # a daemon that takes runs over keeps all of them, and few have changed
        return {key: value for key, value in changes.items() if self._journal.items.get(key) != value}

    def started(self, run: Run) -> None:
        """An attempt was launched; if there cannot be another, its environment is needed no more."""
        if run.asked.attempts > 1 and run.attempt < run.asked.attempts:
            return
        self._forget_spawn(run.id)

    def recorded(self, runs: Iterable[RunId]) -> None:
        """The ledger holds how they ended, but maybe in its log only. What is remembered of them stays until that is checkpointed:
        SQLite skips a damaged part of its log without a word."""
        for run in runs:
            self._late.pop(run, None)
            self._forget_spawn(run)
            self._recorded[run] = None
        surplus = len(self._recorded) - RECORDED
        if surplus > 0:  # somebody reads the ledger without end, and it cannot be checkpointed
            self._forget_first(surplus)

    def checkpointed(self) -> None:
        """The ledger holds, in the database itself, how the recorded runs ended."""
        self._forget_first(len(self._recorded))

    def _forget_first(self, count: int) -> None:
        runs = list(self._recorded)[:count]
        for run in runs:
            del self._recorded[run]
        self._forget(runs)

    def _forget(self, runs: Iterable[RunId]) -> None:
        self._gone.update(runs)
        changes: dict[str, bytes | None] = {}
        for run in self._gone:
            changes |= {key: None for key in (f"{_RUN}{run}", f"now/{run}", f"meter/{run}") if key in self._journal.items}
            if f"{_KEY}{run}" in self._journal.items:
                self._known.setdefault(run)
        for run in list(self._known)[: max(0, len(self._known) - KEYS)]:
            del self._known[run]
            changes[f"{_KEY}{run}"] = None
        if self._written(changes):
            self._gone.clear()

    def forget_entirely(self, runs: Iterable[RunId]) -> None:
        """Nobody was ever told of them: whoever asks again is to have another."""
        never = list(runs)
        self._written({f"{_KEY}{run}": None for run in never if f"{_KEY}{run}" in self._journal.items})
        self.recorded(never)
        for run in never:
            self._recorded.pop(run, None)
        self._forget(never)

    def pruned(self, runs: Iterable[RunId]) -> None:
        """Forget runs that were deleted from the ledger: the next daemon would write again what is remembered of their ends."""
        self.forget_entirely([run for run in runs if f"{_RUN}{run}" in self._journal.items])

    def forget_spawns(self, *, but: Container[RunId]) -> None:
        """Removes what was to start runs that are not live: a daemon was killed before it had remembered them."""
        with suppress(OSError):
            for run in self.spawns.runs():
                if run not in but:
                    self._forget_spawn(run)

    def keys(self) -> dict[SpawnKey, RunId]:
        """By what requests are known by: the runs that were admitted for them."""
        items = self._journal.items.items()
        found = {key.removeprefix(_KEY): value for key, value in items if key.startswith(_KEY)}
        return {msgspec.msgpack.decode(value, type=SpawnKey): run for run, value in found.items()}

    def spawn(self, run: RunId) -> Spawn | None:
        """What it takes to start the run; `None` if that is gone or unreadable."""
        try:
            kept = self.spawns.read(run)
            return msgspec.msgpack.decode(kept, type=Spawn) if kept is not None else None
        except (OSError, msgspec.MsgspecError) as error:
            self._trouble(f"run {run}: what it was to be started with cannot be read: {error}")
            return None

    def _forget_spawn(self, run: RunId) -> None:
        effect("forget spawn")
        try:
            self.spawns.forget(run)
        except OSError as error:
            self._trouble(f"run {run}: its environment is still in the spool: {error}")

    def _origin(self, live: Live) -> Origin:
        bare = msgspec.structs.replace(live.spawn, argv=[], cwd=b"", env=live.session_variables)
        program = live.program.name if live.program is not None else None
        return Origin(birth_of(live.run), bare, live.nonce, live.created_at, program, live.asker)

    def _now(self, live: Live) -> dict[str, bytes]:
        progress = Progress(state_of(live.run), live.started_at, live.ended_at, live.main, live.attempted_at, live.sessions)
        return {f"now/{live.run.id}": self._encode(progress)}

    # ---- budgets

    def charged(self, scope: str, name: str) -> Charged | None:
        """What a budget was charged, as far as it is remembered."""
        kept = self._journal.items.get(f"charge/{scope}/{name}")
        return msgspec.msgpack.decode(kept, type=Charged) if kept is not None else None

    def charge(self, scope: str, name: str, begins: datetime, usd: float, *, partial: bool = False) -> None:
        """Remembers what it was charged since then, together with what is kept next: the run that has used it."""
        self._first[f"charge/{scope}/{name}"] = self._encode(Charged(begins, usd, partial))

    # ---- trouble

    def _write(self, changes: dict[str, bytes | None]) -> None:
        effect("remember")
        self._journal.write(self._first | changes)
        effect("remembered")
        self._first = {}
        self._tell_notes()

    def _written(self, changes: dict[str, bytes | None]) -> bool:
        if self._closed:
            return False
        if not changes and not self._first:
            return True
        try:
            self._write(changes)
        except OSError as error:
            if not self._failing:
                self._trouble(f"what happens to runs cannot be remembered for now: {error}")
            self._failing = True
            self._timers.arm("remember", trio.current_time() + AGAIN, self._again)
            return False
        self._failing = False
        return True

    def _again(self) -> None:
        self._forget(())
        self.keep(())


def _boot() -> bytes:
    return (current_boot() or "unknown").encode()


def _number(key: str) -> int:
    try:
        return run_number(key.removeprefix(_RUN))
    except ValueError:
        return 0
