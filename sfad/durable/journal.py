"""The journal: snapshots of live runs, so that a daemon that is killed at any instruction loses none of them.

A snapshot is saved before what it says is done.
"""

from collections.abc import Callable, Iterable

from ..protocol.types import RunId
from ..runs.live import Live
from .hooks import on_end_changes
from .retrying import Changes, RetryingStore
from .saved_spawns import SavedSpawns
from .snapshots import KEY, METER, NOW, RUN, encode, origin_of, progress_of

Position = Callable[[RunId], bytes | None]
"""Returns where a run's meter is; `None` for a run without one."""


def nowhere(_run: RunId) -> None:
    """The position where nothing new is to be saved of meters."""


class RunJournal:
    def __init__(self, store: RetryingStore, spawns: SavedSpawns) -> None:
        self._store = store
        self._spawns = spawns

    def admit(self, live: Live, others: Iterable[Live]) -> None:
        """Save a run that was admitted just now, and others that this has changed. Raises `OSError`, and then it must not be."""
        run = live.run.id
        self._spawns.save(live)
        own: Changes = on_end_changes(live)
        own |= {f"{RUN}{run}": origin_of(live), f"{NOW}{run}": progress_of(live)}
        if live.key is not None:
            own[f"{KEY}{run}"] = encode(live.key)
        try:
            self._store.write(own | self._changes(others, nowhere))
        except OSError:
            self._spawns.forget(run)
            raise

    def save(self, runs: Iterable[Live], position: Position = nowhere) -> None:
        self._store.write_soon(self._changes(runs, position))

    @property
    def failing(self) -> bool:
        """Whether the disk has no room now. What could not be written is tried again."""
        return self._store.failing

    def is_saved(self, run: RunId) -> bool:
        """Whether the newest snapshot of a run could be written."""
        return f"{NOW}{run}" not in self._store.unwritten

    def save_all(self, runs: Iterable[Live], position: Position) -> None:
        """Save all live runs as they are at this moment. Raises `OSError`."""
        self._store.write(self._changes(runs, position))

    def _changes(self, runs: Iterable[Live], position: Position) -> Changes:
        items, unwritten, changes = self._store.items, self._store.unwritten, Changes()
        for live in runs:
            run = live.run.id
            if f"{RUN}{run}" not in items:
                continue  # it was refused
            changes[f"{NOW}{run}"] = progress_of(live)
            if (where := position(run)) is not None:
                changes[f"{METER}{run}"] = where
        # after an adoption all runs are saved, and few have changed
        return {key: value for key, value in changes.items() if items.get(key) != value or key in unwritten}
