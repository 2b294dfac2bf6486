"""What readings, reports and reservations amount to, with their price, in the core's terms.

Each function also returns the tokens by model that have no price: these are told, and never counted as 0 USD.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from ..core.account import NOTHING, OpenReservation, Use
from ..core.money import to_nanos
from ..meters import Reading
from ..protocol import messages as m
from ..protocol.kinds import COUNTS
from ..protocol.types import Tokens
from .pricing import Prices

Unpriced = dict[str, int]
"""Tokens by model, under `""` where no model is named."""


def use_of_readings(readings: Iterable[Reading], prices: Prices) -> tuple[Use, Unpriced]:
    total = NOTHING
    unpriced: Counter[str] = Counter()
    for reading in readings:
        use, without_price = _use_of_reading(reading, prices)
        total = total.plus(use)
        unpriced.update(without_price)
    return total, unpriced


def _use_of_reading(reading: Reading, prices: Prices) -> tuple[Use, Unpriced]:
    told = reading.models.values()
    price, unpriced = _price(reading, prices)
    cost = reading.cost_usd if price is None else price + (reading.cost_usd or 0.0)
    use = Use(
        **_counts(reading),
        input_tokens=sum(tokens.input for tokens in told) if told else None,
        output_tokens=sum(tokens.output for tokens in told) if told else None,
        cached_tokens=sum(tokens.cached for tokens in told) if told else None,
        cost=to_nanos(cost),
        cost_from=None if cost is None else "agent" if price is None else "prices",
        unpriced_tokens=sum(unpriced.values()) or None,
        partial=reading.partial,
    )
    return use, unpriced


def _price(reading: Reading, prices: Prices) -> tuple[float | None, Unpriced]:
    """Return the price of the tokens whose cost the agent has not told."""
    # the tokens are sums over messages, and the price of a message depends on its length
    messages = max(1, reading.messages or 1)
    known: list[float] = []
    unpriced: Unpriced = {}
    for model, tokens in reading.to_price.items():
        if not tokens.input and not tokens.output:
            continue
        cost = prices.cost(model, tokens, request_input=tokens.input // messages)
        if cost is None:
            unpriced[model] = tokens.input + tokens.output
        else:
            known.append(cost)
    return (sum(known) if known else None), unpriced


def use_of_report(request: m.Report, prices: Prices) -> tuple[Use, Unpriced]:
    cached, written = request.cached_tokens or 0, request.cache_write_tokens or 0
    tokens = Tokens(input=request.input_tokens or 0, output=request.output_tokens or 0, cached=cached, cache_write=written)
    cost, unpriced = request.cost_usd, Unpriced()
    if cost is None and tokens.input + tokens.output:
        cost, unpriced = _price_of_call(request.model, tokens, prices)
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
        unpriced_tokens=sum(unpriced.values()) or None,
    )
    return use, unpriced


def reservation_of(request: m.Reserve, prices: Prices) -> tuple[OpenReservation, Unpriced]:
    tokens = Tokens(input=request.input_tokens, output=request.max_output_tokens)
    cost, unpriced = _price_of_call(request.model, tokens, prices)
    return OpenReservation(request.model, request.input_tokens, request.max_output_tokens, to_nanos(cost), request.role), unpriced


def report_of_settlement(reservation: OpenReservation, request: m.Settle) -> m.Report:
    told = {name: getattr(request, name) for name in m.Settle.__struct_fields__ if name != "reservation"}
    cache = {name: told[name] or None for name in ("cached_tokens", "cache_write_tokens")}
    return m.Report(**told | cache, model=reservation.model, role=reservation.role)


def _counts(told: Reading | m.Report) -> dict[str, Any]:
    return {name: getattr(told, name, None) for name in COUNTS}  # not each count can be reported


def _price_of_call(model: str | None, tokens: Tokens, prices: Prices) -> tuple[float | None, Unpriced]:
    cost = prices.cost(model, tokens) if model is not None else None
    return cost, {} if cost is not None else {model or "": tokens.input + tokens.output}


def most_used_model(readings: Iterable[Reading]) -> str | None:
    tokens: Counter[str] = Counter()
    for reading in readings:
        for model, used in reading.models.items():
            tokens[model] += used.input + used.output
    return max(filter(None, tokens), key=tokens.__getitem__, default=None)
