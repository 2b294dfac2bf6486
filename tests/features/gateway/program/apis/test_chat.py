"""OpenAI Chat Completions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sfad.features.gateway.program.apis import APIS, ModelCall
from sfad.protocol.types import Tokens
from tests.features.gateway.program.apis.samples import CHAT_USAGE, chat, read, sse

API = APIS["openai-chat"]
PATH = "/chat/completions"


def body(**more: Any) -> bytes:
    return json.dumps({"model": "gpt-x", "messages": [], **more}).encode()


@pytest.mark.parametrize(
    ("more", "call"),
    [
        ({}, ModelCall("gpt-x", None, caches=True)),
        ({"max_tokens": 100}, ModelCall("gpt-x", 100, caches=True)),
        ({"max_completion_tokens": 200, "max_tokens": 100}, ModelCall("gpt-x", 200, caches=True)),
        ({"n": 3, "stream": True}, ModelCall("gpt-x", None, choices=3, streams=True, caches=True)),
        ({"n": None, "stream": None}, ModelCall("gpt-x", None, caches=True)),
        ({"n": -5}, ModelCall("gpt-x", None, caches=True)),
    ],
)
def test_a_request(more: dict[str, Any], call: ModelCall) -> None:
    assert API.call(PATH, body(**more)) == call


@pytest.mark.parametrize("more", [{}, {"model": "cheap"}])
def test_a_deployment_in_the_path_is_the_model(more: dict[str, Any]) -> None:
    path = "/openai/deployments/our-gpt/chat/completions"
    call = API.call(path, json.dumps({"messages": []} | more).encode())
    assert call is not None
    assert call.model == "our-gpt"
    with pytest.raises(ValueError, match="names no model"):
        API.call("/openai/chat/completions", b"{}")


@pytest.mark.parametrize(
    ("more", "lowered"),
    [
        ({}, {"max_completion_tokens": 50}),
        ({"max_tokens": 100}, {"max_tokens": 50}),
        ({"max_completion_tokens": 100}, {"max_completion_tokens": 50}),
        (
            {"max_completion_tokens": 100, "max_tokens": 9},
            {"max_completion_tokens": 50, "max_tokens": 50},
        ),
        (
            {"max_completion_tokens": None, "max_tokens": 100},
            {"max_completion_tokens": None, "max_tokens": 50},
        ),
    ],
)
def test_a_request_that_is_lowered(more: dict[str, Any], lowered: dict[str, Any]) -> None:
    assert json.loads(API.lowered(body(**more), 50)) == json.loads(body()) | lowered


@pytest.mark.parametrize(
    ("more", "options"),
    [
        ({"stream": True}, {"include_usage": True}),
        ({"stream": True, "stream_options": None}, {"include_usage": True}),
        ({"stream": True, "stream_options": {"x": 1}}, {"x": 1, "include_usage": True}),
        ({"stream": True, "stream_options": {"include_usage": False}}, {"include_usage": True}),
    ],
)
def test_a_stream_is_asked_for_its_usage(more: dict[str, Any], options: dict[str, Any]) -> None:
    assert json.loads(API.completed(body(**more)))["stream_options"] == options


@pytest.mark.parametrize(
    "more", [{}, {"stream": False}, {"stream": True, "stream_options": {"include_usage": True}}]
)
def test_other_requests_stay_as_they_are(more: dict[str, Any]) -> None:
    request = body(**more)
    assert API.completed(request) is request


def test_mistral_refuses_what_it_does_not_know() -> None:
    """It tells the usage of each stream."""
    mistral, request = API.at("api.mistral.ai"), body(stream=True)
    assert mistral.completed(request) is request
    assert json.loads(mistral.lowered(request, 50)) == json.loads(request) | {"max_tokens": 50}
    assert API.at("mistral.ai.example") is API


def test_a_server_that_tells_its_usage_in_each_event() -> None:
    """What it has told by the middle is no final figure."""
    events = [
        chat(content="x", usage={"prompt_tokens": 10, "completion_tokens": count})
        for count in range(1, 5)
    ]
    reader = read("openai-chat", sse(*events, named=False))
    assert (reader.tokens, reader.told) == (Tokens(input=10, output=4), False)
    reader = read(
        "openai-chat",
        sse(
            *events,
            chat(finish="stop", usage={"prompt_tokens": 10, "completion_tokens": 5}),
            named=False,
        ),
    )
    assert (reader.tokens, reader.told) == (Tokens(input=10, output=5), True)


def test_reasoning_and_refusals_are_written() -> None:
    events = [chat(reasoning_content="1234"), chat(reasoning="5678"), chat(refusal="no")]
    assert read("openai-chat", sse(*events, named=False)).written == 10


def test_a_stream_without_usage_is_estimated() -> None:
    reader = read(
        "openai-chat", sse(chat(content="x" * 400), chat(finish="stop"), "[DONE]", named=False)
    )
    assert (reader.tokens, reader.told, reader.unknown, reader.written) == (None, False, False, 400)


def test_an_error_in_a_stream() -> None:
    reader = read(
        "openai-chat",
        sse(chat(content="hello"), {"error": {"message": "x", "code": 500}}, named=False),
    )
    assert (reader.told, reader.written) == (False, 5)


def test_cached_tokens_are_at_most_all() -> None:
    usage = CHAT_USAGE | {
        "prompt_tokens_details": {"cached_tokens": 1000, "cache_write_tokens": 1000}
    }
    reader = read("openai-chat", sse(chat(finish="stop", usage=usage), named=False))
    assert reader.tokens == Tokens(input=100, output=50, cache_write=100)
