"""Prices, with the real library: names, costs, the effort of a lookup, and that nothing is
fetched."""

from __future__ import annotations

import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sfad.config import Price
from sfad.protocol.types import Modality, Tokens
from sfad.usage.pricing import MATCHES_KEPT, Prices
from tests.tiers import first
from tests.together import together

ROOT = Path(__file__).parents[2]

USED = Tokens(input=100_000, output=10_000)

OWN = Price(input_mtok=1, output_mtok=2, cached_mtok=0.1, cache_write_mtok=1.5)


@pytest.fixture(scope="module")
def prices() -> Prices:
    found = Prices()
    trio.run(found.library.load)
    return found


@together(
    ("model", "usd"),
    [
        ("claude-sonnet-4-5", 0.45),
        ("Claude-Sonnet-4-5", 0.45),
        ("claude-sonnet-4-5-20250929", 0.45),
        ("claude-sonnet-4-5@20250929", 0.45),
        ("claude-sonnet-4-5[1m]", 0.45),
        ("anthropic/claude-sonnet-4-5", 0.45),
        ("anthropic/claude-sonnet-4-5[1m]", 0.45),
        ("openrouter/anthropic/claude-sonnet-4.5", 0.45),
        ("litellm/claude-sonnet-4-5", 0.45),
        ("vertex_ai/claude-sonnet-4-5@20250929", 0.45),
        ("projects/p/locations/us/publishers/anthropic/models/claude-sonnet-4-5", 0.45),
        ("global.anthropic.claude-sonnet-4-5-20250929-v1:0", 0.45),
        # Amazon charges a tenth more to keep it in a region
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", 0.495),
        ("bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0", 0.495),
        (
            "arn:aws:bedrock:us-east-1:1:inference-profile/us.anthropic.claude-sonnet-4-5-20250929-v1:0",
            0.495,
        ),
        ("claude-opus-4-8", 0.75),
        ("claude-opus-4-8[1m]", 0.75),
        ("gpt-5-codex", 0.225),
        ("openai/gpt-5-codex", 0.225),
        ("gemini-2.5-pro", 0.225),
        ("models/gemini-2.5-pro", 0.225),
        ("google/gemini-2.5-pro", 0.225),
    ],
)
def test_names_as_agents_write_them(prices: Prices, model: str, usd: float) -> None:
    assert prices.cost(model, USED) == pytest.approx(usd)


@together(
    "model",
    [
        "", "/", "//", "[", "]", "[1m]", "claude", "my-claude", "sonnet", "<synthetic>",
        "gpt-5.1-zzz", "a/b/c/d", "ollama/gpt-oss-120b", "claude-sonnet-4-5\n",
        "claude-sonnet-4-5\0", "\x1b[31mclaude-sonnet-4-5", "\udcff", "\u202egpt-5", "." * 256,
        "/" * 256, "[" * 256, "models/" * 1000 + "gpt-5", "claude-sonnet-4-5" * 600_000,
    ],

)  # fmt: skip
def test_an_unknown_model_has_no_price(prices: Prices, model: str) -> None:
    assert prices.cost(model, USED) is None
    assert prices.cost(model, Tokens()) is None
    assert prices.library.failure is None


@given(
    model=st.text(max_size=300) | st.text("claudegpt-/.[]@:1", max_size=40),
    tokens=st.builds(Tokens, input=st.integers(), output=st.integers()),
)
def test_it_never_raises(prices: Prices, model: str, tokens: Tokens) -> None:
    found = prices.cost(model, tokens)
    assert found is None or found >= 0
    assert prices.library.failure is None


def test_more_tokens_than_a_float_holds(prices: Prices) -> None:
    assert prices.cost("gpt-5", Tokens(input=10**400)) is None


# ---- the arithmetic


def every_model() -> Iterator[tuple[str, str]]:
    from genai_prices.data import providers

    return ((provider.id, model.id) for provider in providers for model in provider.models)


