"""What faster and slower tiers cost is what genai-prices says of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from genai_prices import data

from sfad.agents.line_meter import ANTHROPIC_FACTORS, OPENAI_FACTORS, Factors, factor_of

_KINDS = ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok")
_WORDS = ("service_tier", "speed", "processing")


def _rate(prices: Any, kind: str) -> float | None:
    rate = getattr(prices, kind, None)
    return None if rate is None else float(getattr(rate, "base", rate))


def told(provider: str) -> Iterator[tuple[str, str, list[float]]]:
    """Yield models, tiers, and what these multiply each rate by, as far as the list tells it."""
    (found,) = (each for each in data.providers if each.id == provider)
    for model in found.models:
        usual = model.prices[-1].prices if isinstance(model.prices, list) else model.prices
        for variant in model.price_variants or []:
            tier = next((value for word in _WORDS if (value := variant.when.get(word))), None)
            rates = [(_rate(usual, kind), _rate(variant.prices, kind)) for kind in _KINDS]
            times = [other / rate for rate, other in rates if rate and other]
            if isinstance(tier, str) and times:
                yield model.id, tier, times


@pytest.mark.parametrize(
    ("provider", "factors", "most"),
    [("openai", OPENAI_FACTORS, 60), ("anthropic", ANTHROPIC_FACTORS, 10)],
)
def test_a_tier_costs_what_the_list_says(provider: str, factors: Factors, most: int) -> None:
    tried = 0
    for model, tier, times in told(provider):
        factor = factor_of(factors, model, [tier])
        if tier == "batch" and factor == 1.0:
            continue  # no reply to a call tells it of these; it would count as not cheaper
        tried += 1
        # one cached rate of the list is rounded up to 0.52
        assert times == pytest.approx([factor] * len(times), rel=0.05), (model, tier)
        assert times[0] == pytest.approx(factor, rel=0.01), (model, tier)
    assert tried >= most
