"""Runs on other nodes: what is known of each on the node that started it, and of the lease on the
node where it executes.

A *grant* is the share of a tree that a run on another node may use: descendants, money, tokens,
turns, time. The *giver* has it in its own tree as a run with a `Remote`, and counts the whole share
as used before it sends it; the *taker* has it as a root with a `Lease`, and decides by the grant
alone. Times are those of each one's own clock; no time of one is compared with the other's."""

from __future__ import annotations

from msgspec import Struct

from ...protocol.types import Check, RunId
from .account import NOTHING, Use

DRIFT = 1.01
"""How much faster one machine's clock may run than another's. Crystals differ by 0.0001, and
virtual machines by little more."""

SPARE = 15.0
"""Seconds that the taker's ladder may take beyond the grace (`stop.kill_wait`), and its timers may
be late."""


class Remote(Struct):
    """Of a run that executes on another node: what its giver knows."""

    descendants: int
    """Granted beyond the run itself."""
    reservation: str | None = None
    """The reservation of what it may use, in its own account."""
    node: str | None = None
    """Where it executes; `None` until it is placed."""
    id: RunId = ""
    """Its id there, once that node has told."""
    waits: str | None = None
    """Why it is not placed."""
    infeasible: bool = False
    lease: float | None = None
    """Seconds; `None`: its node keeps it however long this one is away."""
    lease_from: float = 0.0
    """When this node had heard of the other, as it has told that last."""
    heard_at: float = 0.0
    """When the other node was heard of last."""
    away: str | None = None
    """The node that it was lost with: its next attempt begins on another one."""
    refunded: bool = False
    """How much it has used is known, and the rest was given back."""
    used_before: Use = NOTHING
    """What its earlier attempts on other nodes are known to have used."""
    unreached: str = ""
    """Since when its node does not answer, and what follows, in words; empty if it answers."""
    checks: tuple[Check, ...] = ()
    """As its node has told of them last."""

    def over_at(self, grace: float) -> float | None:
        """Return when its node has surely stopped it if nothing more is heard; `None`: never."""
        return (
            self.lease_from + self.lease * DRIFT + grace + SPARE if self.lease is not None else None
        )


class Lease(Struct):
    """Of a run that another node has granted: until when its giver wants it, and what it wanted
    last."""

    until: float | None
    """`None`: it goes on without its giver."""
    number: int = -1
    """`Wanted.number` of the newest message."""
    paused: bool = False
    """The giver wants it to stand still."""
