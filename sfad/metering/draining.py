"""Reads what runs have written when one of them has ended, while all else waits."""

import time
from collections.abc import Iterable

from .tailed_run import TailedRun

DRAIN_SECONDS = 0.05
"""Seconds of reading when runs have ended, while all else waits: 10 MB of what agents print, or 256 KiB of the densest lines.
Ends that follow each other without a pause share them."""
NEWEST = 32 << 10
"""Bytes at the end of a run's stdout that are read however long it takes, with the whole of their first line, because they contain
the final result. 6 ms of the densest lines."""
NEWEST_OF_ALL = 16 * NEWEST
"""The same for all runs of a drain together. Of 64 that write without pause each gets 8 KiB. That is little, but only one of them
has ended; each of the others is drained again when it ends."""
NEWEST_AT_LEAST = 1 << 10
"""The same for each of a thousand."""


class Drains:
    """Shares the time of ends that follow each other."""

    def __init__(self) -> None:
        self._drained = 0.0
        self._spare = DRAIN_SECONDS

    def drain(self, runs: Iterable[TailedRun | None], seconds: float) -> None:
        """Read these runs as `Tail.drain` says."""
        now = time.perf_counter()
        end = now + min(seconds, self._spare + now - self._drained)
        waiting = []
        for place, tailed in enumerate(runs):
            unread = tailed.unread() if tailed is not None else None
            if tailed is not None and unread is not None and (unread or place == 0):
                waiting.append((unread, place == 0, tailed))
        newest = min(NEWEST, max(NEWEST_AT_LEAST, NEWEST_OF_ALL // max(1, len(waiting))))
        # a run with little to read leaves the rest of its share to the others
        waiting.sort(key=lambda each: each[0])
        for left, (_, ended, tailed) in zip(range(len(waiting), 0, -1), waiting, strict=True):
            now = time.perf_counter()
            tailed.drain(now + max(0.0, end - now) / left, NEWEST if ended else newest, ended=ended)
        self._drained = time.perf_counter()
        self._spare = max(0.0, end - self._drained)
