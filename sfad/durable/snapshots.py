"""The form in which a live run is saved in the spool.

run/ID    fixed at admission: the core's `Birth` and the shell's part
now/ID    what changes: the core's `State` and the shell's part
meter/ID  where the run's meter was, at most `SAVE_USE_WITHIN` old
key/ID    the key of its request, also after its end, for a client that has lost the answer
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Self

import msgspec
from msgspec import Struct

from ..core.run import Birth, State
from ..launch.credentials import Credentials
from ..meters import Reading
from ..protocol.messages import Spawn
from ..protocol.types import CallInfo, RunId
from ..runs.live import Live, SavedMain
from ..setups import NO_SETUPS, TreeSetups
from .accounts import from_saved, to_saved

RUN, NOW, METER, KEY = "run/", "now/", "meter/", "key/"

encode = msgspec.msgpack.Encoder(enc_hook=to_saved).encode


class Origin(Struct, frozen=True, array_like=True):
    birth: Birth
    spawn: Spawn
    """Without command and environment, which `SavedSpawns` has until the run's last start. Of the environment only what says where
    the agent keeps its session files."""
    nonce: str
    created_at: datetime
    program: str | None
    caller: RunId | None
    user: Credentials | None = None
    setups: TreeSetups = NO_SETUPS
    request: bytes | None = None
    """What `Live.request` has."""


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


@dataclass(frozen=True, slots=True)
class RunSnapshot:
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
    bare = msgspec.structs.replace(live.spawn, argv=[], cwd=b"", env=live.session_variables, placeholders={})
    program = live.program.name if live.program is not None else None
    return encode(
        Origin(live.run.birth, bare, live.nonce, live.created_at, program, live.caller, live.user, live.setups, live.request)
    )


def progress_of(live: Live) -> bytes:
    """Return what to save after each change."""
    calls = tuple(live.calls) if live.calls is not None else ()
    return encode(
        Progress(live.run, live.started_at, live.ended_at, live.main, live.attempted_at, live.sessions, calls, live.milestone)
    )
