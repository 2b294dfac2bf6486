"""What nodes may spend of the budgets of users and teams: parts of these, which one node gives to
others."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from .base import Reply


class AllowanceWanted(Struct, frozen=True, kw_only=True):
    """What a node wants of a budget. Amounts are in USD, of one period."""

    scope: Literal["user", "team"]
    name: str
    begins: str
    """When the period began, as RFC 3339."""
    usd: float
    """What it may charge, with what it had before and without what it gives back."""
    charged_usd: float
    need_usd: float = 0.0
    """What it lacks beyond `usd`."""


class Allowance(Struct, frozen=True, kw_only=True):
    """What a node may charge of a budget."""

    scope: Literal["user", "team"]
    name: str
    begins: str
    usd: float
    number: int = 0
    """Of the request that it answers, or of a later one that came before; 0 if the request has
    changed nothing."""
    waits: str | None = None
    """Why that is less than it lacks."""
    used_up: bool = False
    """No node has anything left in this period."""
    scarce: bool = False
    """Others lack some: give back at the next request what is not needed."""


class Allowances(Reply, tag="allowances"):
    number: int
    allowances: list[Allowance] = []
