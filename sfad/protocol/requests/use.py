"""What runs use: reports and reservations."""

from __future__ import annotations

from ..types import LimitRefusal, Role, RunId
from .base import Reply, Request


class Report(Request, tag="report"):
    """Add what an agent has used since its last report (docs/metering.md#reports); an unknown
    amount is `None`. Answered by `RunReply`; `bad_request`, and nothing is counted, if an amount is
    negative, above 10¹⁰ or above 10 000 USD, or if the cache fields exceed `input_tokens`."""

    run: str | None = None
    """`None`: the run that the client is in."""
    model: str | None = None
    """Its price makes the cost."""
    turns: int | None = None
    """Tool calls."""
    messages: int | None = None
    """Messages of the model."""
    input_tokens: int | None = None
    """With those read from or written to a cache."""
    output_tokens: int | None = None
    cached_tokens: int | None = None
    """The part of `input_tokens` that was read from a cache."""
    cache_write_tokens: int | None = None
    """The part of `input_tokens` that was written to a cache."""
    cost_usd: float | None = None
    """`None`: the price of the tokens."""
    role: Role | None = None
    """Count the cost also against the limit of this role (docs/metering.md#roles)."""


class Reserve(Request, tag="reserve"):
    """Ask before a model call whether the run may use this much (docs/metering.md#reservations). A
    yes reserves the estimate with the run, its ancestors, its user and its teams, all or none. What
    is not settled when the run ends is charged in full. Answered by `Reserved`; `wrong_state` if
    the run has 1000 open reservations."""

    model: str
    input_tokens: int
    max_output_tokens: int
    run: str | None = None
    """As in `Report`."""
    role: Role | None = None
    """As in `Report`."""


class Reserved(Reply, tag="reserved"):
    """`reservation` is the name of the reservation, or `refused` says why there is none. A refusal
    charges nothing, but is a breach."""

    run: RunId
    reservation: str | None = None
    """The name for `Settle`; `None` if refused."""
    cost_usd: float | None = None
    """The amount reserved; `None` if no price is known: then no money limit counts it."""
    refused: LimitRefusal | None = None
    """Nothing is charged, but the limit is breached."""


class Settle(Request, tag="settle"):
    """Replace a reservation with what was used. Answered by `RunReply`; `wrong_state` if the
    reservation is not open."""

    reservation: str
    input_tokens: int
    """0, as the output, for a call that was not made."""
    output_tokens: int
    cached_tokens: int = 0
    """As in `Report`."""
    cache_write_tokens: int = 0
    """As in `Report`."""
    turns: int | None = None
    messages: int | None = None
    cost_usd: float | None = None
