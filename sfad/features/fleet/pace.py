"""How long nodes take to answer, and so how long one is waited for."""

import time

LEAST, MOST = 0.5, 5.0
"""Seconds that a node has for an answer which takes no work."""
LONGER = 0.5
"""Seconds by which an answer may take longer than it took lately."""
LATE = 10.0
"""Seconds for which a late answer still counts as a measure of how slow its node is."""
UNKNOWN = 0.8
"""Seconds for the first answer, because the way to the node is opened, too; and for one that was
heard of within the last `LATELY` seconds: it probably lives."""
LATELY = 5.0
OWED = 0.25
"""Seconds for a node that has not answered the last question so far: if it lives, that answer comes
late, and tells how slow the node is."""
BURST, HARDLY = 1.0, 0.05
"""Seconds, `HARDLY`, for a node that has not answered a question within the last `BURST`: one
command asks several questions, and must not wait for each."""


class Pace:
    """A node on a busy machine is slow and lives. So each has a little longer than what its slowest
    answer of late has taken, also if that came too late, within bounds that a person who waits can
    bear. One that owes an answer delays the next question hardly."""

    def __init__(self) -> None:
        self._took: dict[str, float] = {}
        self._at: dict[str, float] = {}
        self._missed: dict[str, float] = {}
        """Nodes that owe an answer, and when a burst of questions to each began."""

    def answered(self, node: str, seconds: float) -> None:
        """Note that an answer has taken so long."""
        self._took[node] = max(seconds, 0.8 * self._took.get(node, 0.0))
        self._at[node] = time.monotonic()
        self._missed.pop(node, None)

    def missed(self, node: str) -> None:
        """Note that an answer has not come in time."""
        now = time.monotonic()
        if now - self._missed.get(node, -BURST) >= BURST:
            self._missed[node] = now

    def patience(self, node: str) -> float:
        """Return the seconds to wait for an answer of a node."""
        if (missed := self._missed.get(node)) is not None:
            return HARDLY if time.monotonic() - missed < BURST else OWED
        took = self._took.get(node)
        if took is None:
            return UNKNOWN
        least = UNKNOWN if time.monotonic() - self._at[node] < LATELY else LEAST
        return min(max(least, took + LONGER), MOST)