def by_the_library(provider: str, model: str, tokens: Tokens) -> float:
    from genai_prices import Usage, calc_price

    used = Usage(
        input_tokens=tokens.input,
        output_tokens=tokens.output,
        cache_read_tokens=tokens.cached,
        cache_write_tokens=tokens.cache_write,
        **{f"input_{mode}_tokens": part.input for mode, part in tokens.modes.items()},
        **{f"output_{mode}_tokens": part.output for mode, part in tokens.modes.items()},
        **{f"cache_{mode}_read_tokens": part.cached for mode, part in tokens.modes.items()},
    )
    return float(calc_price(used, model, provider_id=provider).total_price)


AUDIO: dict[Modality, Tokens] = {"audio": Tokens(input=50_000, output=4000, cached=10_000)}
PICTURES: dict[Modality, Tokens] = {"image": Tokens(input=50_000, output=4000, cached=10_000)}


@first(3)
@pytest.mark.parametrize(
    ("tokens", "least"),
    [
        (Tokens(input=100_000, output=10_000, cached=40_000, cache_write=5_000), 500),
        (Tokens(input=200_000, output=10_000, cached=40_000), 500),
        (Tokens(input=200_001, output=10_000, cached=40_000), 500),
        (Tokens(input=900_000, output=1, cache_write=800_000), 500),
        (Tokens(input=100_000, output=10_000, cached=40_000, modes=AUDIO), 2),
        (Tokens(input=100_000, output=10_000, cached=40_000, modes=PICTURES), 0),
        (Tokens(output=10_000, modes={"image": Tokens(output=9000)}), 5),
        (Tokens(output=10_000, modes={"video": Tokens(output=9000)}), 2),
        (Tokens(input=10_000, modes={"audio": Tokens(input=9000)}), 15),
        (Tokens(input=10_000, modes={"image": Tokens(input=9000)}), 10),
        (Tokens(input=10_000, modes={"video": Tokens(input=9000)}), 3),
    ],
    ids=str,
)
def test_the_cost_equals_that_of_the_library(prices: Prices, tokens: Tokens, least: int) -> None:
    """Of each model that has a rate for each of these kinds."""
    compared = 0
    for provider, model in list(every_model())[:: 1 if tokens.modes else 3]:
        found = prices.library.providers.find([f"{provider}/{model}".lower()])  # type: ignore[union-attr]
        rates = None if found is None else found.rates(tokens.input)
        if rates is None or not kinds_of(tokens) <= rates.of.keys() or model.startswith("sonar"):
            continue
        if rates.least is not None:
            continue  # another model answers for it
        cost = prices.price(f"{provider}/{model}".lower(), tokens)
        assert cost is not None
        assert cost.usd == cost.sure == pytest.approx(by_the_library(provider, model, tokens)), (
            model
        )
        compared += 1
    assert compared >= least


def kinds_of(tokens: Tokens) -> set[str]:
    """Return the rates without which the tokens have no sure price."""
    kinds = {"input", "output"} if not tokens.modes else set[str]()
    for mode, part in tokens.modes.items():
        kinds |= {f"input_{mode}"} if part.input else set()
        kinds |= {f"output_{mode}"} if part.output else set()
        kinds |= {f"cache_{mode}_read"} if part.cached else set()
    return kinds | ({"input"} if tokens.input else set()) | ({"output"} if tokens.output else set())


def test_cached_tokens_are_part_of_the_input(prices: Prices) -> None:
    # 70 000 at 3 USD, 20 000 at 0.30, 10 000 at 3.75, 10 000 out at 15, per million
    assert prices.cost(
        "claude-sonnet-4-5", Tokens(input=100_000, output=10_000, cached=20_000, cache_write=10_000)
    ) == pytest.approx(0.4035)
    assert Prices({"m": OWN}).cost(
        "m", Tokens(input=100_000, output=10_000, cached=20_000, cache_write=10_000)
    ) == pytest.approx(0.107)
    plain = Prices({"m": Price(input_mtok=1, output_mtok=2)})
    assert plain.cost(
        "m", Tokens(input=100_000, cached=60_000, cache_write=10_000)
    ) == pytest.approx(0.1)


