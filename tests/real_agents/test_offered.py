"""The models that each program offers, as its own files name them, and what they cost: each has a
price of its own, or a stand-in with a reason."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import trio

from sfad.protocol.types import Tokens
from sfad.usage.pricing import PriceLibrary, Prices
from tests.real_agents.clis import packages

Offer = dict[str, dict[int, dict[str, float]]]
"""Names of models, with prices of a million tokens of a request with more input than that, where
the program knows some."""

NAMES: dict[str, tuple[str, bytes]] = {
    "claude": (
        "@anthropic-ai/claude-code-*/claude",
        rb'"(claude-(?:opus|sonnet|haiku|fable|mythos)-\d[0-9-]*)"',
    ),
    "codex": ("@openai/codex-*/vendor/*/bin/codex", rb'"slug": ?"([^"]+)"'),
    "gemini": (
        "@google/gemini-cli/bundle/*.js",
        rb"""["'](gemini-\d[\d.]*-(?:pro|flash)[a-z0-9.-]*)["']""",
    ),
    "qwen": (
        "@qwen-code/qwen-code/cli.js",
        rb'"(coder-model|qwen\d[a-z0-9.-]*-(?:plus|max|next|flash)[0-9-]*|glm-\d[\d.]*'
        rb'|kimi-k[\d.]+|deepseek-v\d[a-z0-9.-]*|MiniMax-M\d[\w.-]*)"',
    ),
}
"""The files of each program, and how they name a model."""
COPILOT_FILES = "copilot-cache/pkg/*/*/cli-main.js"
COPILOT_NAMES = re.compile(rb'"((?:gpt|claude|gemini|grok|mai-code)-[a-z]*-?\d[a-z0-9.-]*)"')

OPENCODE = "opencode-linux-*/bin/opencode"
"""It holds a snapshot of https://models.dev, as JavaScript."""
_PROVIDER = re.compile(rb'\{id:"([a-z0-9.-]+)",(?:name:"[^"]*",)?env:\[')
_MODEL = re.compile(
    rb'\{id:"([^"]+)",name:"[^"]*".*?limit:\{[^}]*\}'
    rb"(?:,cost:\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\})?",
    re.DOTALL,
)
_NESTED = re.compile(rb"(\w+):(?:\[[^\]]*\]|\{[^{}]*\})")
_TIER = re.compile(rb"\{([^{}]*),tier:\{[^{}]*size:(\d+)\}\}")
_PRICE = re.compile(rb"(?:^|,)(input|output|cache_read|cache_write):([0-9.e+-]+)")
MAKERS = ("anthropic", "openai", "google", "xai", "deepseek", "moonshotai", "zai", "minimax")
"""The providers of the snapshot that sell what they make. Others sell the same at other prices."""

NOT_CALLED = re.compile(
    r"text-embedding|gemini-embedding|gpt-image|chatgpt-image|dall-e|sora|whisper|tts|lyria|veo|imagen"
    r"|imagine|deep-research|live|image|omni|base$|native-audio"
)
"""No model that an agent calls: it makes images, audio, video or embeddings, speaks, or is a name
of settings."""

STAND_INS = {
    "claude-mythos-5": "sold by invitation; the dearest of Anthropic counts",
    "claude-mythos-5-1": "sold by invitation; the dearest of Anthropic counts",
    "claude-haiku-3-5": "another spelling of Claude Code for claude-3-5-haiku, never called so",
    "codex-auto-review": "a name of Codex for the model of its reviews, which only the reply tells",
    "coder-model": "means qwen3.6-plus, as Qwen Code's documentation says",
    "gemini-2.5-computer-use-preview-10-2025": "its price is not published apart",
    "gemini-3-flash": "means the preview",
    "gemini-3-pro": "means the preview",
    "gemini-3.1-pro": "means the preview",
    "gemma-4-26b-a4b-it": "free at Google, not elsewhere; the dearest model counts",
    "gemma-4-31b-it": "free at Google, not elsewhere; the dearest model counts",
    "glm-5v-turbo": "not in genai-prices; the dearest of Z.ai counts",
    "glm-4.6v-flash": "free at Z.ai, not elsewhere; the dearest of Z.ai counts",
    "glm-4.7-flash": "free at Z.ai, not elsewhere; the dearest of Z.ai counts",
    "glm-4.5-flash": "free at Z.ai, not elsewhere; the dearest of Z.ai counts",
    "mai-code-1.1-flash": "Copilot alone sells it, for requests; the dearest model counts",
    "mai-code-1-flash-picker": "Copilot alone sells it, for requests; the dearest model counts",
}
"""The models without a price, and why that is so."""

