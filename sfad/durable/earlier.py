"""What an earlier daemon has saved in the spool."""

from pathlib import Path

import msgspec

from ..host.probe import current_boot
from ..launch.procfs import is_alive
from ..protocol.types import RunId
from ..runs.live import SavedMain, SpawnKey
from ..spool import Store
from .snapshots import KEY, METER, NOW, RUN, RunSnapshot

BOOT = "boot"
PLACE = "place"


class EarlierSpool:
    def __init__(self, store: Store) -> None:
        self._items = store.items
        self.sound = store.sound
        """Whether everything that was saved can be read. Otherwise something may be lost, such as what a budget was charged."""
        self.found = store.found
        self.same_boot = self._items.get(BOOT) == this_boot()
        """Whether it was written since the machine was booted."""
        place = self._items.get(PLACE)
        self.place = place.decode(errors="surrogateescape") if place is not None else None
        """The state directory that it was written for. Processes of its runs are known by that path."""

    def moved_alive(self, here: Path) -> list[RunId]:
        """Return runs that are alive and began when the state directory had another path."""
        if self.place in (None, str(here.resolve())):
            return []
        return [run for run, main in self._mains() if is_alive(main.pid, main.started)]

    def snapshots(self) -> tuple[dict[RunId, RunSnapshot], list[RunId]]:
        """Return what is saved, by run, and the runs whose snapshot cannot be read."""
        found: dict[RunId, RunSnapshot] = {}
        broken: list[RunId] = []
        for key, origin in self._items.items():
            if not key.startswith(RUN):
                continue
            run = key.removeprefix(RUN)
            try:
                found[run] = RunSnapshot.decoded(origin, self._items[f"{NOW}{run}"], self._items.get(f"{METER}{run}"))
            except (msgspec.MsgspecError, KeyError):
                broken.append(run)
        return found, broken

    def keys(self) -> dict[SpawnKey, RunId]:
        """Return the runs that were admitted, by the keys of their requests."""
        saved = {key.removeprefix(KEY): value for key, value in self._items.items() if key.startswith(KEY)}
        return {msgspec.msgpack.decode(value, type=SpawnKey): run for run, value in saved.items()}

    def _mains(self) -> list[tuple[RunId, SavedMain]]:
        """Return the main processes that were launched since the machine was booted."""
        snapshots = self.snapshots()[0] if self.same_boot else {}
        return [(run, saved.progress.main) for run, saved in snapshots.items() if saved.progress.main is not None]


def this_boot() -> bytes:
    return (current_boot() or "unknown").encode()
