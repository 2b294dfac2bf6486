"""What model calls cost."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
import trio
from msgspec.structs import replace

from sfad.agents import Reading, named
from sfad.agents.counters import SIZES
from sfad.config import Price
from sfad.core.events import CallPrice
from sfad.core.state.account import OpenReservation
from sfad.protocol import messages as m
from sfad.protocol.types import ApiTrouble, CallInfo, LimitKind, Tokens
from sfad.usage.metered_run import use_of_readings, use_of_report
from sfad.usage.metering import UsePricing
from sfad.usage.pricing import UNLISTED, PriceList

OWN = {
    "m": Price(input_mtok=1, output_mtok=5, cached_mtok=0.1, cache_write_mtok=1.25),
    "dear": Price(input_mtok=10, output_mtok=50, cached_mtok=1, cache_write_mtok=12.5),
}
USED = Tokens(input=9000, cached=8000, cache_write=1000, output=100)
PRICING = UsePricing({}, PriceList(OWN, loaded=lambda: None, trouble=lambda _: None))
RESERVED = OpenReservation("m", 1, 1, 1, None, source="gateway")


@pytest.mark.parametrize(
    ("call", "price"),
    [
        ({}, (1_000_000, 5000, 0)),
        ({"caches": True}, (1_250_000, 5000, 0)),
        ({"caches": True, "long_cache": True}, (2_000_000, 5000, 0)),
        ({"long_cache": True}, (1_000_000, 5000, 0)),
        ({"more_input": 500}, (1_000_000, 5000, 500_000)),
        (
            {"more_input": 500, "likely_more": 100},
            (1_000_000, 5000, 500_000, False, None, 100_000),
        ),
        (
            {"more_input": 500, "caches": True, "long_cache": True, "factor": 2.0},
            (4_000_000, 10_000, 2_000_000),
        ),
        ({"fees_usd": 0.1, "factor": 2.0}, (2_000_000, 10_000, 100_000_000)),
        ({"model": "unknown"}, (None, 0, 0)),
    ],
)
def test_what_a_call_may_cost(call: dict[str, Any], price: tuple[Any, ...]) -> None:
    asked: dict[str, Any] = {
        "id": 1,
        "run": "a",
        "model": "m",
        "input_tokens": 1000,
        "max_output": 10,
    }
    request = m.AdmitCall(**asked | call)
    assert PRICING.price_of_call(request) == CallPrice(*price)


@pytest.mark.parametrize(
    ("call", "cost"),
    [
        ({}, 0.0001 * 8 + 0.00125 + 0.0005),
        ({"tokens": replace(USED, long_write=400)}, 0.0008 + 0.00125 + 0.0005 + 400 * 0.75e-6),
        ({"cost_usd": 0.125, "fees_usd": 0.02, "factor": 6.0}, 0.125),
        ({"cost_usd": 0.0}, 0),
        ({"model": "unknown", "cost_usd": 0.5}, 0.5),
        ({"model": "unknown", "served": "m"}, 0.00255),
        ({"served": "unknown"}, 0.00255),
        ({"served": "dear"}, 0.0255),
        ({"model": "dear", "served": "m"}, 0.0255),
        ({"factor": 6.0, "fees_usd": 0.02}, 6 * 0.00255 + 0.02),
        ({"model": "unknown", "fees_usd": 0.02}, None),
    ],
)
def test_what_a_call_has_cost(call: dict[str, Any], cost: float | None) -> None:
    told: dict[str, Any] = {"id": 1, "run": "a", "reservation": "r", "model": "m", "tokens": USED}
    request = m.EndCall(**told | call)
    used = PRICING.use_of_call(request, RESERVED).cost
    assert used == (None if cost is None else pytest.approx(cost * 1e9))


def test_the_price_of_the_config_counts_before_the_list_price_of_what_has_answered() -> None:
    own = {"gpt-5": Price(input_mtok=1, output_mtok=5)}
    listed = PriceList(own, loaded=lambda: None, trouble=lambda _: None)
    trio.run(listed.current.library.load)
    told = m.EndCall(
        id=1, run="a", reservation="r", model="gpt-5", served="gpt-5-2025-08-07",
        tokens=Tokens(input=1000, output=100),
    )  # fmt: skip
    settled = UsePricing({}, listed).settled(0.0, told, RESERVED)
    assert (settled.used.cost, settled.used.at_most) == (1_500_000, False)
    assert (settled.price_from, settled.used.estimated) == ("gpt-5", False)


@pytest.mark.parametrize(
    ("call", "price"),
    [
        # 20 000 tokens of text at 0.30 USD, 180 000 of audio at 1.00
        ({"media": {"audio": 180_000}}, (186_000_000, 2500, 0)),
        # the 100 000 that there may be more are audio, too
        (
            {"media": {"audio": 180_000}, "most_media": {"audio": 280_000}, "more_input": 100_000},
            (186_000_000, 2500, 100_000_000),
        ),
        ({"media": {"image": 5000}}, (60_000_000, 2500, 0)),
        # an image of Gemini's costs twelve times as much as its words
        ({"model": "gemini-2.5-flash-image"}, (60_000_000, 30_000, 0)),
        ({"model": "gemini-2.5-flash-image", "text_only": True}, (60_000_000, 2500, 0)),
        ({"model": "gpt-audio"}, (500_000_000, 64_000, 0)),
        ({"model": "gpt-audio", "text_only": True}, (500_000_000, 10_000, 0)),
    ],
)
def test_what_is_not_text_is_reserved_at_its_own_rate(
    call: dict[str, Any], price: tuple[int, int, int]
) -> None:
    listed = PriceList({}, loaded=lambda: None, trouble=lambda _: None)
    trio.run(listed.current.library.load)
    asked: dict[str, Any] = {
        "id": 1, "run": "a", "model": "gemini-2.5-flash", "input_tokens": 200_000, "max_output": 9,
    }  # fmt: skip
    request = m.AdmitCall(**asked | call)
    assert UsePricing({}, listed).price_of_call(request) == CallPrice(*price)


def test_a_call_that_a_cheaper_model_may_have_answered_costs_at_most_the_dearer() -> None:
    told = m.EndCall(
        id=1, run="a", reservation="r", model="dear", served="m", tokens=USED, fees_usd=0.02
    )
    used = PRICING.use_of_call(told, RESERVED)
    assert used.at_most
    assert used.sure_of(LimitKind.COST) == pytest.approx((0.00255 + 0.02) * 1e9)
    fees = msgspec.structs.replace(told, served="", unsure_fees_usd=0.02)
    assert PRICING.use_of_call(fees, RESERVED).unsure_cost == 20_000_000


def test_a_deployment_is_reserved_at_the_price_of_what_has_answered_before() -> None:
    pricing = UsePricing({}, PRICING.price_list)
    call = CallInfo(
        time=datetime.now(UTC), run_id="a", number=1, state="under_way", upstream="azure", model="x"
    )
    reserved = replace(RESERVED, call=call)

    def asked(upstream: str) -> CallPrice:
        return pricing.price_of_call(
            m.AdmitCall(
                id=1, run="a", model="mine", input_tokens=1000, max_output=10, upstream=upstream
            )
        )

    assert asked("azure") == CallPrice(None)
    for served, price in (("m", 1_000_000), ("dear", 10_000_000), ("m", 10_000_000)):
        ended = m.EndCall(id=1, run="a", reservation="r", model="mine", served=served, tokens=USED)
        pricing.settled(0.0, ended, reserved)
        assert (asked("azure").input_cost, asked("azure").estimated) == (price, True)
    assert asked("other") == CallPrice(None)


def test_a_model_without_a_price_costs_what_the_dearest_of_its_provider_does() -> None:
    listed = PriceList(OWN, loaded=lambda: None, trouble=lambda _: None)
    trio.run(listed.current.library.load)
    pricing = UsePricing({}, listed)
    asked = m.AdmitCall(
        id=1, run="a", model="brand-new", input_tokens=1000, max_output=10, api="anthropic"
    )
    price = pricing.price_of_call(asked)
    dearest = pricing.price_of_call(msgspec.structs.replace(asked, model="claude-opus-4-1"))
    assert (price.input_cost, price.output_token, price.estimated) == (
        dearest.input_cost,
        dearest.output_token,
        True,
    )
    assert not dearest.estimated
    told = m.EndCall(
        id=1,
        run="a",
        reservation="r",
        model="brand-new",
        tokens=Tokens(input=1000, output=10),
        api="anthropic",
    )
    used = pricing.use_of_call(told, RESERVED)
    assert (used.cost, used.estimated, used.unpriced_tokens) == (
        1000 * 15_000 + 10 * 75_000,
        True,
        None,
    )
    known = pricing.use_of_call(msgspec.structs.replace(told, model="m"), RESERVED)
    assert (known.cost, known.estimated) == (1000 * 1000 + 10 * 5000, False)
    reported = pricing.use_of_report(
        "a", m.Report(id=1, run="a", model="claude-new", input_tokens=1000, output_tokens=10)
    )
    assert (reported.cost, reported.estimated) == (used.cost, True)


@pytest.mark.parametrize(
    "trouble",
    [{}, {"failed": "Loop detected"}, {"trouble": ApiTrouble(count=1, status=529, error="x")}],
)
def test_figures_of_an_agent_that_failed_are_partial(trouble: dict[str, Any]) -> None:
    reading = Reading(models={"m": Tokens(input=10)}, finished=True, **trouble)
    use, _ = use_of_readings([reading], PRICING.price_list.current)
    assert use.partial is bool(trouble)


@pytest.mark.parametrize(
    ("tier", "cost", "at_most"), [("", 1.5, False), ("priority", 3.0, False), ("flex", 1.5, True)]
)
def test_the_tier_that_an_agent_asks_for(tier: str, cost: float, at_most: bool) -> None:
    """Whether a cheaper one was given, only the reply tells."""
    reading = Reading(messages=1, models={"m": Tokens(input=1_000_000, output=100_000)}, tier=tier)
    use, _ = use_of_readings([reading], PRICING.price_list.current)
    assert (use.cost, use.at_most) == (cost * 1e9, at_most)
    assert use.unsure_cost == (750_000_000 if at_most else None)


def test_what_an_estimate_of_output_costs() -> None:
    """Without it, the figures are those of a reading that has never estimated."""
    told = {"m": Tokens(input=1_000_000, output=20_000)}
    more = {"m": Tokens(input=1_000_000, output=100_000)}
    for tier in ("", "flex"):
        readings = [
            Reading(messages=1, models=models, guessed=guessed, tier=tier)
            for models, guessed in ((told, {}), (more, {"m": 80_000}))
        ]
        sure, guess = (use_of_readings([each], PRICING.price_list.current)[0] for each in readings)
        assert guess.tokens == 1_100_000
        assert guess.told == sure
    covered = Reading(messages=1, models=more, guessed={"m": 80_000}, cost_usd=2.0)
    use, _ = use_of_readings([covered], PRICING.price_list.current)
    assert (use.told.output_tokens, use.told.cost) == (20_000, 2_000_000_000)


GROQ = "https://api.groq.com/openai/v1"


@pytest.mark.parametrize(
    ("url", "rates", "source"),
    [
        ("", (0.039, 0.18), "openai/gpt-oss-120b"),
        ("http://127.0.0.1:4000/v1", (0.039, 0.18), "openai/gpt-oss-120b"),
        (GROQ, (0.15, 0.6), "openai/gpt-oss-120b at groq"),
    ],
)
def test_a_call_reserves_and_costs_what_its_upstream_takes(
    url: str, rates: tuple[float, float], source: str
) -> None:
    listed = PriceList({}, loaded=lambda: None, trouble=lambda _: None)
    trio.run(listed.current.library.load)
    pricing, model = UsePricing({}, listed), "openai/gpt-oss-120b"
    asked = m.AdmitCall(
        id=1, run="a", model=model, input_tokens=100_000, max_output=9, api="openai-chat", url=url
    )
    price = pricing.price_of_call(asked)
    assert (price.input_cost, price.output_token, price.estimated) == (
        round(rates[0] * 1e8),
        round(rates[1] * 1000),
        False,
    )
    told = m.EndCall(
        id=1, run="a", reservation="r", model=model, tokens=Tokens(input=100_000, output=1000),
        api="openai-chat", url=url,
    )  # fmt: skip
    settled = pricing.settled(0.0, told, RESERVED)
    assert settled.used.cost == pytest.approx((0.1 * rates[0] + 0.001 * rates[1]) * 1e9)
    assert (settled.price_from, settled.used.estimated) == (source, False)


@pytest.mark.parametrize(
    ("provider", "usd"), [("", 0.057), ("openai", 0.057), ("corp", 0.057), ("groq", 0.21)]
)
def test_what_an_agent_says_of_its_provider_counts(provider: str, usd: float) -> None:
    listed = PriceList({}, loaded=lambda: None, trouble=lambda _: None)
    trio.run(listed.current.library.load)
    used = {"openai/gpt-oss-120b": Tokens(input=1_000_000, output=100_000)}
    use, _ = use_of_readings([Reading(messages=1, models=used, provider=provider)], listed.current)
    assert use.cost == pytest.approx(usd * 1e9)


def jsonl(*sizes: int, **more: Any) -> Reading:
    """Return what an agent has told that prints a line for each of its requests."""
    found = named("jsonl")
    assert found is not None
    meter = found.meter(["agent"], None)
    for size in sizes:
        line = {"type": "usage", "model": "gemini-2.5-pro", "input_tokens": size, **more}
        meter.feed(json.dumps(line).encode() + b"\n")
    return meter.reading


@pytest.mark.parametrize(
    ("reading", "usd"),
    [
        (jsonl(150_000, 150_000), 0.300 * 1.25),
        (jsonl(250_000, 1000, 1000, 1000), 0.250 * 2.5 + 0.003 * 1.25),
        (jsonl(600_000, messages=4), 0.600 * 1.25),
        (jsonl(600_000, messages=2), 0.600 * 2.5),
        (jsonl(*[10_000] * 50), 0.500 * 1.25),
    ],
)
def test_each_line_of_an_agent_costs_what_one_request_does(reading: Reading, usd: float) -> None:
    """Above 200 000 tokens of input, a request costs 2.50 USD a million, below it 1.25."""
    listed = PriceList({}, loaded=lambda: None, trouble=lambda _: None)
    trio.run(listed.current.library.load)
    use, _ = use_of_readings([reading], listed.current, "jsonl")
    assert use.cost == pytest.approx(usd * 1e9)


def test_a_report_of_several_messages_costs_what_they_do() -> None:
    listed = PriceList({}, loaded=lambda: None, trouble=lambda _: None)
    trio.run(listed.current.library.load)
    told: dict[str, Any] = {"id": 1, "model": "gemini-2.5-pro", "input_tokens": 300_000}
    for messages, rate in ((None, 2.5), (1, 2.5), (3, 1.25)):
        use, _ = use_of_report(m.Report(**told, messages=messages), listed.current)
        assert use.cost == pytest.approx(0.3 * rate * 1e9)


def test_a_line_that_tells_its_cost_is_not_priced() -> None:
    reading = jsonl(250_000)
    both = jsonl(250_000, cost_usd=0.5)
    assert both.by_size == {}
    assert list(reading.by_size["gemini-2.5-pro"]) == [200_000]


def test_the_price_list_has_no_step_that_is_not_known() -> None:
    # it takes 0.2 s, in each process that collects this file
    from genai_prices.data import providers

    found = {
        tier.start
        for provider in providers
        for model in provider.models
        for conditional in (model.prices if isinstance(model.prices, list) else [model.prices])
        for price in vars(getattr(conditional, "prices", conditional)).values()
        for tier in getattr(price, "tiers", ())
    }
    assert found
    assert found <= set(SIZES)
    assert {start for tiers in UNLISTED.values() for start in tiers} <= set(SIZES)
