"""The spool's key-value file beside SQLite: `python -m tests.bench --only spool`.

Each writes what the daemon saves for runs of /bin/true that overlap, six batches of one or two
snapshots of 400 bytes for each run, and deletes it. Nothing syncs. Only those modes of SQLite are
measured in which a batch survives a SIGKILL as a whole.
"""

from __future__ import annotations

import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

from sfad.storage.store import Store
from tests.bench.ours import directory

RUNS, BATCHES, SNAPSHOT = 2000, 6, bytes(range(200)) * 2
LIVE = 50
"""Runs at a time."""
REPEATS = 5
MODES = ("WAL", "PERSIST", "TRUNCATE")

Write = Callable[[Mapping[str, bytes | None]], None]


class SqliteStore:
    """What would take the place of `Store`, as far as the time of a write depends on it."""

    def __init__(self, path: Path, mode: str) -> None:
        self.items: dict[str, bytes] = {}
        self._database = sqlite3.connect(path, isolation_level=None)
        execute = self._database.execute
        execute("PRAGMA locking_mode = EXCLUSIVE")
        execute(f"PRAGMA journal_mode = {mode}")
        execute("PRAGMA synchronous = OFF")
        execute("CREATE TABLE items (key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID")

    def write(self, changes: Mapping[str, bytes | None]) -> None:
        execute = self._database.execute
        execute("BEGIN")
        for key, value in changes.items():
            if value is None:
                execute("DELETE FROM items WHERE key = ?", (key,))
                self.items.pop(key, None)
            else:
                execute("INSERT OR REPLACE INTO items VALUES (?, ?)", (key, value))
                self.items[key] = value
        execute("COMMIT")

    def close(self) -> None:
        self._database.close()


def main() -> None:
    """Print a line for each store: microseconds of a batch, by the clock and of the processor."""
    made = {"sfad": _ours, **{f"SQLite, {mode}": _sqlite(mode) for mode in MODES}}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in made}
    for _ in range(REPEATS):  # in turn, so that a busy machine slows all of them
        for name, opened in made.items():
            with directory() as place, opened(place / "runs") as write:
                taken[name].append(measured(write))
    for name, figures in taken.items():
        clock, processor = (statistics.median(each) for each in zip(*figures, strict=True))
        print(f"{name:18}{clock:8.1f} µs a batch{processor:8.1f} µs of CPU")


def measured(write: Write) -> tuple[float, float]:
    """Return the microseconds of a batch: of the clock, and of the processor."""
    count = 0
    clock, processor = time.perf_counter(), time.process_time()
    for number in range(RUNS + LIVE):
        if number < RUNS:
            for _ in range(BATCHES):
                write(
                    {f"run/{number}": SNAPSHOT} | ({} if count % 2 else {f"end/{number}": SNAPSHOT})
                )
                count += 1
        if number >= LIVE:
            write({f"run/{number - LIVE}": None, f"end/{number - LIVE}": None})
            count += 1
    return 1e6 * (time.perf_counter() - clock) / count, 1e6 * (
        time.process_time() - processor
    ) / count


@contextmanager
def _ours(path: Path) -> Iterator[Write]:
    with closing(Store(path)) as store:
        yield store.write


def _sqlite(mode: str) -> Callable[[Path], AbstractContextManager[Write]]:
    @contextmanager
    def opened(path: Path) -> Iterator[Write]:
        with closing(SqliteStore(path, mode)) as store:
            yield store.write

    return opened


if __name__ == "__main__":
    main()
