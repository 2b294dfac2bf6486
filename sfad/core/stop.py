"""The stop ladder (SPEC section 6): signal, grace, SIGKILL until empty, then survivors if the kernel keeps some.

A ladder empties one run's containment, and with it every descendant's. The rungs are climbed by time; the ladder ends the
moment the containment is empty, whichever rung it is on. If the programs of some of the runs want their main process to be
interrupted alone first, there is one more rung at the beginning, until those main processes have ended or `stop.polite` is over.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ..protocol.types import RunId

MAX_GRACE = 60.0
"""Seconds; fixed by SPEC section 6."""

KILL_AGAIN = 1.0
"""Seconds between repeated kills: a process that was moved into the containment after the first is met by the next."""


class Rung(Enum):
    """How far a ladder has come."""

    ASKED = "asked"
    """Main processes were interrupted; nothing else has had a signal."""
    SIGNALLED = "signalled"
    KILLED = "killed"


@dataclass(slots=True)
class Stop:
    """A ladder under way."""

    signal: int
    began_at: float
    grace_ends_at: float
    kill_wait: float
    rung: Rung = Rung.SIGNALLED
    killed_at: float | None = None
    asked: frozenset[RunId] = frozenset()
    """Runs whose main process was interrupted and has not ended yet, while on `Rung.ASKED`."""
    polite_ends_at: float = 0.0
    """When the others are signalled at the latest; only meaningful on `Rung.ASKED`."""
    overdue: bool = False
    """`kill_wait` has passed since SIGKILL and the containment is still not empty."""

    def shorten(self, grace_ends_at: float) -> bool:
        """A second request may end the grace sooner, never later. True if it does."""
        if self.rung is not Rung.SIGNALLED or grace_ends_at >= self.grace_ends_at:
            return False
        self.grace_ends_at = grace_ends_at
        return True

    def climb(self, at: float) -> None:
        """The grace is over: SIGKILL from now on."""
        self.rung = Rung.KILLED
        self.killed_at = at

    @property
    def overdue_at(self) -> float:
        """When to look for survivors; only meaningful once killed."""
        return (self.killed_at if self.killed_at is not None else self.grace_ends_at) + self.kill_wait
