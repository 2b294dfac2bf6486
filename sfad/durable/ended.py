"""Ended runs: how long the spool keeps what it has of them."""

from collections.abc import Iterable

from ..core.ids import run_number
from ..protocol.types import RunId
from .retrying import Changes, RetryingStore
from .saved_spawns import SavedSpawns
from .snapshots import KEY, METER, NOW, RUN

KEYS_KEPT = 1000
"""Ended runs whose requests are known still."""

SNAPSHOTS_KEPT = 4096
"""Ended runs that are kept until the ledger is checkpointed, which is every 500 rows, or 8 000 under load: 1 KiB a run."""


class EndedRuns:
    """Deletes a snapshot when the ledger's database, not only its log, has the run's end."""

    def __init__(self, store: RetryingStore, spawns: SavedSpawns) -> None:
        self._store = store
        self._spawns = spawns
        self._recorded: dict[RunId, None] = {}
        """Runs whose ends may be in the ledger's log only, in the order of their ends."""
        known = (key.removeprefix(KEY) for key in store.items if key.startswith(KEY))
        self._known = dict.fromkeys(sorted((run for run in known if f"{RUN}{run}" not in store.items), key=run_number))
        """Runs whose requests are known, the oldest first."""

    def recorded(self, runs: Iterable[RunId]) -> None:
        """The ledger has these ends, but maybe in its log only, of which SQLite skips a damaged part without an error. Their
        snapshots stay until that is checkpointed."""
        for run in runs:
            self._spawns.forget(run)
            self._recorded[run] = None
        surplus = len(self._recorded) - SNAPSHOTS_KEPT
        if surplus > 0:  # another process keeps reading the ledger, so that it cannot be checkpointed
            self._delete_oldest(surplus)

    def checkpointed(self) -> None:
        """The ledger's database itself has the ends that were recorded."""
        self._delete_oldest(len(self._recorded))

    def forget(self, runs: Iterable[RunId]) -> None:
        """Forget runs that no client heard of. A request with the key of one is to get another run."""
        changes: Changes = {}
        for run in runs:
            self._spawns.forget(run)
            self._recorded.pop(run, None)
            self._known.pop(run, None)
            changes |= self._snapshot(run) | ({f"{KEY}{run}": None} if f"{KEY}{run}" in self._store.items else {})
        self._store.write_soon(changes)

    def pruned(self, runs: Iterable[RunId]) -> None:
        """Forget runs that were deleted from the ledger. Else the next daemon would write their ends there again."""
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
        return {key: None for key in keys if key in self._store.items or key in self._store.unwritten}
