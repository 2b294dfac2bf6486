"""What costs more than tokens at list prices."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sfad.features.gateway.program.apis import APIS
from sfad.features.gateway.program.apis.base import MOST_USES

PATHS = {
    "anthropic": "/v1/messages", "openai-responses": "/responses",
    "openai-chat": "/chat/completions", "gemini": "/v1beta/models/gemini-3-pro:generateContent",
}  # fmt: skip
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
REPLIES: dict[str, dict[str, Any]] = {
    "anthropic": {"content": []},
    "openai-responses": {"output": []},
    "openai-chat": {"choices": [], "usage": {}},
    "gemini": {"candidates": []},
}


@pytest.mark.parametrize(
    ("api", "model", "asked", "told", "factors"),
    [
        ("anthropic", "claude-opus-4-6", {"speed": "fast"}, {"speed": "fast"}, (6.0, 6.0)),
        ("anthropic", "claude-opus-5", {"speed": "fast"}, {"speed": "standard"}, (2.0, 1.0)),
        ("anthropic", "claude-opus-5", {"speed": "fast", "inference_geo": "us"}, {}, (2.2, 2.2)),
        ("anthropic", "claude-opus-5", {}, {"inference_geo": "us"}, (1.0, 1.1)),
        (
            "anthropic",
            "claude-opus-5",
            {"service_tier": "auto"},
            {"service_tier": "priority"},
            (1.0, 1.0),
        ),
        ("anthropic", "claude-opus-5", {}, {"service_tier": "batch"}, (1.0, 0.5)),
        (
            "openai-responses",
            "gpt-5",
            {"service_tier": "flex"},
            {"service_tier": "flex"},
            (1.0, 0.5),
        ),
        (
            "openai-responses",
            "gpt-5",
            {"service_tier": "flex"},
            {"service_tier": "default"},
            (1.0, 1.0),
        ),
        ("openai-chat", "gpt-5", {"service_tier": "flex"}, {}, (1.0, 1.0)),
        (
            "openai-responses",
            "gpt-5.5",
            {"service_tier": "priority"},
            {"service_tier": "priority"},
            (2.5, 2.5),
        ),
        (
            "openai-responses",
            "gpt-5.6-sol",
            {"service_tier": "fast"},
            {"service_tier": "default"},
            (2.0, 1.0),
        ),
        ("openai-responses", "gpt-5.6-sol", {}, {"service_tier": "priority"}, (1.0, 2.0)),
        (
            "openai-responses",
            "gpt-5.6-sol",
            {"service_tier": "priority"},
            {"service_tier": "auto"},
            (2.0, 2.0),
        ),
        (
            "openai-chat",
            "gpt-5",
            {"service_tier": "priority"},
            {"service_tier": "priority"},
            (2.0, 2.0),
        ),
        ("openai-chat", "gpt-5", {"service_tier": None}, {"service_tier": None}, (1.0, 1.0)),
        ("gemini", "gemini-3-pro", {"serviceTier": "SERVICE_TIER_PRIORITY"}, {}, (2.0, 2.0)),
        ("gemini", "gemini-3-pro", {"service_tier": "priority"}, {}, (2.0, 2.0)),
    ],
)
def test_a_tier_multiplies_the_price(
    api: str, model: str, asked: dict[str, Any], told: dict[str, Any], factors: tuple[float, float]
) -> None:
    known = APIS[api]
    call = known.call(PATHS[api], json.dumps({"model": model} | asked).encode())
    assert call is not None
    reader = known.reply(streamed=False)
    reader.feed(
        json.dumps(REPLIES[api] | ({"usage": told} if api == "anthropic" else told)).encode()
    )
    reader.end()
    assert known.factor(model, call.tiers, {}) == pytest.approx(factors[0])
    assert known.factor(model, call.tiers, reader.tiers) == pytest.approx(factors[1])


@pytest.mark.parametrize(
    ("api", "asked", "most"),
    [
        ("anthropic", {"tools": [SEARCH | {"max_uses": 3}, {"name": "Bash"}]}, 0.03),
        ("anthropic", {"tools": [SEARCH]}, 0.01 * MOST_USES),
        ("anthropic", {"tools": [{"name": "web_search", "input_schema": {}}]}, 0),
        ("anthropic", {"tools": None}, 0),
        (
            "openai-responses",
            {"tools": [{"type": "web_search"}, {"type": "function"}], "max_tool_calls": 2},
            0.02,
        ),
        (
            "openai-responses",
            {"tools": [{"type": "code_interpreter", "container": {}}]},
            0.03 * MOST_USES,
        ),
        ("openai-responses", {"tools": [{"type": None}, {"type": "custom"}]}, 0),
        ("gemini", {"tools": [{"googleSearch": {}}]}, 0.014 * MOST_USES),
        ("gemini", {"tools": [{"google_search_retrieval": {}}]}, 0.014 * MOST_USES),
        ("gemini", {"tools": [{"functionDeclarations": []}]}, 0),
        ("gemini", {"tools": [{"googleMaps": {}}]}, 0.025),
        (
            "openai-responses",
            {"tools": [{"type": "web_search_preview"}], "max_tool_calls": 2},
            0.05,
        ),
        ("openai-chat", {"web_search_options": {}}, 0.025),
        ("openai-chat", {"plugins": [{"id": "web"}]}, 0.025),
        ("openai-chat", {"plugins": [{"id": "file-parser"}]}, 0),
        ("openai-chat", {"model": "perplexity/sonar-pro"}, 0.025),
    ],
)
def test_what_the_providers_tools_may_cost(api: str, asked: dict[str, Any], most: float) -> None:
    call = APIS[api].call(PATHS[api], json.dumps({"model": "m"} | asked).encode())
    assert call is not None
    assert call.fees_usd == pytest.approx(most)


@pytest.mark.parametrize(
    ("api", "told", "fees"),
    [
        ("anthropic", {"usage": {"server_tool_use": {"web_search_requests": 2}}}, 0.02),
        ("anthropic", {"usage": {"server_tool_use": None}}, 0),
        (
            "openai-responses",
            {
                "output": [
                    {"type": "web_search_call"},
                    {"type": "web_search_call"},
                    {"type": "message"},
                ]
            },
            0.02,
        ),
        (
            "openai-responses",
            {"output": [{"type": "function_call", "name": "f", "arguments": "{}"}]},
            0,
        ),
        ("gemini", {"candidates": [{"groundingMetadata": {"webSearchQueries": ["a"]}}]}, 0.035),
        ("gemini", {"candidates": [{"groundingMetadata": {"webSearchQueries": ["a"] * 5}}]}, 0.07),
        ("gemini", {"candidates": [{"groundingMetadata": {}}]}, 0),
    ],
)
def test_what_the_providers_tools_have_cost(api: str, told: dict[str, Any], fees: float) -> None:
    reader = APIS[api].reply(streamed=False)
    reader.feed(json.dumps(told).encode())
    reader.end()
    assert reader.fees_usd == pytest.approx(fees)


def test_a_cache_for_an_hour() -> None:
    body: dict[str, Any] = {
        "model": "m",
        "system": [{"type": "text", "text": "x",
                    "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
    }  # fmt: skip
    call = APIS["anthropic"].call(PATHS["anthropic"], json.dumps(body).encode())
    assert call is not None
    assert (call.caches, call.long_cache) == (True, True)
    reader = APIS["anthropic"].reply(streamed=True)
    usage = {
        "input_tokens": 1,
        "cache_creation_input_tokens": 30,
        "cache_creation": {"ephemeral_1h_input_tokens": 20},
    }
    for event in (
        {"type": "message_start", "message": {"usage": usage}},
        {"type": "message_delta", "usage": {"output_tokens": 3}},
    ):
        reader.feed(f"data: {json.dumps(event)}\n\n".encode())
    assert reader.tokens is not None
    assert (reader.tokens.cache_write, reader.tokens.long_write) == (30, 20)
