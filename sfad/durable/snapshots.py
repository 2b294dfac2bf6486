"""The form in which a live run is saved in the spool."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import msgspec
from msgspec import Struct

from ..core.snapshot import Birth, State, birth_of, state_of
from ..meters import Reading
from ..protocol.messages import Spawn
from ..protocol.types import RunId
from ..runs.live import Live, SavedMain
from .accounts import from_saved, to_saved

encode = msgspec.msgpack.Encoder(enc_hook=to_saved).encode


class Origin(Struct, frozen=True, array_like=True):
    """What is settled when a run is admitted."""

    birth: Birth
    spawn: Spawn
    """Without command and environment, which `Spawns` holds until the run's last start. Of the environment only what says where
    the agent keeps its session files."""
    nonce: str
    created_at: datetime
    program: str | None
    """The agent program whose events its stdout holds."""
    asker: RunId | None
    """The run that asked for it."""


class Progress(Struct, frozen=True, array_like=True):
    """What changes."""

    state: State
    started_at: datetime | None
    ended_at: datetime | None
    main: SavedMain | None
    attempted_at: datetime | None = None
    sessions: tuple[Reading, ...] = ()
    """What the session files of earlier attempts told."""


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """A run as it was when it was last saved."""

    origin: Origin
    progress: Progress
    meter: bytes | None
    """Where its meter was."""

    @classmethod
    def decoded(cls, origin: bytes, progress: bytes, meter: bytes | None) -> RunSnapshot:
        """Return the run that was saved. Raises `msgspec.MsgspecError`."""
        return cls(
            msgspec.msgpack.decode(origin, type=Origin),
            msgspec.msgpack.decode(progress, type=Progress, dec_hook=from_saved),
            meter,
        )


def origin_of(live: Live) -> bytes:
    """Return what to save once."""
    bare = msgspec.structs.replace(live.spawn, argv=[], cwd=b"", env=live.session_variables)
    program = live.program.name if live.program is not None else None
    return encode(Origin(birth_of(live.run), bare, live.nonce, live.created_at, program, live.asker))


def progress_of(live: Live) -> bytes:
    """Return what to save after each change."""
    return encode(Progress(state_of(live.run), live.started_at, live.ended_at, live.main, live.attempted_at, live.sessions))
