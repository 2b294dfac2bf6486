"""What runs use: reports and reservations."""

from __future__ import annotations

from ..types import LimitRefusal, Role, RunId
from .base import Reply, Request


class Report(Request, tag="report"):
    """Add what an agent has used since its last report; an unknown amount is `None`. Answered by `RunReply`."""

    run: str | None = None
    model: str | None = None
    turns: int | None = None
    messages: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    cost_usd: float | None = None
    role: Role | None = None


class Reserve(Request, tag="reserve"):
    """Ask, before a call to a model, whether the run may use this much. Answered by `Reserved`. A yes reserves the estimate with
    the run, its ancestors, its user and its teams, all or none. What is not settled when the run ends is charged in full."""

    model: str
    input_tokens: int
    max_output_tokens: int
    run: str | None = None
    role: Role | None = None


class Reserved(Reply, tag="reserved"):
    """The answer to `Reserve`: `reservation` is the name of the reservation, or `refused` says why there is none."""

    run: RunId
    reservation: str | None = None
    cost_usd: float | None = None
    refused: LimitRefusal | None = None


class Settle(Request, tag="settle"):
    """Replace a reservation by what was used. Answered by `RunReply`."""

    reservation: str
    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    turns: int | None = None
    messages: int | None = None
    cost_usd: float | None = None
