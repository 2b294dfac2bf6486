"""What is heard of runs on other nodes: `events.HeardOf.what`."""

from msgspec import Struct

from ....core.state.account import NOTHING, Use
from ....core.state.request import Asked
from ....protocol.types import Check, Reason, RunId, Status, Wanted


class PlacementWaits(Struct, frozen=True):
    """No node can take a run that is to be placed: none now, or none of the fleet ever
    (`infeasible`)."""

    why: str
    infeasible: bool = False


class Placed(Struct, frozen=True):
    """A node has room for a run that is to be placed, and has it reserved. `asked`: it is this one,
    whose daemon has completed the request."""

    node: str
    asked: Asked | None = None


class GrantRefused(Struct, frozen=True):
    """The other node has refused a run, or it was never asked. Nothing of the grant was used."""

    reason: Reason


class GrantState(Struct, frozen=True):
    """A run of another node, as that one tells."""

    status: Status
    id: RunId = ""
    """Its id there."""
    used: Use = NOTHING
    """With its descendants."""
    admitted: int = 0
    """Descendants."""
    reason: Reason | None = None
    code: int | None = None
    signal: int | None = None
    checks: tuple[Check, ...] = ()


class GrantSeen(Struct, frozen=True):
    """The node of a run has told how the run is. Messages may come late, twice, and in any
    order."""

    node: str
    state: GrantState


class GrantUsed(Struct, frozen=True):
    """The node of a run that goes on has told what the run and its descendants have used."""

    node: str
    id: RunId
    """The run's, there."""
    used: Use


class GrantLate(Struct, frozen=True):
    """The node of a run has not answered so far. `why`: since when it owes an answer, and what
    follows, in words; empty if it may still be at work."""

    node: str
    why: str


class GrantLost(Struct, frozen=True):
    """The node of a run has come back without it, or an operator says that it will not come
    back."""

    why: str


class GrantRenewed(Struct, frozen=True):
    """The node of a run is about to be told that the giver has heard of it at the time of the
    event: the lease begins again."""


class GrantTended(Struct, frozen=True):
    """The giver of this run's grant has told what it wants. `lease_until`: on this node's clock;
    `None`: as before."""

    wanted: Wanted
    lease_until: float | None = None


Heard = (
    PlacementWaits
    | Placed
    | GrantRefused
    | GrantSeen
    | GrantUsed
    | GrantLate
    | GrantLost
    | GrantRenewed
    | GrantTended
)
