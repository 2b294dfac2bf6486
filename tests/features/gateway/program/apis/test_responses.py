"""OpenAI Responses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sfad.features.gateway.program.apis import APIS, ModelCall
from tests.features.gateway.program.apis.samples import (
    OPENAI_TOKENS,
    RESPONSES_USAGE,
    RESPONSES_WHOLE,
    read,
    sse,
)

API = APIS["openai-responses"]


def body(**more: Any) -> bytes:
    return json.dumps({"model": "gpt-x", "input": "hello", **more}).encode()


@pytest.mark.parametrize(
    ("path", "more", "call"),
    [
        ("/responses", {}, ModelCall("gpt-x", None, caches=True)),
        (
            "/responses",
            {"max_output_tokens": 500, "stream": True},
            ModelCall("gpt-x", 500, streams=True, caches=True),
        ),
        ("/responses", {"max_output_tokens": None}, ModelCall("gpt-x", None, caches=True)),
        (
            "/responses",
            {"previous_response_id": "r"},
            ModelCall("gpt-x", None, caches=True, continues=True),
        ),
        (
            "/responses",
            {"conversation": {"id": "c"}},
            ModelCall("gpt-x", None, caches=True, continues=True),
        ),
        ("/responses/compact", {}, ModelCall("gpt-x", 20_000, fixed=True, caches=True)),
    ],
)
def test_a_request(path: str, more: dict[str, Any], call: ModelCall) -> None:
    assert API.call(path, body(**more)) == call


@pytest.mark.parametrize(
    "more", [{}, {"max_output_tokens": 128_000}, {"reasoning": {"effort": "high"}}]
)
def test_a_request_that_is_lowered(more: dict[str, Any]) -> None:
    assert json.loads(API.lowered(body(**more), 5000)) == json.loads(body(**more)) | {
        "max_output_tokens": 5000
    }


def test_a_request_without_a_model() -> None:
    with pytest.raises(ValueError, match="model"):
        API.call("/responses", b'{"prompt": {"id": "p"}}')


@pytest.mark.parametrize(
    "end", ["response.completed", "response.incomplete", "response.failed", "response.cancelled"]
)
def test_each_end_tells_the_usage(end: str) -> None:
    reader = read("openai-responses", sse({"type": end, "response": {"usage": RESPONSES_USAGE}}))
    assert (reader.tokens, reader.told) == (OPENAI_TOKENS, True)


def test_a_failure_without_usage_is_estimated() -> None:
    events = [
        {"type": "response.output_text.delta", "delta": "x" * 400},
        {"type": "response.failed", "response": {"usage": None}},
    ]
    reader = read("openai-responses", sse(*events))
    assert (reader.told, reader.unknown, reader.written) == (False, False, 400)


def test_what_runs_in_the_background_is_unknown_until_it_is_told() -> None:
    """It goes on when the client hangs up, and the reply to its start tells nothing."""
    start = {
        "type": "response.created",
        "response": {"status": "queued", "background": True, "usage": None},
    }
    text = {"type": "response.output_text.delta", "delta": "hello"}
    end = {"type": "response.completed", "response": {"background": True, "usage": RESPONSES_USAGE}}
    assert read("openai-responses", sse(start, text)).unknown
    assert not read("openai-responses", sse(start, text, end)).unknown
    queued = json.dumps(
        {"status": "queued", "background": True, "usage": None, "output": []}
    ).encode()
    assert read("openai-responses", queued, streamed=False).unknown
    assert not read("openai-responses", RESPONSES_WHOLE, streamed=False).unknown


def test_a_compaction() -> None:
    reply = {
        "object": "response.compaction",
        "output": [{"type": "compaction", "encrypted_content": "x"}],
        "usage": RESPONSES_USAGE,
    }
    assert (
        read("openai-responses", json.dumps(reply).encode(), streamed=False).tokens == OPENAI_TOKENS
    )
