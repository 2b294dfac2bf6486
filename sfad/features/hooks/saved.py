"""Hooks, as they are saved in the spool: how far each has come, and the commands of `--on-end` that
were not executed yet."""

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from ...durable.snapshots import Changes, RetryingStore
from ...processes.credentials import Credentials
from ...protocol.types import Isolation, RunId
from ...runs.live import Live
from .feature import DONE, ON_END

# ---- The part of an environment that a command needs to find its user's files and desktop, without
# keys


KEPT = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR",
    "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS",
)  # fmt: skip
"""And `LC_*`."""

MAX_SAVED = 4096
"""Bytes of a variable with its name."""

_KEPT = (b"LC_", *(f"{name}=".encode() for name in KEPT))


def kept_variables(env: Iterable[bytes]) -> list[bytes]:
    """Return these variables of an environment. Of two with one name the first counts, as for
    getenv(3)."""
    found: dict[bytes, bytes] = {}
    for item in env:
        if item.startswith(_KEPT) and len(item) <= MAX_SAVED:
            found.setdefault(item.partition(b"=")[0], item)
    return list(found.values())


# ---- The command of `--on-end`, as it is saved from its run's admission until it was executed


MAX_ON_END = 4096
"""Characters of the command."""


class OnEnd(Struct, frozen=True, array_like=True):
    command: str
    """For `sh -c`."""
    cwd: bytes
    env: list[bytes]
    uid: int
    user: Credentials | None
    isolation: Isolation | None = None
    """Of the run, and so of the command: it may execute what the run could write."""


def on_end_changes(live: Live) -> Changes:
    """Return what to save with a run's admission."""
    command = live.parts.of("on_end")
    if command is None:
        return {}
    hook = OnEnd(
        command,
        live.command.cwd,
        kept_variables(live.command.env),
        live.run.birth.uid,
        live.credentials,
        live.parts.sandbox,
    )
    return {f"{ON_END}{live.run.id}": msgspec.msgpack.encode(hook)}


# ---- The spool's part


class HookSpool:
    def __init__(self, store: RetryingStore) -> None:
        self._store = store

    def done(self) -> dict[str, int]:
        """Return the number of the event up to which each hook is done."""
        return self._store.decoded(DONE, dict[str, int]) or {}

    def save_done(self, done: dict[str, int]) -> None:
        if done != self.done():
            self._store.write_soon({DONE: msgspec.msgpack.encode(done) if done else None})

    def on_ends(self) -> dict[RunId, OnEnd]:
        """Return the commands of runs that were admitted and whose command was not executed yet."""
        return {run: hook for run in self._saved() if (hook := self.on_end(run)) is not None}

    def on_end(self, run: RunId) -> OnEnd | None:
        return self._store.decoded(f"{ON_END}{run}", OnEnd)

    def _saved(self) -> list[RunId]:
        return [key.removeprefix(ON_END) for key in self._store.items if key.startswith(ON_END)]

    def forget(self, runs: Iterable[RunId]) -> None:
        self._store.write_soon(
            {key: None for run in runs if (key := f"{ON_END}{run}") in self._store.items}
        )
