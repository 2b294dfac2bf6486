"""Gemini generateContent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sfad.features.gateway.program.apis import APIS, ModelCall
from sfad.protocol.types import Tokens
from tests.features.gateway.program.apis.samples import (
    GEMINI_PARTS,
    GEMINI_USAGE,
    gemini,
    read,
    sse,
)

API = APIS["gemini"]
PATH = "/v1beta/models/gemini-x:generateContent"


@pytest.mark.parametrize(
    ("request_", "call"),
    [
        ({}, ModelCall("gemini-x", None)),
        ({"generationConfig": None}, ModelCall("gemini-x", None)),
        (
            {"generationConfig": {"maxOutputTokens": 500, "candidateCount": 2}},
            ModelCall("gemini-x", 500, choices=2),
        ),
        (
            {"generation_config": {"max_output_tokens": 500, "candidate_count": 2}},
            ModelCall("gemini-x", 500, choices=2),
        ),
        ({"generationConfig": {"maxOutputTokens": "500"}}, ModelCall("gemini-x", 500)),
        ({"cachedContent": "cachedContents/c"}, ModelCall("gemini-x", None, continues=True)),
        ({"cached_content": "cachedContents/c"}, ModelCall("gemini-x", None, continues=True)),
    ],
)
def test_a_request(request_: dict[str, Any], call: ModelCall) -> None:
    assert API.call(PATH, json.dumps(request_).encode()) == call


def test_a_streamed_request() -> None:
    assert API.call("/v1beta/models/gemini-x:streamGenerateContent", b"{}") == ModelCall(
        "gemini-x", None, streams=True
    )


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"5"])
def test_a_request_that_cannot_be_read(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"JSON|Expected|truncated"):
        API.call(PATH, body)


@pytest.mark.parametrize(
    ("config", "lowered"),
    [
        ({}, {"generationConfig": {"maxOutputTokens": 5000}}),
        (
            {"generationConfig": {"temperature": 1}},
            {"generationConfig": {"temperature": 1, "maxOutputTokens": 5000}},
        ),
        (
            {
                "generation_config": {
                    "max_output_tokens": 9000,
                    "thinking_config": {"thinking_budget": 8000},
                }
            },
            {
                "generation_config": {
                    "max_output_tokens": 5000,
                    "thinking_config": {"thinking_budget": 2500},
                }
            },
        ),
        (
            {
                "generationConfig": {
                    "thinkingConfig": {"thinkingBudget": 24_576, "includeThoughts": True}
                }
            },
            {
                "generationConfig": {
                    "thinkingConfig": {"thinkingBudget": 2500, "includeThoughts": True},
                    "maxOutputTokens": 5000,
                }
            },
        ),
        (
            {"generationConfig": {"thinkingConfig": {"thinkingBudget": -1}}},
            {
                "generationConfig": {
                    "thinkingConfig": {"thinkingBudget": -1},
                    "maxOutputTokens": 5000,
                }
            },
        ),
    ],
)
def test_a_request_that_is_lowered(config: dict[str, Any], lowered: dict[str, Any]) -> None:
    request = {"contents": []} | config
    assert json.loads(API.lowered(json.dumps(request).encode(), 5000)) == {"contents": []} | lowered


def test_a_stream_that_breaks_off() -> None:
    reader = read("gemini", sse(*GEMINI_PARTS[:2], named=False))
    assert (reader.tokens, reader.told) == (Tokens(input=100, output=1), False)


def test_a_prompt_that_is_blocked() -> None:
    blocked = {
        "promptFeedback": {"blockReason": "SAFETY"},
        "usageMetadata": {"promptTokenCount": 100},
    }
    reader = read("gemini", json.dumps(blocked).encode(), streamed=False)
    assert (reader.tokens, reader.told) == (Tokens(input=100), True)
    assert read("gemini", sse(blocked, named=False)).tokens == Tokens(input=100)


def test_several_candidates() -> None:
    reply = gemini({"text": "1234"}, finish="STOP", usage=GEMINI_USAGE)
    reply["candidates"] *= 2
    assert read("gemini", sse(reply, named=False)).written == 8
