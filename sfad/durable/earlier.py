"""What an earlier daemon has saved in the spool."""

from pathlib import Path
from typing import Any, cast

from ..host.damage import UNDECODABLE
from ..host.probe import current_boot
from ..launch.procfs import is_alive
from ..protocol.types import RunId
from ..runs.live import SavedMain, SpawnKey
from ..spool import Store
from .retrying import RetryingStore
from .snapshots import KEY, METER, NOW, RUN, RunSnapshot

BOOT = "boot"
PLACE = "place"


class EarlierSpool:
    def __init__(self, store: Store, values: RetryingStore) -> None:
        self._values = values
        self._items = store.items
        self.sound = store.sound
        """Whether everything that was saved can be read. Otherwise something may be lost, such as what a budget was charged."""
        self.found = store.found
        self.same_boot = self._items.get(BOOT) == this_boot()
        """Whether it was written since the machine was booted."""
        place = self._items.get(PLACE)
        self.place = place.decode(errors="surrogateescape") if place is not None and place.startswith(b"/") else None
        """The state directory that it was written for. Processes of its runs are known by that path."""

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
                found[run] = RunSnapshot.decoded(origin, self._items[f"{NOW}{run}"], self._items.get(f"{METER}{run}"))
            except UNDECODABLE as error:
                broken[run] = error
        return found, broken

    def set_aside(self, run: RunId) -> str:
        """Set a damaged snapshot aside. Return where it is, as the end of a sentence."""
        return "; ".join(self._values.set_aside(key) for key in (f"{RUN}{run}", f"{NOW}{run}") if key in self._items)

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
        return [(run, saved.progress.main) for run, saved in snapshots.items() if saved.progress.main is not None]


def this_boot() -> bytes:
    return (current_boot() or "unknown").encode()
