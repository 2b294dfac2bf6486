"""Anthropic Messages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sfad.features.gateway.program.apis import APIS, ModelCall
from sfad.protocol.types import Tokens
from tests.features.gateway.program.apis.samples import ANTHROPIC_STREAM, delta, read, sse

API = APIS["anthropic"]


def body(**more: Any) -> bytes:
    return json.dumps({"model": "claude-x", "max_tokens": 32_000, "messages": [], **more}).encode()


def test_a_request() -> None:
    assert API.call("/v1/messages", body(stream=True)) == ModelCall(
        "claude-x", 32_000, streams=True
    )
    cached = body(system=[{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}])
    assert API.call("/v1/messages", cached) == ModelCall("claude-x", 32_000, caches=True)
    said = body(system='a "cache_control" in a text')
    assert API.call("/v1/messages", said) == ModelCall("claude-x", 32_000)


@pytest.mark.parametrize("value", [None, -1, 0])
def test_a_maximum_that_is_none(value: Any) -> None:
    assert API.call("/v1/messages", body(max_tokens=value)) == ModelCall("claude-x", None)


@pytest.mark.parametrize(
    ("thinking", "tokens", "lowered"),
    [
        (None, 5000, None),
        (
            {"type": "enabled", "budget_tokens": 31_999},
            5000,
            {"type": "enabled", "budget_tokens": 3976},
        ),
        (
            {"type": "enabled", "budget_tokens": 3976},
            5000,
            {"type": "enabled", "budget_tokens": 3976},
        ),
        (
            {"type": "enabled", "budget_tokens": 3977},
            5000,
            {"type": "enabled", "budget_tokens": 3976},
        ),
        (
            {"type": "enabled", "budget_tokens": 2000, "display": "x"},
            2048,
            {"type": "enabled", "budget_tokens": 1024, "display": "x"},
        ),
        ({"type": "enabled", "budget_tokens": 2000}, 2047, {"type": "disabled"}),
        ({"type": "adaptive"}, 5000, {"type": "adaptive"}),
        ({"type": "disabled"}, 5000, {"type": "disabled"}),
        ({"budget_tokens": "x"}, 5000, {"budget_tokens": "x"}),
        ("x", 5000, "x"),
    ],
)
def test_thinking_is_lowered_with_the_maximum(thinking: Any, tokens: int, lowered: Any) -> None:
    request = json.loads(
        API.lowered(body(**({} if thinking is None else {"thinking": thinking})), tokens)
    )
    assert request["max_tokens"] == tokens
    assert request.get("thinking") == lowered


def test_a_stream_that_breaks_off_with_an_error() -> None:
    error = sse({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
    start = sse(
        {
            "type": "message_start",
            "message": {"content": [], "usage": {"input_tokens": 10, "output_tokens": 2}},
        },
        delta(0, type="text_delta", text="x" * 400),
    )
    reader = read("anthropic", start + error)
    assert (reader.tokens, reader.told, reader.written) == (Tokens(input=10, output=2), False, 400)


def test_a_figure_that_is_told_twice_counts_once() -> None:
    usage = {"input_tokens": 12, "output_tokens": 80, "cache_read_input_tokens": 30}
    assert read(
        "anthropic", ANTHROPIC_STREAM + sse({"type": "message_delta", "delta": {}, "usage": usage})
    ).tokens == Tokens(input=62, output=80, cached=30, cache_write=20)


def test_thousands_of_tools_are_bounded() -> None:
    reader = APIS["anthropic"].reply(streamed=True)
    for index in range(5000):
        reader.feed(
            sse(
                {
                    "type": "content_block_start",
                    "index": index,
                    "content_block": {"type": "tool_use", "name": "x"},
                }
            )
        )
    for index in range(5000):
        reader.feed(sse({"type": "content_block_stop", "index": index}))
    assert len(reader.tools) == 256


def test_the_models_of_tools_are_further_models_of_the_request() -> None:
    tools = [
        {"type": "advisor_20260301", "name": "advisor", "model": "claude-opus-4-1"},
        {"name": "search", "input_schema": {}},
        {"type": "other", "name": "second", "model": "claude-haiku-4"},
        {"type": "other", "name": "third", "model": "claude-opus-4-1"},
    ]
    call = API.call("/v1/messages", body(tools=tools))
    assert isinstance(call, ModelCall)
    assert call.others == ("claude-opus-4-1", "claude-haiku-4")
