"""How long nodes take to answer, and so how long one is waited for."""

import time

LEAST, MOST = 0.5, 5.0
"""Seconds that a node has for an answer which takes no work."""
FACTOR = 4
"""So many times as long as it took lately."""
LONGER = 1.0
"""Seconds by which an answer may take longer than that."""
LATE = 10.0
"""Seconds for which a late answer still counts as a measure of how slow its node is."""
UNKNOWN = 1.0
"""Seconds for the first answer, because the way to the node is opened, too; and for one that was
heard of within the last `LATELY` seconds: it probably lives."""
LATELY = 5.0


class Pace:
    """A node on a busy machine is slow and lives. So each has a multiple of what its slowest answer
    of late has taken, also if that came too late, within bounds that a person who waits can bear.
    One from which not even a late answer came has the least."""

    def __init__(self) -> None:
        self._took: dict[str, float] = {}
        self._at: dict[str, float] = {}
        self._missed: dict[str, float] = {}
        """Since when each has not answered in time."""

    def answered(self, node: str, seconds: float) -> None:
        """Note that an answer has taken so long."""
        self._took[node] = max(seconds, 0.8 * self._took.get(node, 0.0))
        self._at[node] = time.monotonic()
        self._missed.pop(node, None)

    def missed(self, node: str) -> None:
        """Note that an answer has not come in time."""
        self._missed.setdefault(node, time.monotonic())

    def patience(self, node: str) -> float:
        """Return the seconds to wait for an answer of a node."""
        took, now = self._took.get(node), time.monotonic()
        if now - self._missed.get(node, now) > LATE:
            return LEAST
        if took is None:
            return UNKNOWN
        least = UNKNOWN if now - self._at[node] < LATELY else LEAST
        return min(max(least, min(FACTOR * took, took + LONGER)), MOST)
