"""The stop ladder of a run: signal, grace, SIGKILL until its containment is empty, then a survey of what survived.

A ladder empties one run's containment, and with it every descendant's. Time takes it from rung to rung; it ends as soon as the
containment is empty. Where the policy names a run's program, there is one more rung first: its main process alone is
interrupted, and has `stop.polite` seconds to end.
"""

from msgspec import Struct

from ...protocol.types import RunId, Word
from .policy import Invalid

MAX_GRACE = 60.0
"""Seconds that a request may ask for at most."""

KILL_AGAIN = 1.0
"""Seconds between repeated kills: a process that was moved into the containment after one is killed by the next."""


def check_grace(grace: float | None) -> None:
    """Raise `Invalid` for seconds that no stop may take."""
    if grace is not None and not 0 <= grace <= MAX_GRACE:
        raise Invalid(f"a grace of {grace:g} s is outside 0 s to {MAX_GRACE:g} s")


class Rung(Word):
    INTERRUPTED = "interrupted"
    """Main processes were interrupted; no other process has had a signal."""
    SIGNALLED = "signalled"
    KILLED = "killed"


class Ladder(Struct):
    """A stop under way. Times are those of the core's clock."""

    signal: int
    began_at: float
    grace_ends_at: float
    kill_wait: float
    rung: Rung = Rung.SIGNALLED
    killed_at: float | None = None
    interrupted: frozenset[RunId] = frozenset()
    """Runs whose main process was interrupted and has not ended yet, while on `Rung.INTERRUPTED`."""
    polite_ends_at: float = 0.0
    """When every process is signalled at the latest; only meaningful on `Rung.INTERRUPTED`."""
    overdue: bool = False
    """`kill_wait` has passed since SIGKILL and the containment is still not empty."""

    emptied: bool = False
    """The containment is empty, and runs of other nodes that are below it have not ended."""

    def shorten(self, grace_ends_at: float) -> bool:
        """End the grace sooner, never later. Return whether that changed anything."""
        if self.rung is not Rung.SIGNALLED or grace_ends_at >= self.grace_ends_at:
            return False
        self.grace_ends_at = grace_ends_at
        return True

    def kill(self, at: float) -> None:
        if self.rung is not Rung.KILLED:
            self.rung, self.killed_at = Rung.KILLED, at

    @property
    def overdue_at(self) -> float:
        """When to look for survivors; an estimate until SIGKILL was sent."""
        return (self.killed_at if self.killed_at is not None else self.grace_ends_at) + self.kill_wait
