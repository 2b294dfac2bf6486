"""The directory `spool/`, with a part for each thing that is saved in it."""

from collections.abc import Callable, Iterable
from pathlib import Path

from ..host.clock import Timers
from ..host.loop_turns import LoopTurns
from ..runs.live import Live
from ..spool import Store
from .alerts import AlertSpool
from .budgets import SavedCharges
from .earlier import BOOT, PLACE, EarlierSpool, this_boot
from .ended import EndedRuns
from .hooks import HookSpool
from .journal import RunJournal
from .numbers import ReservedNumbers
from .retrying import RetryingStore
from .saved_spawns import SavedSpawns


class Spool:
    """Raises `OSError` and `StoreError` if it cannot be opened. A write that fails later is told to `trouble` and tried again; only
    what must not begin without it raises. `lost`: see the store. `damaged` (else `trouble`) is told of each part that was set aside
    because it cannot be read."""

    def __init__(
        self,
        directory: Path,
        timers: Timers,
        turns: LoopTurns,
        trouble: Callable[[str], None],
        lost: Callable[[], str | None] = lambda: None,
        damaged: Callable[[str], None] | None = None,
    ) -> None:
        damaged = damaged or trouble
        self.spawns = SavedSpawns(directory, trouble, damaged)
        store = Store(directory / "runs", lost)
        self.notes = store.take_notes()
        """What had to be repaired, as lines for the log."""
        self._store = RetryingStore(store, timers, turns, trouble, damaged)
        self.earlier = EarlierSpool(store, self._store)
        self._trouble = trouble
        self.journal = RunJournal(self._store, self.spawns)
        self.ended = EndedRuns(self._store, self.spawns)
        self.numbers = ReservedNumbers(self._store)
        self.charges = SavedCharges(self._store)
        self.alerts = AlertSpool(self._store)
        self.hooks = HookSpool(self._store)

    def begin(self, place: str) -> None:
        """From now on it is written for this boot, and for the state directory `place`."""
        self._store.write_soon({BOOT: this_boot(), PLACE: place.encode(errors="surrogateescape")})

    def put_back(self, runs: Iterable[Live]) -> None:
        """Write the spool again if another process has removed or replaced it. `runs` are all live ones."""
        try:
            self._store.put_back(lambda: self.spawns.put_back(runs))
        except OSError as error:
            self._trouble(f"the spool was removed or replaced by another process, and cannot be written again: {error}")

    def close(self) -> None:
        """Close it. The next daemon finds there what the ledger could not take."""
        self._store.close()
