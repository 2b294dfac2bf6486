"""The form in which a live run is saved in the spool.

run/ID    fixed at admission: the core's `Birth` and the shell's part
now/ID    what changes: the core's `State` and the shell's part
meter/ID  where the run's meter was, at most `SAVE_USE_WITHIN` old
key/ID    the key of its request, also after its end, for a client that has lost the answer
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Self, TypeVar

import msgspec
import trio
from msgspec import Struct

from ..agents import Reading
from ..agents.command import Command
from ..agents.setup_reader import NO_SETUPS, TreeSetups
from ..core.state.account import Account, OpenReservation, Use
from ..core.state.money import to_nanos, to_usd
from ..core.state.run import Birth, State
from ..host.clock import Timers
from ..host.faults import crash_point
from ..host.files import UNDECODABLE, keep_damaged
from ..host.tasks import LoopRounds
from ..processes.credentials import Credentials
from ..protocol.kinds import COSTS
from ..protocol.types import CallInfo, LimitKind, RunId, Source
from ..runs.live import Live, Output, Parts, SavedMain
from ..storage.store import Store

# ---- Accounts as they are saved: money in USD, as everywhere outside the core. These are told to
# msgspec.


_SUMS = ("reserved_by_agent", "below", "ended", "ended_unsure", "printed_ended")
_PARTS: dict[str, Any] = {
    "sources": dict[Source, Use],
    "reservations": dict[str, OpenReservation],
    **dict.fromkeys(_SUMS, dict[LimitKind, int]),
    "levels": dict[LimitKind, float],
}
"""The attributes of `Account` that are saved, and their types."""

_MONEY = COSTS | {"more_cost", "unsure_cost", "guessed_cost"}
_NOTHING: dict[str, dict[str, Any]] = {name: {} for name in _PARTS}


def to_saved(value: Any) -> Any:
    if not isinstance(value, Account):
        raise NotImplementedError(f"{type(value)} cannot be saved")
    if not (value.sources or value.reservations or value.below or value.levels):
        return _NOTHING  # of most runs, each time they are saved
    return _converted({name: msgspec.to_builtins(getattr(value, name)) for name in _PARTS}, to_usd)


def from_saved(wanted: type, saved: Any) -> Any:
    """Return the account that was saved. Raise `ValueError` for a form of another version."""
    if wanted is not Account:
        raise NotImplementedError(f"{wanted} is not saved")
    try:
        _converted(saved, to_nanos)
        return Account(
            **{name: msgspec.convert(saved[name], type_) for name, type_ in _PARTS.items()}
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"this is no account: {error}") from error


def _converted(parts: dict[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    for amounts in (
        *parts["sources"].values(),
        *parts["reservations"].values(),
        *(parts[name] for name in _SUMS),
    ):
        for kind in _MONEY & amounts.keys():
            amounts[kind] = convert(amounts[kind])
    return parts


# ---- A live run as it is saved


RUN, NOW, METER, KEY = "run/", "now/", "meter/", "key/"

encode = msgspec.msgpack.Encoder(enc_hook=to_saved).encode


class Origin(Struct, frozen=True, array_like=True):
    birth: Birth
    command: Command
    """Without words, directory and environment, which `SavedSpawns` has until the run's last start.
    Of the environment only what says where the agent keeps its session files."""
    output: Output
    parts: Parts
    request_key: str | None
    nonce: str
    created_at: datetime
    program: str | None
    caller: RunId | None
    user: Credentials | None = None
    setups: TreeSetups = NO_SETUPS
    request: bytes | None = None
    """What `Live.for_recall` has."""


class Progress(Struct, frozen=True, array_like=True):
    state: State
    started_at: datetime | None
    ended_at: datetime | None
    main: SavedMain | None
    attempted_at: datetime | None = None
    sessions: tuple[Reading, ...] = ()
    calls: tuple[CallInfo, ...] = ()
    """Those that the ledger may not have."""
    milestone: str | None = None


class RunSnapshot(Struct, frozen=True):
    origin: Origin
    progress: Progress
    meter: bytes | None

    @classmethod
    def decoded(cls, origin: bytes, progress: bytes, meter: bytes | None) -> Self:
        """Return the run that was saved. Raises `msgspec.MsgspecError`."""
        now = msgspec.msgpack.decode(progress, type=Progress, dec_hook=from_saved)
        return cls(msgspec.msgpack.decode(origin, type=Origin), now, meter)


def origin_of(live: Live) -> bytes:
    """Return what to save once."""
    bare = msgspec.structs.replace(
        live.command, argv=[], cwd=b"", env=live.session_variables, placeholders={}
    )
    program = live.program.name if live.program is not None else None
    return encode(
        Origin(
            live.run.birth,
            bare,
            live.output,
            live.parts,
            live.request_key,
            live.nonce,
            live.created_at,
            program,
            live.caller,
            live.credentials,
            live.setups,
            live.for_recall,
        )
    )


def progress_of(live: Live) -> bytes:
    """Return what to save after each change."""
    calls = tuple(live.calls) if live.calls is not None else ()
    return encode(
        Progress(
            live.run,
            live.started_at,
            live.ended_at,
            live.main,
            live.attempted_at,
            live.sessions,
            calls,
            live.milestone,
        )
    )


# ---- Writes to the spool, tried again while the disk has no room

RETRY_EVERY = 1.0
"""Seconds between two tries to write what the disk had no room for."""

T = TypeVar("T")

Changes = dict[str, bytes | None]
"""Values by key; `None` deletes."""


class RetryingStore:
    """The spool's file of values by key. `trouble` is told of the first failure of several, and of
    what another process did to the file; `damaged` of each value that cannot be decoded. Such a
    value is set aside in a file beside the store's."""

    def __init__(
        self,
        store: Store,
        timers: Timers,
        rounds: LoopRounds,
        trouble: Callable[[str], None],
        damaged: Callable[[str], None],
    ) -> None:
        self.items = store.items
        self.unwritten: Changes = {}
        """The next write has these as well."""
        self._store = store
        self._timers = timers
        self._rounds = rounds
        self._looked = -1
        """The turn of the last look whether the file is in its place."""
        self.trouble = trouble
        self._damaged = damaged
        self.failing = False
        """Whether the last write has failed."""
        self._closed = False
        self._displaced = False

    def decoded(self, key: str, type_: type[T]) -> T | None:
        """Return a value; `None` if there is none, or if it is damaged."""
        saved = self.items.get(key)
        try:
            return msgspec.msgpack.decode(saved, type=type_) if saved is not None else None
        except UNDECODABLE as error:
            self._tell_damaged(key, error)
            return None

    def whole(self, key: str) -> int:
        """Return a whole number; 0 if there is none, or if it is damaged."""
        try:
            return max(0, int(self.items.get(key, b"0")))
        except ValueError as error:
            self._tell_damaged(key, error)
            return 0

    def _tell_damaged(self, key: str, error: Exception) -> None:
        self._damaged(
            f"the record {key} in the spool cannot be read: {error}; {self.set_aside(key)}"
        )

    def set_aside(self, key: str) -> str:
        """Move a damaged value to a file of its own. Return where it is, as the end of a
        sentence."""
        kept = keep_damaged(self._store.path.with_name(key.replace("/", ".")), self.items[key])
        self.write_soon({key: None})
        return kept

    def add_to_next(self, changes: Changes) -> None:
        self.unwritten |= changes

    def write(self, changes: Changes) -> None:
        """Write all of these, or none. Raises `OSError`."""
        crash_point("remember")
        self._store.write(self.unwritten | changes, look=self._looked != self._rounds.number)
        self._looked = self._rounds.number
        crash_point("remembered")
        self.unwritten = {}
        self.failing = False
        if self._store.notes:
            self._tell_notes()

    def write_soon(self, changes: Changes) -> None:
        """Write these now, or as soon as the disk has room."""
        self.unwritten |= changes
        if self._closed or not self.unwritten:
            return
        try:
            self.write({})
        except OSError as error:
            if not self.failing:
                self.trouble(f"what happens to runs cannot be saved in the spool for now: {error}")
            self.failing = True
            self._timers.arm(
                "remember", trio.current_time() + RETRY_EVERY, lambda: self.write_soon({})
            )

    def put_back(self, restore: Callable[[], None]) -> None:
        """Write the file again if another process has removed or replaced it. If so, now or at a
        write, call `restore`, because the spool's other files may be gone as well. Raises
        `OSError`."""
        if self._closed:
            return
        self._store.stay()
        self._looked = self._rounds.number
        if self._store.notes:
            self._tell_notes()
        if self._displaced:
            restore()
            self._displaced = False

    def _tell_notes(self) -> None:
        for note in self._store.take_notes():
            self._displaced = True
            self.trouble(note)

    def close(self) -> None:
        """Close the file. Nothing is written after that."""
        self._closed = True
        self._store.close()
