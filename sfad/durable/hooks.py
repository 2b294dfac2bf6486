"""Hooks, as they are saved in the spool: how far each has come, and the commands of `--on-end` that were not executed yet."""

from collections.abc import Iterable

import msgspec

from ..host.variables import kept_variables
from ..protocol.types import RunId
from ..runs.live import Live
from ..runs.on_end import OnEnd
from .retrying import Changes, RetryingStore

DONE, ON_END = "hooks", "onend/"


class HookSpool:
    def __init__(self, store: RetryingStore) -> None:
        self._store = store

    def done(self) -> dict[str, int]:
        """Return the number of the event up to which each hook is done."""
        return self._store.decoded(DONE, dict[str, int]) or {}

    def save_done(self, done: dict[str, int]) -> None:
        if done != self.done():
            self._store.write_soon({DONE: msgspec.msgpack.encode(done)})

    def on_ends(self) -> dict[RunId, OnEnd]:
        """Return the commands of runs that were admitted and whose command was not executed yet."""
        return {run: hook for run in self._saved() if (hook := self.on_end(run)) is not None}

    def on_end(self, run: RunId) -> OnEnd | None:
        return self._store.decoded(f"{ON_END}{run}", OnEnd)

    def _saved(self) -> list[RunId]:
        return [key.removeprefix(ON_END) for key in self._store.items if key.startswith(ON_END)]

    def forget(self, runs: Iterable[RunId]) -> None:
        self._store.write_soon({key: None for run in runs if (key := f"{ON_END}{run}") in self._store.items})


def on_end_changes(live: Live) -> Changes:
    """Return what to save with a run's admission."""
    command = live.spawn.on_end
    if command is None:
        return {}
    hook = OnEnd(command, live.spawn.cwd, kept_variables(live.spawn.env), live.run.birth.uid, live.user, live.spawn.isolation)
    return {f"{ON_END}{live.run.id}": msgspec.msgpack.encode(hook)}
