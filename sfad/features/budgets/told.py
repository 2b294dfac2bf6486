"""What the half in the core and the part tell each other: with `core.events.Told` and
`core.commands.Tell`."""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from .budgets import Budget
from .messages import Allowance, AskAllowances

# ---- To the half in the core


class BudgetsKnown(Struct, frozen=True):
    """Budgets as they stand: at the start, after a change of the config, and when one is
    renewed."""

    budgets: tuple[Budget, ...]


class AllowancesAsked(Struct, frozen=True):
    """A node of the fleet asks this one, the keeper, what it may spend of budgets."""

    asked: AskAllowances
    here: str
    """This node."""


class AllowancesKnown(Struct, frozen=True):
    """What this node may charge of budgets: the keeper's answer, or less, before that is told.
    `waits`: why there is no answer."""

    allowances: Sequence[Allowance]
    waits: str | None = None


# ---- To the part


class Charge(Struct, frozen=True):
    """Add nano-dollars to what a budget has been charged in its present period."""

    scope: Literal["user", "team"]
    name: str
    nanos: int


class Draw(Struct, frozen=True):
    """Ask the fleet's keeper for more of a budget, until so many nano-dollars are left of this
    node's allowance."""

    scope: Literal["user", "team"]
    name: str
    nanos: int
