"""The declaration."""

from typing import Annotated

from msgspec import Meta, Struct

from ...core.state.policy import DURATION
from ...feature import Feature, Section

NAME = "alerts"
"""Of the feature, of its section, and of what is saved of it in the spool."""


class AlertsConfig(Struct, frozen=True, kw_only=True):
    """`None`: no such alert."""

    cost_usd: Annotated[float, Meta(ge=0.01, le=1_000_000)] | None = 10.0
    """USD that all runs may cost within the window."""
    cost_usd_per_user: Annotated[float, Meta(ge=0.01, le=1_000_000)] | None = None
    terminations: Annotated[int, Meta(ge=1, le=1_000_000)] | None = 5
    """Runs that the daemon may end for a limit or a budget within the window."""
    window: Annotated[float, Meta(ge=60, le=31 * 86400, extra=DURATION)] = 3600.0
    limit_share: Annotated[float, Meta(gt=0, lt=1)] = 0.8
    """The share of a limit."""


FEATURE = Feature(
    sections=(Section(NAME, AlertsConfig),),
    share="alerts.limit_share",
    saved=(NAME,),
    watcher="watching",
    status=True,
    part="part",
)
