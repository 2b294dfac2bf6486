"""The declaration."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from ...core.state.access import Access
from ...feature import Feature, Section
from .messages import AskAllowances

NAME = "budgets"
"""Of the feature, and of its section."""


class UserBudget(Struct, frozen=True, kw_only=True):
    daily_usd: Annotated[float, Meta(ge=0)]


class TeamBudget(Struct, frozen=True, kw_only=True):
    usd: Annotated[float, Meta(ge=0)]
    period: Literal["day", "week", "month"]
    members: tuple[str, ...]


class BudgetsConfig(Struct, frozen=True, kw_only=True):
    action: Literal["pause", "terminate", "warn"] = "pause"
    """What becomes of live trees when a budget has run out."""
    users: dict[str, UserBudget] = {}
    teams: dict[str, TeamBudget] = {}


FEATURE = Feature(
    sections=(Section(NAME, BudgetsConfig),),
    verbs={AskAllowances: Access("admin", inside=False, narrowed_by=None, scope="none")},
    purses="purses",
    correct="books",
    part="part",
)