def test_inconsistent_numbers_never_make_a_negative_cost() -> None:
    own = Prices({"m": OWN})
    assert own.cost("m", Tokens(input=10, cached=1_000_000)) == pytest.approx(0.1)
    assert own.cost("m", Tokens(input=-5, output=-5, cached=-5, cache_write=-5)) == 0


def test_a_long_request_costs_more_and_a_sum_over_short_ones_does_not(prices: Prices) -> None:
    long = Tokens(input=300_000, output=10_000)
    assert prices.cost("claude-sonnet-4-5", long) == pytest.approx(0.3 * 6 + 0.01 * 22.5)
    assert prices.cost("claude-sonnet-4-5", long, request_input=50_000) == pytest.approx(
        0.3 * 3 + 0.01 * 15
    )


# ---- the config's prices


def test_own_prices_need_no_library_and_add_to_it() -> None:
    own = Prices({"house-model": OWN, "claude-sonnet-4-5": OWN})
    assert own.cost("house-model", USED) == pytest.approx(0.12)
    assert own.cost("claude-opus-4-8", USED) is None
    assert not own.library.providers
    trio.run(own.library.load)
    assert own.cost("claude-opus-4-8", USED) == pytest.approx(0.75)
    assert own.cost("claude-sonnet-4-5", USED) == pytest.approx(0.12)


def test_the_exact_name_comes_first() -> None:
    cheap, dear = Price(input_mtok=0, output_mtok=0), Price(input_mtok=10, output_mtok=10)
    own = Prices({"m": cheap, "m[1m]": dear, "house/m": OWN})
    assert [
        own.cost(name, USED)
        for name in ("m", "m[1m]", "house/m", "m[2m]", "other/m", "house/m[1m]")
    ] == pytest.approx([0, 1.1, 0.12, 0, 0, 0.12])


# ---- what it costs


def effort(work: Callable[[], object]) -> tuple[int, int]:
    """Return how many functions `work` calls, those in C among them, and how many bytes it needs at
    a time. Beside a load, no bound of time would hold."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    tracemalloc.start()
    try:
        work()
        return calls, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "model",
    [
        "claude-sonnet-4-5",
        "us.anthropic.claude-opus-4-8-v1:0",
        "deepseek-chat",
        "unknown",
        "x" * 10_000_000,
    ],
)
def test_a_known_name_costs_next_to_nothing(prices: Prices, model: str) -> None:
    prices.cost(model, USED)
    calls, memory = effort(lambda: prices.cost(model, USED))
    assert calls < 120  # a search takes up to 3000
    assert memory < 10_000  # no copy of the name


@pytest.mark.rest("at scale")
def test_thousands_of_names_are_not_kept(prices: Prices) -> None:
    """Neither by the library, which keeps each name that it is asked for in caches of its own,
    without bound."""
    names = (f"claude-{number:0100}" for number in range(10**9))
    assert effort(lambda: prices.cost(next(names), USED))[0] < 2000
    tracemalloc.start()
    try:
        for _ in range(2 * MATCHES_KEPT):
            prices.cost(next(names), USED)
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(2000):
            prices.cost(next(names), USED)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 100 * 1000, "half of the names alone"


# ---- how it is loaded


def script(text: str, *path: Path) -> list[str]:
    """Return what a program prints in an interpreter of its own."""
    environment = {"PYTHONPATH": ":".join(map(str, [*path, ROOT]))}
    command = [sys.executable, "-W", "error", "-c", text]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=60, env=environment
    )
    return done.stdout.splitlines()


def test_the_daemon_starts_without_it() -> None:
    assert script(
        "import sfad.usage.pricing, sfad.daemon, sys; print('genai_prices' in sys.modules)"
    ) == ["False"]


LOADED_ONCE = """
import sys, threading, trio
seen = []
def hook(name, values):
    if name.startswith("socket.") or name == "import" and values[0] == "genai_prices.data":
        seen.append((name, threading.current_thread() is threading.main_thread()))
