"""What readings, reports and reservations amount to, with their price, in the core's terms.

Each function also returns which models have no price: that is told, and their tokens never count as 0 USD.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..core.account import NOTHING, OpenReservation, Use
from ..core.money import to_nanos
from ..meters import Reading
from ..meters.tiers import OPENAI_FACTORS, factor_of
from ..protocol import messages as m
from ..protocol.kinds import COUNTS
from ..protocol.types import Tokens
from .pricing import Prices


@dataclass(slots=True)
class PriceGaps:
    """Models without a price."""

    unpriced: Counter[str] = field(default_factory=Counter)
    """Tokens that are not in the cost, by model, under `""` where no model is named."""
    estimated: dict[str, str] = field(default_factory=dict)
    """By model: the model at whose price it counts."""

    def add(self, more: "PriceGaps") -> None:
        self.unpriced.update(more.unpriced)
        self.estimated.update(more.estimated)

    def cost(
        self, prices: Prices, model: str, tokens: Tokens, hint: str | None, *, request_input: int | None = None
    ) -> float | None:
        """Return USD for the tokens of a model, and note whether it has no price."""
        name = prices.charged_as(model, hint)
        cost = prices.cost(name, tokens, request_input=request_input)
        if cost is None:
            self.unpriced[model] += tokens.input + tokens.output
        elif name != model:
            self.estimated[model] = name
        return cost


def use_of_readings(
    readings: Iterable[Reading], prices: Prices, program: str | None = None, unnamed: str | None = None, tier: str = ""
) -> tuple[Use, PriceGaps]:
    """`program`: the agent's, which tells the provider of a model without a price. `unnamed`, `tier`: the model of tokens, and the
    tier, of which the readings name none."""
    total, gaps = NOTHING, PriceGaps()
    for reading in readings:
        use, more = _use_of_reading(reading, prices, program, unnamed or "", reading.tier or tier)
        total = total.plus(use)
        gaps.add(more)
    return total, gaps


def _use_of_reading(reading: Reading, prices: Prices, program: str | None, unnamed: str, tier: str) -> tuple[Use, PriceGaps]:
    told = reading.models.values()
    gaps = PriceGaps()
    price, least = _price(reading, prices, program, unnamed, tier, gaps)
    cost = reading.cost_usd if price is None else price + (reading.cost_usd or 0.0)
    use = Use(
        **_counts(reading),
        input_tokens=sum(tokens.input for tokens in told) if told else None,
        output_tokens=sum(tokens.output for tokens in told) if told else None,
        cached_tokens=sum(tokens.cached for tokens in told) if told else None,
        cost=to_nanos(cost),
        cost_from=None if cost is None else "agent" if price is None else "prices",
        unpriced_tokens=gaps.unpriced.total() or None,
        unsure_cost=None if price is None else to_nanos(price - least) or None,
        # a call that failed or was broken off may be billed, and the agent does not know of it
        partial=reading.partial or reading.broken or reading.failed is not None or reading.trouble is not None,
        estimated=bool(gaps.estimated),
    )
    return use, gaps


def _price(
    reading: Reading, prices: Prices, program: str | None, unnamed: str, tier: str, gaps: PriceGaps
) -> tuple[float | None, float]:
    """Return the price of the tokens whose cost the agent has not told, and the least that it may be: whether the provider gave a
    cheaper tier than its usual one, only its reply tells."""
    # the tokens are sums over messages, and the price of a message depends on its length
    messages = max(1, reading.messages or 1)
    costs = [
        gaps.cost(prices, model or unnamed, tokens, program, request_input=tokens.input // messages)
        for model, tokens in reading.to_price.items()
        if tokens.input or tokens.output
    ]
    known = [cost for cost in costs if cost is not None]
    factor = factor_of(OPENAI_FACTORS, unnamed or next(iter(reading.to_price), ""), [tier]) if tier else 1.0
    return max(1.0, factor) * sum(known) if known else None, factor * sum(known)


def use_of_report(request: m.Report, prices: Prices, program: str | None = None) -> tuple[Use, PriceGaps]:
    cached, written = request.cached_tokens or 0, request.cache_write_tokens or 0
    tokens = Tokens(input=request.input_tokens or 0, output=request.output_tokens or 0, cached=cached, cache_write=written)
    cost, gaps = request.cost_usd, PriceGaps()
    if cost is None and tokens.input + tokens.output:
        cost = gaps.cost(prices, request.model or "", tokens, program)
    nanos = to_nanos(cost)
    use = Use(
        **_counts(request),
        input_tokens=request.input_tokens,
        output_tokens=request.output_tokens,
        cached_tokens=request.cached_tokens,
        cost=nanos,
        cost_from=None if cost is None else "prices" if request.cost_usd is None else "agent",
        planning_cost=nanos if request.role == "planning" else None,
        execution_cost=nanos if request.role == "execution" else None,
        unpriced_tokens=gaps.unpriced.total() or None,
        estimated=bool(gaps.estimated),
    )
    return use, gaps


def reservation_of(request: m.Reserve, prices: Prices, program: str | None = None) -> tuple[OpenReservation, PriceGaps]:
    tokens, gaps = Tokens(input=request.input_tokens, output=request.max_output_tokens), PriceGaps()
    cost = gaps.cost(prices, request.model, tokens, program)
    reservation = OpenReservation(
        request.model,
        request.input_tokens,
        request.max_output_tokens,
        to_nanos(cost),
        request.role,
        estimated=bool(gaps.estimated),
    )
    return reservation, gaps


def report_of_settlement(reservation: OpenReservation, request: m.Settle) -> m.Report:
    told = {name: getattr(request, name) for name in m.Settle.__struct_fields__ if name != "reservation"}
    cache = {name: told[name] or None for name in ("cached_tokens", "cache_write_tokens")}
    return m.Report(**told | cache, model=reservation.model, role=reservation.role)


def _counts(told: Reading | m.Report) -> dict[str, Any]:
    return {name: getattr(told, name, None) for name in COUNTS}  # not each count can be reported


def most_used_model(readings: Iterable[Reading]) -> str | None:
    tokens: Counter[str] = Counter()
    for reading in readings:
        for model, used in reading.models.items():
            tokens[model] += used.input + used.output
    return max(filter(None, tokens), key=tokens.__getitem__, default=None)