DEARER = {
    "glm-5-turbo": "genai-prices has that of another provider, which is lower than Z.ai's",
    "deepseek-v4-pro": "the snapshot has a price of an earlier month",
    "MiniMax-M2.5-highspeed": "genai-prices has the cache of the plain model",
}
"""The models whose price differs from the snapshot's, and why the one of sfad stays."""


@pytest.fixture(scope="module")
def prices() -> Prices:
    library = PriceLibrary()
    assert trio.run(library.load) is None
    return Prices({}, library)


@cache
def content(pattern: str) -> bytes:
    found = sorted(Path(packages(), "node_modules").glob(pattern))
    assert found, f"no file is at {pattern}"
    return b"".join(path.read_bytes() for path in found[: None if "*.js" in pattern else 1])


def offered(program: str) -> Offer:
    """Return the models that a program offers."""
    if program == "opencode":
        return {name: each for maker in MAKERS for name, each in snapshot(maker).items()}
    if program == "copilot":
        files = b"".join(path.read_bytes() for path in packages().glob(COPILOT_FILES))
        return snapshot("github-copilot") | {
            name.decode(): {} for name in COPILOT_NAMES.findall(files)
        }
    pattern, names = NAMES[program]
    return {name.decode(): {} for name in set(re.findall(names, content(pattern)))}


def snapshot(maker: str) -> Offer:
    """Return what opencode's snapshot says of the models of a provider."""
    data = content(OPENCODE)
    begins = [(match.start(), match[1].decode()) for match in _PROVIDER.finditer(data)]
    (at,) = [number for number, (_, name) in enumerate(begins) if name == maker]
    part = data[begins[at][0] : begins[at + 1][0]]
    return {
        match[1].decode(): {
            0: _prices(_NESTED.sub(b"", match[2] or b"")),
            **{int(size): _prices(told) for told, size in _TIER.findall(match[2] or b"")},
        }
        for match in _MODEL.finditer(part)
    }


def _prices(told: bytes) -> dict[str, float]:
    return {kind.decode(): float(usd) for kind, usd in _PRICE.findall(told)}


def called(program: str) -> Iterator[str]:
    yield from (name for name in sorted(offered(program)) if not NOT_CALLED.search(name))


MILLION = {
    "input": Tokens(input=1_000_000),
    "output": Tokens(output=1_000_000),
    "cache_read": Tokens(input=1_000_000, cached=1_000_000),
    "cache_write": Tokens(input=1_000_000, cache_write=1_000_000),
}
PROGRAMS = ("claude", "codex", "gemini", "opencode", "qwen", "copilot")


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_model_that_a_program_offers_has_a_price_or_a_reason(
    commands: Path, prices: Prices, program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    del commands
    found = list(called(program))
    assert len(found) >= 5
    missing = [name for name in found if not prices.knows(name)]
    with capsys.disabled():
        print(f"\n{program}: {len(found)} models, {len(missing)} with a stand-in")
        for name in missing:
            instead = prices.charged_as(name, program)
            print(f"  {name} as {instead}: {STAND_INS.get(name, 'no reason is known')}")
    assert [name for name in missing if name not in STAND_INS] == []
    assert [name for name in missing if not prices.knows(prices.charged_as(name, program))] == []


def test_no_reason_is_left_over(commands: Path, prices: Prices) -> None:
    del commands
    names = {name for program in PROGRAMS for name in called(program)}
    assert {name for name in STAND_INS if name not in names or prices.knows(name)} == set()


@pytest.mark.parametrize("maker", MAKERS)
def test_prices_are_those_that_opencode_knows(commands: Path, prices: Prices, maker: str) -> None:
    """A price of sfad is never below the program's own."""
    del commands
    below: dict[str, Any] = {}
    for name, told in snapshot(maker).items():
        if NOT_CALLED.search(name) or not prices.knows(name):
            continue
        for size, usd in told.items():
            for kind, tokens in MILLION.items():
                ours = prices.cost(name, tokens, request_input=size + 1) or 0.0
                if kind in usd and ours < 0.99 * usd[kind]:
                    below[f"{name} {kind} {size}"] = (ours, usd[kind])
    assert {each for each in below if each.split()[0] not in DEARER} == set(), below