from sfad.usage.pricing import Prices
from sfad.protocol.types import Tokens

async def main():
    prices = Prices()
    sys.addaudithook(hook)
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(prices.library.load)
    await prices.library.load()
    there = prices.library.providers is not None
    known = prices.cost("gpt-5", Tokens(input=1_000_000))
    print(there, known, prices.cost("no such model", Tokens(input=1)))

trio.run(main)
print(*seen)
print(*{thread.name for thread in threading.enumerate()} - {"MainThread"})
"""


def test_once_in_a_worker_thread_and_without_network() -> None:
    result, seen, threads = script(LOADED_ONCE)
    assert result == "True 1.25 None"
    assert seen == "('import', False)"
    assert all(name.startswith("Trio thread") for name in threads.split("  "))


BROKEN = """
import trio
from sfad.config import Price
from sfad.usage.pricing import Prices
from sfad.protocol.types import Tokens

async def main():
    prices = Prices({"m": Price(input_mtok=1, output_mtok=1)})
    for _ in range(2):
        print(await prices.library.load())
    loaded = prices.library.providers is not None
    own = prices.cost("m", Tokens(input=1_000_000))
    print(loaded, prices.cost("gpt-5", Tokens(input=1)), own)

trio.run(main)
"""


@first(1)
@pytest.mark.parametrize("fault", ["raise ImportError('gone')", "1 / 0", "import no_such_module"])
def test_a_library_that_cannot_be_imported_is_reported(tmp_path: Path, fault: str) -> None:
    (tmp_path / "genai_prices").mkdir()
    (tmp_path / "genai_prices/__init__.py").write_text(fault)
    first, again, after = script(BROKEN, tmp_path)
    assert first == again
    assert first.startswith("the library genai-prices cannot be imported: ")
    assert after == "False None 1.0"


async def test_a_cancelled_load_is_done_by_the_next_caller() -> None:
    prices = Prices()
    with trio.CancelScope() as scope:
        scope.cancel()
        await prices.library.load()
    states = [(prices.library.providers is not None)]
    await prices.library.load()
    assert [*states, (prices.library.providers is not None)] == [False, True]


@pytest.mark.parametrize(
    ("model", "hint", "like"),
    [
        ("claude-unheard-of", None, "anthropic/claude-opus-4-1"),
        ("unheard-of", "claude", "anthropic/claude-opus-4-1"),
        ("unheard-of", "anthropic", "anthropic/claude-opus-4-1"),
        ("anthropic/unheard-of", None, "anthropic/claude-opus-4-1"),
    ],
)
def test_a_model_without_a_price_counts_as_the_dearest_of_its_provider(
    prices: Prices, model: str, hint: str | None, like: str
) -> None:
    found = prices.charged_as(model, hint)
    assert prices.cost(found, USED) == prices.cost(like, USED) is not None


@pytest.mark.parametrize(
    ("model", "hint"),
    [
        ("codex-auto-review", "codex"),
        ("gpt-99", "anthropic"),
        ("unheard-of", None),
        ("x" * 500, "openai-chat"),
    ],
)
def test_a_model_of_openai_without_a_price_counts_as_the_dearest_current_one(
    prices: Prices, model: str, hint: str | None
) -> None:
    """The dearest of all is o1-pro, which would end runs for nothing. A newer library may have a
    dearer one than this."""
    cost, least, past = (
        prices.cost(name, USED)
        for name in (prices.charged_as(model, hint), "gpt-6-astra", "o1-pro")
    )
    assert cost is not None
    assert least is not None
    assert past is not None
    assert least <= cost < past / 5
    pro = prices.cost(prices.charged_as(f"openai/{model[:9]}-pro"), USED)
    assert pro is not None
    assert cost < pro < past


def test_a_model_that_the_library_marks_as_deprecated_stands_in_for_none(prices: Prices) -> None:
    assert prices.charged_as("gemini-unheard-of") != "google/gemini-3-pro-preview"


def test_models_that_count_as_themselves(prices: Prices) -> None:
    own = Prices({"unheard-of": Price(input_mtok=0, output_mtok=0)}, prices.library)
    assert own.charged_as("unheard-of", "codex") == "unheard-of"
    assert own.cost("unheard-of", USED) == 0
    for name in ("claude-sonnet-4-5", "ollama/llama3", ""):
        assert prices.charged_as(name, "claude") == name
    assert Prices().charged_as("unheard-of", "claude") == "unheard-of", "the library is not loaded"


def test_input_that_is_kept_in_a_cache_for_an_hour_costs_twice(prices: Prices) -> None:
    plain = prices.cost("claude-sonnet-4-5", Tokens(input=1000))
    assert plain is not None
    assert prices.cost(
        "claude-sonnet-4-5", Tokens(input=1000, cache_write=1000, long_write=1000)
    ) == pytest.approx(2 * plain)
    half = prices.cost("claude-sonnet-4-5", Tokens(input=1000, cache_write=1000, long_write=500))
    assert half == pytest.approx((2 + 1.25) / 2 * plain)


# ---- models of other names


@pytest.mark.parametrize(
    ("alias", "hint", "means"),
    [
        ("coder-model", "qwen", "qwen3.6-plus"),
        ("pro", "gemini", "gemini-pro-latest"),
        ("flash", "gemini", "gemini-flash-latest"),
        ("r1", "aider", "deepseek/deepseek-reasoner"),
        ("glm-4.6", None, "zai/glm-4.6"),
        ("z-ai/glm-4.6", None, "zai/glm-4.6"),
        ("qwen3-coder-next", None, "openrouter/qwen/qwen3-coder-next"),
        ("qwen3-max-2026-01-23", None, "qwen3-max"),
    ],
)
def test_a_name_of_a_program_costs_what_it_means(
    prices: Prices, alias: str, hint: str | None, means: str
) -> None:
    cost = prices.cost(prices.charged_as(alias, hint), USED)
    assert cost == prices.cost(means, USED) is not None


@pytest.mark.parametrize(
    ("alias", "hint", "family"),
    [
        ("sonnet", "claude", "sonnet"),
        ("opus[1m]", None, "opus"),
        ("haiku", "claude", "haiku"),
        ("opusplan", "claude", "opus"),
        ("default", "claude", "opus"),
    ],
)
def test_a_family_means_its_newest_model(
    prices: Prices, alias: str, hint: str | None, family: str
) -> None:
    found = re.fullmatch(rf"anthropic/claude-{family}-(\d+)-(\d+)", prices.charged_as(alias, hint))
    assert found is not None
    assert (int(found[1]), int(found[2])) >= (5, 5)


def test_a_model_that_its_maker_sells_costs_what_the_maker_says(prices: Prices) -> None:
    """OpenRouter sells it for 0.65 USD."""
    tokens = Tokens(input=32_000, output=1000)
    assert prices.cost("qwen3-coder-plus", tokens) == pytest.approx(0.032 + 0.005)
    longer = replace(tokens, input=40_000)
    assert prices.cost("qwen3-coder-plus", longer) == pytest.approx(0.072 + 0.009)
    assert prices.cost("qwen3-coder-plus", longer, request_input=500) == pytest.approx(0.045)
    resold = prices.cost("openrouter/qwen/qwen3-coder-plus", tokens)
    assert resold is not None
    assert resold < 0.03


def test_a_fine_tuned_model_costs_what_the_page_of_prices_says(prices: Prices) -> None:
    assert prices.cost("ft:gpt-4o-mini-2024-07-18:me::id", USED) == pytest.approx(0.03 + 0.012)
    assert prices.cost("ft:gpt-4.1-2025-04-14:me::id", USED) == pytest.approx(0.3 + 0.12)


@together(
    ("provider", "model", "into", "out", "source"),
    [
        ("https://api.groq.com/openai/v1", "openai/gpt-oss-120b", 0.15, 0.6, "groq"),
        ("https://API.Groq.com:443/openai/v1", "openai/gpt-oss-120b", 0.15, 0.6, "groq"),
        ("https://api.groq.com/openai/v1", "qwen/qwen3-32b", 0.29, 0.59, "groq"),
        # neither its maker nor OpenRouter has it under this name
        ("https://api.groq.com/openai/v1", "llama-3.3-70b-versatile", 0.59, 0.79, "groq"),
        ("https://api.cerebras.ai/v1", "gpt-oss-120b", 0.35, 0.75, "cerebras"),
        ("https://api.cerebras.ai/v1", "zai-glm-4.7", 2.25, 2.75, "cerebras"),
        ("https://api.together.xyz/v1", "openai/gpt-oss-120b", 0.15, 0.6, "together"),
        ("https://api.together.ai/v1", "openai/gpt-oss-120b", 0.15, 0.6, "together"),
        ("https://api.novita.ai/openai/v1", "openai/gpt-oss-120b", 0.05, 0.25, "novita"),
        ("https://router.huggingface.co/groq/v1", "Qwen/Qwen3-32B", 0.29, 0.59, "huggingface_groq"),
        ("https://api.perplexity.ai", "sonar-pro", 3, 15, "perplexity"),
        # those that the name tells, too
        (
            "https://api.fireworks.ai/inference/v1",
            "accounts/fireworks/models/gpt-oss-120b",
            0.15,
            0.6,
            None,
        ),
        ("https://api.mistral.ai/v1", "magistral-medium-latest", 2, 5, None),
        ("https://api.deepseek.com/anthropic", "deepseek-v3.2", 0.2288, 0.3432, None),
        (
            "https://bedrock-runtime.us-west-2.amazonaws.com/openai/v1",
            "openai.gpt-oss-120b-1:0",
            0.15,
            0.6,
            None,
        ),
        # the library says that it has the price from OpenAI
        ("https://me.openai.azure.com/openai/v1", "gpt-5", 1.25, 10, None),
        ("https://me.openai.azure.com/openai/v1", "o4-mini", 1.1, 4.4, "azure"),
        ("https://us-east5-aiplatform.googleapis.com/v1", "claude-sonnet-4-5@1", 3, 15, "google"),
        ("https://api.openai.com/v1", "gpt-5.3-codex-spark", 1.75, 14, None),
        ("groq", "openai/gpt-oss-120b", 0.15, 0.6, "groq"),
        ("togetherai", "openai/gpt-oss-120b", 0.15, 0.6, "together"),
    ],
)
def test_a_model_costs_what_the_provider_of_the_upstream_says(
    prices: Prices, provider: str, model: str, into: float, out: float, source: str | None
) -> None:
    found = prices.at(provider)
    assert found.cost(model, USED) == pytest.approx(0.1 * into + 0.01 * out)
    assert found.source(model) == (model if source is None else f"{model} at {source}")
    assert found.charged_as(model, "openai-chat") == model


@pytest.mark.parametrize(
    "provider",
    [
        "", "http://127.0.0.1:4000/v1", "https://litellm.corp/api.groq.com/v1", "http://[", "https://",
        "https://api.groq.com.corp/openai/v1", "https://corp-api.groq.com/v1",
        "http://api.groq.com/v1", "http://xai:4000/v1", "https://novita-ai/v1", "litellm",
        "my-groq", "corp", "https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
    ],
)  # fmt: skip
def test_a_provider_that_is_not_known_changes_no_price(prices: Prices, provider: str) -> None:
    for model in ("openai/gpt-oss-120b", "qwen3-max", "claude-sonnet-4-5", "unheard-of"):
        assert prices.at(provider).cost(model, USED) == prices.cost(model, USED)
        assert prices.at(provider).source(model) == model


@pytest.mark.parametrize(
    "model",
    ["unheard-of", "claude-sonnet-4-5", "ft:gpt-4o:me::id", "ollama/llama3", "whisper-large-v3"],
)
def test_a_model_that_the_provider_does_not_sell_by_the_token_costs_what_its_name_tells(
    prices: Prices, model: str
) -> None:
    groq = prices.at("https://api.groq.com/openai/v1")
    assert groq.cost(model, USED) == prices.cost(model, USED)
    assert groq.charged_as(model, "openai-chat") == prices.charged_as(model, "openai-chat")


def test_a_router_without_a_cost_of_its_own_counts_at_its_list_price(prices: Prices) -> None:
    model = "openai/gpt-oss-120b"
    listed = prices.cost(f"openrouter/{model}", USED)
    assert prices.at("https://openrouter.ai/api/v1").cost(model, USED) == listed
    assert listed != prices.cost(model, USED)


def test_the_price_of_the_config_counts_before_that_of_the_provider(prices: Prices) -> None:
    own = Prices({"gpt-oss-120b": OWN}, prices.library).at("https://api.groq.com/openai/v1")
    assert own.cost("openai/gpt-oss-120b", USED) == pytest.approx(0.12)
    assert own.source("openai/gpt-oss-120b") == "openai/gpt-oss-120b"


@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("togetherai/openai/gpt-oss-120b", "together/openai/gpt-oss-120b"),
        (
            "fireworks-ai/accounts/fireworks/models/gpt-oss-120b",
            "accounts/fireworks/models/gpt-oss-120b",
        ),
        ("groq/openai/gpt-oss-120b", "groq/openai/gpt-oss-120b"),
    ],
)
def test_a_name_with_its_provider_in_front_costs_what_that_one_says(
    prices: Prices, name: str, means: str
) -> None:
    """As opencode and LiteLLM write it."""
    assert prices.cost(name, USED) == prices.cost(means, USED) == pytest.approx(0.021)


def test_a_retired_model_costs_at_most_what_answers_for_it(prices: Prices) -> None:
    cost = prices.price("grok-code-fast-1", USED)
    assert cost is not None
    assert cost.usd == prices.cost("grok-4.3", USED)
    assert cost.sure == pytest.approx(0.02 + 0.015)


@pytest.mark.parametrize(
    ("model", "tokens", "usd", "sure"),
    [
        # no rate of audio: the dearest of the provider's other models
        ("gpt-4o", Tokens(input=1000, modes={"audio": Tokens(input=1000)}), 0.04, 0.0025),
        # images cost what text costs
        ("gpt-4o", Tokens(input=1000, modes={"image": Tokens(input=1000)}), 0.0025, 0.0025),
        ("claude-opus-5-5", Tokens(input=1000, modes={"image": Tokens(input=1000)}), 0.004, 0.004),
        # elsewhere the dearest rate of the model
        (
            "deepseek-v3.1-terminus",  # the price of newer ones depends on the hour
            Tokens(input=1000, modes={"image": Tokens(input=1000)}),
            0.00095,
            0.00027,
        ),
    ],
)
def test_a_modality_without_a_rate_costs_the_dearest(
    prices: Prices, model: str, tokens: Tokens, usd: float, sure: float
) -> None:
    cost = prices.price(model, tokens)
    assert cost is not None
    assert cost.usd == pytest.approx(usd)
    assert cost.sure == pytest.approx(sure)
