"""What calls are charged for their replies, beside what they cost by the providers' documents.

Each row says what the provider says, what that costs, worked out from the rates of its page of
prices, and how the charge is marked: "=" is exact, "≤" an upper and "≥" a lower bound, "≈" an
estimate with both. Each is tried as a whole reply and as a stream, unless it is only one of them.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import brotli  # type: ignore[import-untyped]
import pytest
import trio

from sfad.core.state.account import OpenReservation, Use
from sfad.core.state.money import to_usd
from sfad.features.gateway.program.apis import APIS
from sfad.features.gateway.program.bodies.estimate import Estimates
from sfad.features.gateway.program.bodies.reading import BodyQuestion, answer_to
from sfad.features.gateway.program.call_tally import BodyMemory, CallTally
from sfad.features.gateway.program.upstream_connections import Reply
from sfad.protocol.requests.gateway import AdmitCall, CallDecision, EndCall
from sfad.protocol.types import LimitKind
from sfad.usage.metering import UsePricing
from sfad.usage.pricing import PriceList
from tests.together import together

from .scripted import ScriptedDaemon

Mark = Literal["=", "≤", "≥", "≈"]

# ---- where the figures are from

ANTHROPIC_PRICES = "https://platform.claude.com/docs/en/about-claude/pricing"
ANTHROPIC_CACHES = "https://platform.claude.com/docs/en/build-with-claude/prompt-caching"
ANTHROPIC_ERRORS = "https://platform.claude.com/docs/en/api/errors"
OPENAI_PRICES = "https://platform.openai.com/docs/pricing"
CHAT_OBJECT = "https://platform.openai.com/docs/api-reference/chat/object"
RESPONSE_OBJECT = "https://platform.openai.com/docs/api-reference/responses/object"
OPENAI_SEARCH = "https://platform.openai.com/docs/guides/tools-web-search"
GEMINI_PRICES = "https://ai.google.dev/gemini-api/docs/pricing"
GEMINI_USAGE = "https://ai.google.dev/api/generate-content#UsageMetadata"
OPENROUTER = "https://openrouter.ai/docs/use-cases/usage-accounting"
DEEPSEEK = "https://api-docs.deepseek.com/guides/kv_cache"
MOONSHOT = "https://platform.moonshot.ai/docs/api/chat"
GROQ = "https://console.groq.com/docs/api-reference#chat-create"
XAI = "https://docs.x.ai/docs/guides/reasoning"
XAI_COST = "https://docs.x.ai/developers/cost-tracking"
MISTRAL = "https://docs.mistral.ai/api/endpoint/chat"
LITELLM = "https://docs.litellm.ai/docs/completion/prompt_caching"
PERPLEXITY = "https://docs.perplexity.ai/api-reference/chat-completions-post"
SSE = "https://html.spec.whatwg.org/multipage/server-sent-events.html"

QWEN_CACHE = "https://www.alibabacloud.com/help/en/model-studio/context-cache"
PERPLEXITY_PRICES = "https://docs.perplexity.ai/getting-started/pricing"
GEMINI_TIERS = "https://ai.google.dev/gemini-api/docs/priority-inference"
JSON = "https://www.rfc-editor.org/rfc/rfc8259"
IMAGE_MODEL = "gemini-2.5-flash-image"
GROQ_FLEX = "https://console.groq.com/docs/flex-processing"
VERTEX_TIERS = "https://docs.cloud.google.com/vertex-ai/generative-ai/docs/priority-paygo"

PATHS = {
    "anthropic": "/v1/messages",
    "openai-responses": "/v1/responses",
    "openai-chat": "/v1/chat/completions",
    "gemini": "/v1beta/models/{}:{}",
}
TEXT = "word " * 80
"""400 bytes: 100 tokens, as replies that are broken off are estimated."""


def usd(*parts: tuple[int, float]) -> float:
    """Return USD for tokens, each with their rate for a million."""
    return sum(tokens * rate for tokens, rate in parts) / 1_000_000


@dataclass(frozen=True)
class Row:
    api: str
    what: str
    model: str
    """Asked for."""
    usage: Any
    right: float
    source: str
    mark: Mark = "="
    served: str | None = None
    text: str = "Hello."
    asked: dict[str, Any] = field(default_factory=dict)
    """More of the request."""
    more: dict[str, Any] = field(default_factory=dict)
    """More of the reply."""
    streamed: tuple[bool, ...] = (False, True)
    kind: bytes | None = None
    """The content type."""
    change: Callable[[bytes], bytes] | None = None
    """Of the whole body."""
    encoding: str = ""
    body: Callable[[Row, bool], bytes] | None = None
    """Instead of that of the API."""
    url: str = ""
    """Of the upstream."""

    def __str__(self) -> str:
        return f"{self.api}: {self.what}"


# ---- replies of each API


def sse(*events: Any) -> bytes:
    said = (each if isinstance(each, str) else json.dumps(each) for each in events)
    return "".join(f"data: {each}\n\n" for each in said).encode()


def anthropic(row: Row, streamed: bool) -> bytes:
    message = {"model": row.served or row.model, "content": [], "role": "assistant"} | row.more
    if not streamed:
        content = [{"type": "text", "text": row.text}]
        return json.dumps(message | {"content": content, "usage": row.usage}).encode()
    usage = row.usage if isinstance(row.usage, dict) else {}
    start = usage | ({"output_tokens": 1} if usage.get("output_tokens") else {})
    return sse(
        {"type": "message_start", "message": message | {"usage": start}},
        {"type": "content_block_delta", "index": 0, "delta": {"text": row.text}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": row.usage},
        {"type": "message_stop"},
    )


def chat(row: Row, streamed: bool) -> bytes:
    told = {"model": row.served or row.model} | row.more
    if not streamed:
        choice = {"index": 0, "message": {"content": row.text}, "finish_reason": "stop"}
        return json.dumps({"choices": [choice], "usage": row.usage} | told).encode()
    return sse(
        {"choices": [{"index": 0, "delta": {"content": row.text}}], "usage": None} | told,
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]} | told,
        {"choices": [], "usage": row.usage} | told,
        "[DONE]",
    )


def responses(row: Row, streamed: bool) -> bytes:
    output = [{"type": "message", "content": [{"type": "output_text", "text": row.text}]}]
    items = row.more.get("output", output)
    whole = {"model": row.served or row.model, "usage": row.usage, "output": items, **row.more}
    if not streamed:
        return json.dumps(whole).encode()
    return sse(
        {"type": "response.created", "response": whole | {"usage": None, "output": []}},
        {"type": "response.output_text.delta", "delta": row.text},
        *({"type": "response.output_item.done", "item": item} for item in items),
        {"type": "response.completed", "response": whole},
    )


def gemini(row: Row, streamed: bool) -> bytes:
    told = {"modelVersion": row.served or row.model}
    part = {"content": {"parts": [{"text": row.text}]}}
    whole = {"candidates": [part | {"finishReason": "STOP"} | row.more]} | told
    if not streamed:
        return json.dumps(whole | {"usageMetadata": row.usage}).encode()
    return sse(
        {"candidates": [part], "usageMetadata": None} | told, whole | {"usageMetadata": row.usage}
    )


def stream(*events: Any) -> Callable[[Row, bool], bytes]:
    return lambda _, __: sse(*events)


def instead(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    """Return what changes a body that has the old bytes."""

    def change(body: bytes) -> bytes:
        assert old in body
        return body.replace(old, new)

    return change


BODIES = {
    "anthropic": anthropic,
    "openai-chat": chat,
    "openai-responses": responses,
    "gemini": gemini,
}

# ---- Anthropic. Rates of Haiku 4.5: 1 and 5 USD, from a cache 0.10, into it 1.25 and 2

HAIKU, SONNET, OPUS = "claude-haiku-4-5", "claude-sonnet-4-6", "claude-opus-4-8"


def a(what: str, usage: Any, right: float, source: str, mark: Mark = "=", **more: Any) -> Row:
    return Row("anthropic", what, more.pop("model", HAIKU), usage, right, source, mark, **more)


PLAIN_A = {"input_tokens": 10_000, "output_tokens": 1000}
COST_A = usd((10_000, 1.0), (1000, 5.0))
HOUR = {"type": "ephemeral", "ttl": "1h"}
ASKS_HOUR = {"system": [{"type": "text", "text": "x", "cache_control": HOUR}]}
NO_CACHES = {"cache_creation_input_tokens": None, "cache_read_input_tokens": None}


def a_late_hour(row: Row, _: bool) -> bytes:
    """The lifetimes come only with the end of the stream."""
    early = {name: told for name, told in row.usage.items() if name != "cache_creation"}
    return sse(
        {"type": "message_start", "message": {"model": row.model, "usage": early}},
        {"type": "message_delta", "delta": {}, "usage": row.usage},
    )


def a_zeros(row: Row, _: bool) -> bytes:
    """A converter repeats the input as 0 (https://github.com/BerriAI/litellm)."""
    start = row.usage | {"output_tokens": 1}
    last = {"input_tokens": 0, "output_tokens": 1000, "cache_read_input_tokens": 0}
    return sse(
        {"type": "message_start", "message": {"model": row.model, "usage": start}},
        {"type": "message_delta", "delta": {}, "usage": last},
    )


def a_error(*before: dict[str, Any]) -> Callable[[Row, bool], bytes]:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    return lambda _, streamed: sse(*before, error) if streamed else json.dumps(error).encode()


START_A = {"type": "message_start", "message": {"model": HAIKU, "usage": {"input_tokens": 10_000}}}
WORDS_A = {"type": "content_block_delta", "index": 0, "delta": {"text": TEXT}}


def end_a(usage: dict[str, Any]) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage}


def block_a(**block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": 0, "content_block": block}


def large(body: bytes) -> bytes:
    """Put a file of 12 MiB into the event or document with the usage."""
    field_ = b'"usageMetadata"' if b"usageMetadata" in body else b'"usage": {'
    head, found, tail = body.rpartition(field_)
    return head + b'"file": "' + FILE + b'", ' + found + tail


FILE = b"QUJD" * (3 << 20)

ANTHROPIC_ROWS = [
    a("text", PLAIN_A, COST_A, ANTHROPIC_PRICES),
    a(
        "an image is input",
        {"input_tokens": 11_590, "output_tokens": 100},
        usd((11_590, 1.0), (100, 5.0)),
        "https://platform.claude.com/docs/en/build-with-claude/vision",
        asked={
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "image",
                            "source": {
                                "type": "base64",
                                "media_type": "image/png",
                                "data": "iVBORw0KGgo=",
                            },
                        }
                    ],
                }
            ]
        },
    ),
    a(
        "read from a cache",
        PLAIN_A | {"cache_read_input_tokens": 90_000},
        COST_A + usd((90_000, 0.1)),
        ANTHROPIC_CACHES,
    ),
    a(
        "written to a cache",
        PLAIN_A | {"cache_creation_input_tokens": 40_000},
        COST_A + usd((40_000, 1.25)),
        ANTHROPIC_CACHES,
    ),
    a(
        "written for an hour",
        PLAIN_A
        | {
            "cache_creation_input_tokens": 40_000,
            "cache_creation": {"ephemeral_1h_input_tokens": 40_000, "ephemeral_5m_input_tokens": 0},
        },
        COST_A + usd((40_000, 2.0)),
        ANTHROPIC_CACHES,
    ),
    a(
        "written for both lifetimes",
        PLAIN_A
        | {
            "cache_creation_input_tokens": 40_000,
            "cache_creation": {
                "ephemeral_1h_input_tokens": 30_000,
                "ephemeral_5m_input_tokens": 10_000,
            },
        },
        COST_A + usd((30_000, 2.0), (10_000, 1.25)),
        ANTHROPIC_CACHES,
    ),
    a(
        "lifetimes alone",
        PLAIN_A
        | {
            "cache_creation": {
                "ephemeral_1h_input_tokens": 30_000,
                "ephemeral_5m_input_tokens": 10_000,
            }
        },
        COST_A + usd((30_000, 2.0), (10_000, 1.25)),
        ANTHROPIC_CACHES,
    ),
    a(
        "an hour told at the end",
        PLAIN_A
        | {
            "cache_creation_input_tokens": 40_000,
            "cache_creation": {"ephemeral_1h_input_tokens": 40_000},
        },
        COST_A + usd((40_000, 2.0)),
        ANTHROPIC_CACHES,
        streamed=(True,),
        body=a_late_hour,
    ),
    a(
        "an hour was asked for and no lifetime is told",
        PLAIN_A | {"cache_creation_input_tokens": 40_000},
        COST_A + usd((40_000, 1.25)),
        ANTHROPIC_CACHES,
        "≤",
        asked=ASKS_HOUR,
    ),
    a(
        "an hour was asked for and nothing was written",
        PLAIN_A,
        COST_A,
        ANTHROPIC_CACHES,
        asked=ASKS_HOUR,
    ),
    a(
        "zeros at the end",
        PLAIN_A | {"cache_read_input_tokens": 5000},
        COST_A + usd((5000, 0.1)),
        LITELLM,
        streamed=(True,),
        body=a_zeros,
    ),
    a(
        "a dearer model has answered",
        PLAIN_A,
        usd((10_000, 5.0), (1000, 25.0)),
        ANTHROPIC_PRICES,
        served=OPUS,
    ),
    a(
        "a cheaper model has answered",
        PLAIN_A,
        COST_A,
        ANTHROPIC_PRICES,
        "≤",
        model=OPUS,
        served=HAIKU,
    ),
    a(
        "the same model with its date",
        PLAIN_A,
        COST_A,
        ANTHROPIC_PRICES,
        served=f"{HAIKU}-20251001",
    ),
    a(
        "an alias was asked for",
        PLAIN_A,
        usd((10_000, 3.0), (1000, 15.0)),
        ANTHROPIC_PRICES,
        model="sonnet",
        served=SONNET,
    ),
    a(
        "a router's own name was asked for",
        PLAIN_A,
        COST_A,
        ANTHROPIC_PRICES,
        model="corp-default",
        served=HAIKU,
    ),
    a("a router says the cost", PLAIN_A | {"cost": 0.0123}, 0.0123, OPENROUTER),
    a(
        "a router says the cost of an unknown model",
        PLAIN_A | {"cost": 0.0123},
        0.0123,
        OPENROUTER,
        model="corp-default",
    ),
    a(
        "a router uses the caller's key",
        PLAIN_A
        | {"cost": 0.0007, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.014}},
        0.0147,
        OPENROUTER,
    ),
    a(
        "fast mode",
        PLAIN_A | {"speed": "fast"},
        2 * usd((10_000, 5.0), (1000, 25.0)),
        "https://platform.claude.com/docs/en/build-with-claude/fast-mode",
        model=OPUS,
    ),
    a(
        "only in the USA",
        PLAIN_A | {"inference_geo": "us"},
        1.1 * usd((10_000, 5.0), (1000, 25.0)),
        ANTHROPIC_PRICES,
        model=OPUS,
    ),
    a(
        "two searches",
        PLAIN_A | {"server_tool_use": {"web_search_requests": 2}},
        COST_A + 0.02,
        ANTHROPIC_PRICES,
    ),
    a(
        "an advisor",
        PLAIN_A
        | {
            "iterations": [
                {
                    "type": "advisor_message",
                    "model": OPUS,
                    "input_tokens": 1000,
                    "output_tokens": 100,
                }
            ]
        },
        COST_A + usd((1000, 5.0), (100, 25.0)),
        "https://platform.claude.com/docs/en/agents-and-tools/tool-use/advisor-tool",
    ),
    a(
        "nulls and an empty list",
        {
            "input_tokens": 30_000,
            "output_tokens": 500,
            **NO_CACHES,
            "server_tool_use": [],
            "cache_creation": None,
        },
        usd((30_000, 3.0), (500, 15.0)),
        ANTHROPIC_PRICES,
        model=SONNET,
    ),
    a(
        "a detail of another type",
        {"input_tokens": 30_000, "output_tokens": 500, **NO_CACHES, "cache_creation": [5]},
        usd((30_000, 3.0), (500, 15.0)),
        ANTHROPIC_PRICES,
        "≥",
        model=SONNET,
    ),
    a(
        "a cache that is no number",
        PLAIN_A | {"cache_read_input_tokens": "90000"},
        COST_A + usd((90_000, 0.1)),
        ANTHROPIC_CACHES,
        "≥",
    ),
    a(
        "a negative cache",
        PLAIN_A | {"cache_creation_input_tokens": -5},
        COST_A,
        ANTHROPIC_CACHES,
        "≥",
    ),
    a(
        "output that is no number",
        {"input_tokens": 10_000, "output_tokens": []},
        usd((10_000, 1.0), (100, 5.0)),
        ANTHROPIC_PRICES,
        "≥",
        text=TEXT,
    ),
    a(
        "output that is missing",
        {"input_tokens": 10_000},
        usd((10_000, 1.0), (100, 5.0)),
        ANTHROPIC_PRICES,
        "≥",
        text=TEXT,
    ),
    a(
        "a lone surrogate in the text",
        PLAIN_A,
        COST_A,
        ANTHROPIC_PRICES,
        change=lambda body: body.replace(b"Hello.", b"Hello\\ud83d."),
    ),
    a(
        "a null among the blocks",
        PLAIN_A,
        COST_A,
        ANTHROPIC_PRICES,
        more={"stop_reason": 5, "content": None},
    ),
    a("an error before any output", None, 0.0, ANTHROPIC_ERRORS, "≥", body=a_error()),
    a(
        "an error after the start",
        None,
        usd((10_000, 1.0)),
        ANTHROPIC_ERRORS,
        "≤",
        streamed=(True,),
        body=a_error(START_A),
    ),
    a(
        "an error after words",
        None,
        usd((10_000, 1.0), (100, 5.0)),
        ANTHROPIC_ERRORS,
        "≥",
        streamed=(True,),
        body=a_error(START_A, WORDS_A),
    ),
    a(
        "input that has grown by the end",
        None,
        usd((25_000, 1.0), (1000, 5.0)),
        "https://platform.claude.com/docs/en/build-with-claude/streaming",
        streamed=(True,),
        body=stream(START_A, WORDS_A, end_a({"input_tokens": 25_000, "output_tokens": 1000})),
    ),
    a(
        "no usage at the start",
        None,
        COST_A,
        LITELLM,
        streamed=(True,),
        body=stream(
            {"type": "message_start", "message": {"model": HAIKU}}, WORDS_A, end_a(PLAIN_A)
        ),
    ),
    a(
        "two starts, of a router that has tried twice",
        None,
        COST_A,
        OPENROUTER,
        streamed=(True,),
        body=stream(START_A, START_A, WORDS_A, end_a({"output_tokens": 1000})),
    ),
    a("a batch", PLAIN_A | {"service_tier": "batch"}, COST_A / 2, ANTHROPIC_PRICES),
    a(
        "fast mode that was asked for, and nothing is told",
        PLAIN_A,
        usd((10_000, 5.0), (1000, 25.0)),
        "https://platform.claude.com/docs/en/build-with-claude/fast-mode",
        "≤",
        model=OPUS,
        asked={"speed": "fast"},
    ),
    a(
        "fast mode that was asked for, and not given",
        PLAIN_A | {"speed": "standard"},
        usd((10_000, 5.0), (1000, 25.0)),
        "https://platform.claude.com/docs/en/build-with-claude/fast-mode",
        model=OPUS,
        asked={"speed": "fast"},
    ),
    a(
        "one lifetime is null",
        PLAIN_A
        | {
            "cache_creation_input_tokens": 40_000,
            "cache_creation": {
                "ephemeral_1h_input_tokens": 40_000,
                "ephemeral_5m_input_tokens": None,
            },
        },
        COST_A + usd((40_000, 2.0)),
        ANTHROPIC_CACHES,
    ),
    a(
        "all input is from a cache",
        {"input_tokens": 0, "cache_read_input_tokens": 50_000, "output_tokens": 1000},
        usd((50_000, 0.1), (1000, 5.0)),
        ANTHROPIC_CACHES,
    ),
    a(
        "a long request by its cache",
        {"input_tokens": 10_000, "cache_read_input_tokens": 200_000, "output_tokens": 1000},
        usd((10_000, 6.0), (200_000, 0.6), (1000, 22.5)),
        ANTHROPIC_PRICES,
        model="claude-sonnet-4-5",
    ),
    a("numbers with a point", {"input_tokens": 1e4, "output_tokens": 1e3}, COST_A, JSON),
    a(
        "a number that is true",
        {"input_tokens": True, "output_tokens": 1000},
        usd((20, 1.0), (1000, 5.0)),
        ANTHROPIC_PRICES,
        "≈",
    ),
    a("usage that is a list", [], usd((20, 1.0), (100, 5.0)), ANTHROPIC_PRICES, "≈", text=TEXT),
    a(
        "fetching pages",
        PLAIN_A | {"server_tool_use": {"web_fetch_requests": 3, "web_search_requests": 0}},
        COST_A,
        "https://platform.claude.com/docs/en/agents-and-tools/tool-use/web-fetch-tool",
    ),
    a(
        "a conversation that was compacted",
        PLAIN_A
        | {
            "iterations": [
                {"type": "compaction", "input_tokens": 50_000, "output_tokens": 2000},
                {"type": "message", **PLAIN_A},
            ]
        },
        COST_A + usd((50_000, 1.0), (2000, 5.0)),
        "https://platform.claude.com/docs/en/build-with-claude/compaction",
    ),
    a(
        "iterations of another form",
        PLAIN_A | {"iterations": [None, 5, {"type": "compaction", "input_tokens": "50000"}]},
        COST_A,
        ANTHROPIC_PRICES,
        "≥",
    ),
    a(
        "an advisor that reads from a cache",
        PLAIN_A
        | {
            "iterations": [
                {
                    "type": "advisor_message",
                    "model": OPUS,
                    "input_tokens": 1000,
                    "cache_read_input_tokens": 10_000,
                    "output_tokens": 100,
                }
            ]
        },
        COST_A + usd((1000, 5.0), (10_000, 0.5), (100, 25.0)),
        "https://platform.claude.com/docs/en/agents-and-tools/tool-use/advisor-tool",
    ),
    a(
        "caches without the input beside them",
        {"output_tokens": 1000, "cache_read_input_tokens": 50_000},
        usd((20, 1.0), (50_000, 0.1), (1000, 5.0)),
        ANTHROPIC_CACHES,
        "≥",
    ),
    a(
        "a lifetime of a part of what was written",
        PLAIN_A
        | {
            "cache_creation_input_tokens": 40_000,
            "cache_creation": {"ephemeral_5m_input_tokens": 10_000},
        },
        COST_A + usd((30_000, 2.0), (10_000, 1.25)),
        ANTHROPIC_CACHES,
        "≤",
    ),
    a(
        "a part of a token",
        PLAIN_A | {"cache_read_input_tokens": 12.5},
        COST_A,
        ANTHROPIC_CACHES,
        "≥",
    ),
    a(
        "searches of another form",
        PLAIN_A | {"server_tool_use": {"web_search_requests": "2"}},
        COST_A + 0.02,
        ANTHROPIC_PRICES,
        "≥",
    ),
    a(
        "only in the USA, in capitals",
        PLAIN_A | {"inference_geo": "US"},
        1.1 * COST_A,
        ANTHROPIC_PRICES,
    ),
    a(
        "fast mode by an alias",
        PLAIN_A | {"speed": "fast"},
        6 * usd((10_000, 5.0), (1000, 25.0)),
        "https://platform.claude.com/docs/en/build-with-claude/fast-mode",
        model="opus",
        served="claude-opus-4-6",
    ),
    a(
        "an advisor without a name",
        PLAIN_A | {"iterations": [{"type": "advisor_message", "input_tokens": 1000}]},
        COST_A + usd((1000, 5.0)),
        "https://platform.claude.com/docs/en/agents-and-tools/tool-use/advisor-tool",
        "≥",
    ),
    a(
        "an error without words, after the start",
        None,
        0.0,
        ANTHROPIC_ERRORS,
        "≤",
        streamed=(True,),
        body=stream(START_A, {"type": "error"}),
    ),
    a(
        "the caller's key, whose bill is not told",
        PLAIN_A | {"cost": 0.0007, "is_byok": True},
        COST_A + 0.0007,
        OPENROUTER,
        "≥",
    ),
    a(
        "an error after hidden thinking",
        None,
        usd((10_000, 1.0), (300, 5.0)),
        ANTHROPIC_ERRORS,
        "≥",
        streamed=(True,),
        body=a_error(START_A, block_a(type="redacted_thinking", data="QUJD" * 300)),
    ),
    a(
        "an error after the name of a tool",
        None,
        usd((10_000, 1.0), (40, 5.0)),
        ANTHROPIC_ERRORS,
        "≥",
        streamed=(True,),
        body=a_error(START_A, block_a(type="tool_use", name="ls", input={})),
    ),
    a(
        "an error after an empty block of text",
        None,
        usd((10_000, 1.0)),
        ANTHROPIC_ERRORS,
        "≤",
        streamed=(True,),
        body=a_error(START_A, block_a(type="text", text="")),
    ),
]

# ---- Chat Completions. GPT-5: 1.25 and 10 USD, from a cache 0.125; gpt-audio: 2.50 and 10, audio
# 32 and 64


def c(what: str, usage: Any, right: float, source: str, mark: Mark = "=", **more: Any) -> Row:
    return Row("openai-chat", what, more.pop("model", "gpt-5"), usage, right, source, mark, **more)


PLAIN_C = {"prompt_tokens": 100_000, "completion_tokens": 1000, "total_tokens": 101_000}
COST_C = usd((100_000, 1.25), (1000, 10.0))
SPOKEN = {
    "prompt_tokens": 19_600,
    "completion_tokens": 6000,
    "prompt_tokens_details": {"audio_tokens": 18_000, "text_tokens": 1600},
    "completion_tokens_details": {"audio_tokens": 4000, "text_tokens": 2000},
}
SPOKEN_COST = usd((1600, 2.5), (18_000, 32.0), (2000, 10.0), (4000, 64.0))


def cached(read: int, **details: Any) -> dict[str, Any]:
    return PLAIN_C | {"prompt_tokens_details": {"cached_tokens": read, **details}}


def c_in_choice(row: Row, _: bool) -> bytes:
    choice = {"index": 0, "delta": {}, "finish_reason": "stop", "usage": row.usage}
    return sse({"model": row.model, "choices": [choice]}, "[DONE]")


def c_in_groq(row: Row, _: bool) -> bytes:
    choice = {"index": 0, "delta": {}, "finish_reason": "stop"}
    return sse({"model": row.model, "choices": [choice], "x_groq": {"usage": row.usage}}, "[DONE]")


def c_before_the_end(row: Row, _: bool) -> bytes:
    """The usage comes first, and comes twice."""
    usage = {"model": row.model, "choices": [], "usage": row.usage}
    last = {"model": row.model, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    return sse(usage, usage, last, "[DONE]")


def c_no_choices(row: Row, _: bool) -> bytes:
    last = {"model": row.model, "choices": [{"index": 0, "delta": None, "finish_reason": "stop"}]}
    return sse(last, {"model": row.model, "choices": None, "usage": row.usage}, "[DONE]")


def c_error(*before: dict[str, Any]) -> Callable[[Row, bool], bytes]:
    error = {"error": {"message": "The server is overloaded", "type": "server_error", "code": 503}}
    return lambda _, streamed: sse(*before, error) if streamed else json.dumps(error).encode()


WORDS_C = {"model": "gpt-5", "choices": [{"index": 0, "delta": {"content": TEXT}}]}

ROLE_C = {"model": "gpt-5", "choices": [{"index": 0, "delta": {"role": "assistant"}}]}
ERROR_C = {"error": {"message": "Provider returned error", "code": 502}}


def said_c(**delta: Any) -> Callable[[Row, bool], bytes]:
    """An answer that breaks off with an error."""
    return stream({"model": "gpt-5", "choices": [{"index": 0, "delta": delta}]}, ERROR_C)


def grows_c(row: Row, _: bool) -> bytes:
    """As vLLM's `continuous_usage_stats`."""
    partly = [
        {
            "choices": [{"index": 0, "delta": {"content": "x"}}],
            "usage": row.usage | {"completion_tokens": n},
        }
        for n in (10, 500)
    ]
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": row.usage}
    return sse(*({"model": row.model} | each for each in (*partly, last)), "[DONE]")


SPEECH = {
    "messages": [
        {
            "role": "user",
            "content": [
                {
                    "type": "input_audio",
                    "input_audio": {"data": "QUJD" * 64_000, "format": "wav"},
                }
            ],
        }
    ]
}


def c_usages(*usages: dict[str, Any]) -> Callable[[Row, bool], bytes]:
    """Several chunks say what was used."""
    last = {"model": "gpt-5", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    told = ({"model": "gpt-5", "choices": [], "usage": usage} for usage in usages)
    return stream(WORDS_C, last, *told, "[DONE]")


def c_said(usage: dict[str, int], **delta: Any) -> Callable[[Row, bool], bytes]:
    """An answer that is not text."""
    said = {"choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}]}
    return stream(said, {"choices": [], "usage": usage}, "[DONE]")


CHAT_ROWS = [
    c("text", PLAIN_C, COST_C, OPENAI_PRICES),
    c(
        "read from a cache",
        cached(60_000),
        usd((40_000, 1.25), (60_000, 0.125), (1000, 10.0)),
        OPENAI_PRICES,
    ),
    c(
        "reasoning is in the output",
        PLAIN_C | {"completion_tokens_details": {"reasoning_tokens": 900}},
        COST_C,
        CHAT_OBJECT,
    ),
    c("audio in and out", SPOKEN, SPOKEN_COST, OPENAI_PRICES, model="gpt-audio"),
    c(
        "audio in",
        {
            "prompt_tokens": 18_000,
            "completion_tokens": 100,
            "prompt_tokens_details": {"audio_tokens": 17_000},
        },
        usd((1000, 2.5), (17_000, 32.0), (100, 10.0)),
        OPENAI_PRICES,
        model="gpt-audio",
    ),
    c(
        "audio out",
        {
            "prompt_tokens": 1000,
            "completion_tokens": 4100,
            "completion_tokens_details": {"audio_tokens": 4000},
        },
        usd((1000, 2.5), (100, 10.0), (4000, 64.0)),
        OPENAI_PRICES,
        model="gpt-audio",
    ),
    c(
        "audio from a cache",
        {
            "prompt_tokens": 20_000,
            "completion_tokens": 100,
            "prompt_tokens_details": {
                "audio_tokens": 15_000,
                "cached_tokens": 12_000,
                "cached_tokens_details": {"audio_tokens": 10_000, "text_tokens": 2000},
            },
        },
        usd((3000, 4.0), (2000, 0.4), (5000, 32.0), (10_000, 0.4), (100, 16.0)),
        OPENAI_PRICES,
        model="gpt-realtime",
    ),
    c(
        "a cache that may be audio",
        {
            "prompt_tokens": 20_000,
            "completion_tokens": 100,
            "prompt_tokens_details": {"audio_tokens": 15_000, "cached_tokens": 12_000},
        },
        usd((3000, 4.0), (2000, 0.4), (5000, 32.0), (10_000, 0.4), (100, 16.0)),
        OPENAI_PRICES,
        "≤",
        model="gpt-realtime",
    ),
    c(
        "audio of a model without a rate of it",
        {
            "prompt_tokens": 18_000,
            "completion_tokens": 100,
            "prompt_tokens_details": {"audio_tokens": 17_000},
        },
        usd((1000, 2.5), (17_000, 40.0), (100, 10.0)),
        OPENAI_PRICES,
        "≤",
        model="gpt-4o-audio-preview",
    ),
    c(
        "an image in",
        PLAIN_C | {"prompt_tokens_details": {"image_tokens": 50_000}},
        COST_C,
        "https://platform.openai.com/docs/guides/images-vision",
    ),
    c(
        "images out",
        {
            "prompt_tokens": 1000,
            "completion_tokens": 2680,
            "completion_tokens_details": {"image_tokens": 2580},
        },
        usd((1000, 0.3), (100, 2.5), (2580, 30.0)),
        GEMINI_PRICES,
        model="google/gemini-2.5-flash-image",
    ),
    c(
        "video in",
        {
            "prompt_tokens": 90_000,
            "completion_tokens": 100,
            "prompt_tokens_details": {"video_tokens": 80_000, "audio_tokens": 9000},
        },
        usd((81_000, 0.3), (9000, 1.0), (100, 2.5)),
        GEMINI_PRICES,
        model="google/gemini-2.5-flash",
    ),
    c(
        "a gpt-5-nano was asked for and gpt-5 has answered",
        PLAIN_C,
        COST_C,
        OPENAI_PRICES,
        model="gpt-5-nano",
        served="gpt-5",
    ),
    c(
        "gpt-5 was asked for and gpt-5-nano has answered",
        PLAIN_C,
        usd((100_000, 0.05), (1000, 0.4)),
        OPENAI_PRICES,
        "≤",
        served="gpt-5-nano",
    ),
    c(
        "a deployment's own name was asked for",
        PLAIN_C,
        usd((100_000, 0.25), (1000, 2.0)),
        "https://learn.microsoft.com/azure/ai-foundry/openai/reference",
        model="our-deployment",
        served="gpt-5-mini-2025-08-07",
    ),
    c(
        "a model of GLM without its maker",
        PLAIN_C,
        usd((100_000, 0.6), (1000, 2.2)),
        "https://docs.z.ai/guides/overview/pricing",
        model="glm-4.6",
    ),
    c(
        "a fine-tuned model",
        PLAIN_C,
        usd((100_000, 0.3), (1000, 1.2)),
        OPENAI_PRICES,
        model="ft:gpt-4o-mini-2024-07-18:me::id",
    ),
    c(
        "a retired model that another one answers for",
        PLAIN_C,
        usd((100_000, 1.0), (1000, 2.0)),
        "https://docs.x.ai/docs/migration/may-15-retirement",
        "≤",
        model="grok-code-fast-1",
    ),
    c(
        "credits",
        PLAIN_C | {"cost": 0.0321, "cost_details": {"upstream_inference_cost": None}},
        0.0321,
        OPENROUTER,
    ),
    c(
        "credits of an unknown model",
        PLAIN_C | {"cost": 0.0321},
        0.0321,
        OPENROUTER,
        model="vendor/new-model",
    ),
    c(
        "credits of a free model",
        PLAIN_C | {"cost": 0},
        0.0,
        OPENROUTER,
        model="vendor/new-model:free",
    ),
    c(
        "credits and the caller's key",
        PLAIN_C | {"cost": 0.95, "cost_details": {"upstream_inference_cost": 19}},
        19.95,
        OPENROUTER,
    ),
    c(
        "credits without the caller's key",
        PLAIN_C
        | {"cost": 0.02, "is_byok": False, "cost_details": {"upstream_inference_cost": 0.02}},
        0.02,
        OPENROUTER,
    ),
    c("a cost that is no number", PLAIN_C | {"cost": "free"}, COST_C, OPENROUTER),
    c("a cost below zero", PLAIN_C | {"cost": -1}, COST_C, OPENROUTER),
    c(
        "a cost with parts",
        PLAIN_C | {"cost": {"input_tokens_cost": 0.1, "request_cost": 0.005, "total_cost": 0.12}},
        0.12,
        PERPLEXITY,
        model="sonar-pro",
    ),
    c("ticks", PLAIN_C | {"cost_in_usd_ticks": 377_560_000}, 0.037756, XAI_COST, model="grok-4.3"),
    c(
        "reasoning beside the output",
        {
            "prompt_tokens": 1000,
            "completion_tokens": 100,
            "total_tokens": 1400,
            "completion_tokens_details": {"reasoning_tokens": 300},
        },
        usd((1000, 1.25), (400, 2.5)),
        XAI,
        model="grok-4.3",
    ),
    c(
        "a total that is more than its parts",
        {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1400},
        usd((1000, 0.3), (400, 2.5)),
        "https://ai.google.dev/gemini-api/docs/openai",
        "≤",
        model="gemini-2.5-flash",
    ),
    c(
        "hits of DeepSeek's cache",
        PLAIN_C | {"prompt_cache_hit_tokens": 60_000, "prompt_cache_miss_tokens": 40_000},
        usd((40_000, 0.27), (60_000, 0.13), (1000, 0.95)),
        DEEPSEEK,
        model="deepseek-v3.1-terminus",  # the price of newer ones depends on the hour
    ),
    c(
        "hits of Moonshot's cache",
        PLAIN_C | {"cached_tokens": 60_000},
        usd((40_000, 0.95), (60_000, 0.16), (1000, 4.0)),
        MOONSHOT,
        model="kimi-k2.6",
    ),
    c(
        "usage in a choice",
        PLAIN_C | {"cached_tokens": 60_000},
        usd((40_000, 0.95), (60_000, 0.16), (1000, 4.0)),
        MOONSHOT,
        model="kimi-k2.6",
        streamed=(True,),
        body=c_in_choice,
    ),
    c("usage in x_groq", PLAIN_C, COST_C, GROQ, streamed=(True,), body=c_in_groq),
    c(
        "hits of Mistral's cache",
        PLAIN_C | {"num_cached_tokens": 60_000},
        usd((40_000, 1.25), (60_000, 0.125), (1000, 10.0)),
        MISTRAL,
    ),
    c("seconds of audio", PLAIN_C | {"prompt_audio_seconds": 60}, COST_C + 0.001, MISTRAL, "≥"),
    c(
        "writes of LiteLLM",
        PLAIN_C
        | {
            "cache_read_input_tokens": 60_000,
            "cache_creation_input_tokens": 30_000,
            "prompt_tokens_details": {"cached_tokens": 60_000, "cache_creation_tokens": 30_000},
        },
        usd((10_000, 1.0), (60_000, 0.1), (30_000, 1.25), (1000, 5.0)),
        LITELLM,
        model=HAIKU,
    ),
    c(
        "writes of LiteLLM for an hour",
        PLAIN_C
        | {
            "prompt_tokens_details": {
                "cache_creation_tokens": 30_000,
                "cache_creation_token_details": {
                    "ephemeral_1h_input_tokens": 30_000,
                    "ephemeral_5m_input_tokens": 0,
                },
            }
        },
        usd((70_000, 1.0), (30_000, 2.0), (1000, 5.0)),
        LITELLM,
        model=HAIKU,
    ),
    c(
        "writes for an hour of which no lifetime is told",
        cached(0, cache_write_tokens=30_000),
        usd((70_000, 1.0), (30_000, 2.0), (1000, 5.0)),
        OPENROUTER,
        "≤",
        model=f"anthropic/{HAIKU}",
        asked={
            "messages": [
                {
                    "role": "system",
                    "content": [{"type": "text", "text": "x", "cache_control": HOUR}],
                }
            ]
        },
    ),
    c(
        "priority",
        PLAIN_C,
        2 * COST_C,
        "https://openai.com/api-priority-processing/",
        more={"service_tier": "priority"},
    ),
    c(
        "flex",
        PLAIN_C,
        COST_C / 2,
        "https://platform.openai.com/docs/guides/flex-processing",
        more={"service_tier": "flex"},
    ),
    c(
        "details that are null",
        PLAIN_C | {"prompt_tokens_details": None, "completion_tokens_details": None},
        COST_C,
        CHAT_OBJECT,
    ),
    c(
        "details that are an empty list",
        PLAIN_C | {"prompt_tokens_details": []},
        COST_C,
        CHAT_OBJECT,
    ),
    c(
        "details that are a list",
        PLAIN_C | {"prompt_tokens_details": [5]},
        COST_C,
        CHAT_OBJECT,
        "≈",
    ),
    c(
        "a cache beside an input that is null",
        {"prompt_tokens": None, "completion_tokens": 1000, "cached_tokens": 60_000},
        usd((60_000, 0.125), (20, 1.25), (1000, 10.0)),
        CHAT_OBJECT,
        "≈",
    ),
    c(
        "a total that is less than its parts",
        PLAIN_C | {"total_tokens": 51_000},
        usd((50_000, 1.25), (1000, 10.0)),
        CHAT_OBJECT,
        "≤",
    ),
    c(
        "audio out, and the output is only in the total",
        SPOKEN | {"completion_tokens": None, "total_tokens": 25_600},
        SPOKEN_COST,
        CHAT_OBJECT,
        "≤",
        model="gpt-audio",
    ),
    c(
        "audio in, of which nothing is told",
        {"prompt_tokens": 1000, "completion_tokens": 100},
        usd((200, 2.5), (800, 32.0), (100, 10.0)),
        CHAT_OBJECT,
        "≈",
        model="gpt-audio",
        asked=SPEECH,
    ),
    c(
        "audio out, of which nothing is told",
        None,
        usd((1000, 2.5), (25, 64.0), (75, 10.0)),
        CHAT_OBJECT,
        "≈",
        model="gpt-audio",
        streamed=(True,),
        body=c_said(
            {"prompt_tokens": 1000, "completion_tokens": 100}, audio={"data": "QUJD" * 16_000}
        ),
    ),
    c(
        "an image out, of which nothing is told",
        None,
        usd((1000, 0.3), (1300, 30.0)),
        "https://openrouter.ai/docs/features/multimodal/image-generation",
        "≈",
        model=f"google/{IMAGE_MODEL}",
        streamed=(True,),
        body=c_said(
            {"prompt_tokens": 1000, "completion_tokens": 1300}, images=[{"type": "image_url"}]
        ),
    ),
    c(
        "cached audio that is more than the audio",
        {
            "prompt_tokens": 1000,
            "completion_tokens": 10,
            "prompt_tokens_details": {
                "audio_tokens": 100,
                "cached_tokens": 800,
                "cached_tokens_details": {"audio_tokens": 700},
            },
        },
        usd((700, 0.4), (100, 0.4), (200, 4.0), (10, 16.0)),
        CHAT_OBJECT,
        "≈",
        model="gpt-realtime",
    ),
    c(
        "flex of Groq costs no less",
        PLAIN_C,
        usd((100_000, 0.15), (1000, 0.6)),
        GROQ_FLEX,
        "≤",
        model="openai/gpt-oss-120b",
        url="https://api.groq.com/openai/v1",
        more={"service_tier": "flex"},
    ),
    c(
        "flex of OpenAI",
        PLAIN_C,
        COST_C / 2,
        OPENAI_PRICES,
        url="https://api.openai.com/v1",
        more={"service_tier": "flex"},
    ),
    c(
        "searches of LiteLLM",
        PLAIN_C | {"server_tool_use": {"web_search_requests": 2}},
        COST_C + 0.02,
        LITELLM,
        "≤",
    ),
    c(
        "a part of the usage is repeated after the cost",
        None,
        0.7,
        OPENROUTER,
        streamed=(True,),
        body=c_usages(PLAIN_C | {"cost": 0.7}, PLAIN_C),
    ),
    c(
        "zeros are repeated after the usage",
        None,
        COST_C,
        CHAT_OBJECT,
        streamed=(True,),
        body=c_usages(PLAIN_C, dict.fromkeys(PLAIN_C, 0)),
    ),
    c(
        "the caller's key, whose bill is not told",
        PLAIN_C | {"cost": 0.0067, "is_byok": True, "cost_details": None},
        COST_C + 0.0067,
        OPENROUTER,
        "≥",
    ),
    c(
        "the caller's key, whose bill is negative",
        PLAIN_C
        | {"cost": 0.0067, "is_byok": True, "cost_details": {"upstream_inference_cost": -1}},
        COST_C + 0.0067,
        OPENROUTER,
        "≥",
    ),
    c(
        "the caller's key, and a fee of another form",
        PLAIN_C | {"cost": [], "is_byok": True, "cost_details": {"upstream_inference_cost": 0.3}},
        0.315,
        OPENROUTER,
        "≥",
    ),
    c("input that is null", PLAIN_C | {"prompt_tokens": None}, COST_C, CHAT_OBJECT),
    c(
        "output that is negative",
        PLAIN_C | {"completion_tokens": -7, "total_tokens": None},
        usd((100_000, 1.25), (100, 10.0)),
        CHAT_OBJECT,
        "≥",
        text=TEXT,
    ),
    c(
        "usage before the last words, and twice",
        PLAIN_C,
        COST_C,
        CHAT_OBJECT,
        streamed=(True,),
        body=c_before_the_end,
    ),
    c("no list of choices", PLAIN_C, COST_C, CHAT_OBJECT, streamed=(True,), body=c_no_choices),
    c(
        "an error before any output",
        None,
        0.0,
        "https://platform.openai.com/docs/guides/error-codes",
        "≥",
        body=c_error(),
    ),
    c(
        "an error after words",
        None,
        usd((20, 1.25), (100, 10.0)),
        "https://openrouter.ai/docs/api-reference/streaming",
        "≈",
        streamed=(True,),
        body=c_error(WORDS_C),
    ),
    c(
        "usage that grows",
        PLAIN_C,
        COST_C,
        "https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html",
        streamed=(True,),
        body=grows_c,
    ),
    c(
        "predictions that were rejected are in the output",
        PLAIN_C | {"completion_tokens_details": {"rejected_prediction_tokens": 700}},
        COST_C,
        "https://platform.openai.com/docs/guides/predicted-outputs",
    ),
    c(
        "the caller's key without a fee",
        PLAIN_C | {"cost": 0, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.3}},
        0.3,
        OPENROUTER,
    ),
    c(
        "the caller's key, and a fee that is null",
        PLAIN_C | {"cost": None, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.3}},
        0.3,
        OPENROUTER,
    ),
    c(
        "a cost that is written as a text",
        PLAIN_C | {"cost": "0.0321"},
        0.0321,
        "https://vercel.com/docs/ai-gateway",
        model="vendor/new-model",
    ),
    c(
        "a cost that is written with an exponent",
        PLAIN_C | {"cost": "3.21e-05"},
        0.0000321,
        "https://vercel.com/docs/ai-gateway",
    ),
    c(
        "a cache beside the input, as the total confirms",
        {
            "prompt_tokens": 10_000,
            "completion_tokens": 1000,
            "total_tokens": 101_000,
            "cache_read_input_tokens": 90_000,
        },
        usd((10_000, 1.0), (90_000, 0.1), (1000, 5.0)),
        LITELLM,
        model=HAIKU,
    ),
    c(
        "a cache that is larger than the input",
        {
            "prompt_tokens": 10_000,
            "completion_tokens": 1000,
            "prompt_tokens_details": {"cached_tokens": 90_000},
        },
        usd((10_000, 1.25), (90_000, 0.125), (1000, 10.0)),
        LITELLM,
        "≤",
    ),
    c(
        "a written cache that is larger than the input",
        {"prompt_tokens": 10, "completion_tokens": 1000, "cache_creation_input_tokens": 90_000},
        usd((10, 1.0), (90_000, 1.25), (1000, 5.0)),
        LITELLM,
        "≤",
        model=HAIKU,
    ),
    c(
        "what was written is told as read, too",
        PLAIN_C
        | {
            "prompt_tokens_details": {
                "cached_tokens": 90_000,
                "cache_creation_input_tokens": 90_000,
            }
        },
        usd((10_000, 1.0), (90_000, 1.25), (1000, 5.0)),
        LITELLM,
        "≤",
        model=HAIKU,
    ),
    c(
        "writes to Alibaba's cache",
        PLAIN_C
        | {
            "prompt_tokens_details": {
                "cached_tokens": 60_000,
                "cache_creation_input_tokens": 30_000,
                "cache_creation": {"ephemeral_5m_input_tokens": 30_000},
                "cache_type": "ephemeral",
            }
        },
        usd((10_000, 1.8), (60_000, 0.36), (30_000, 2.25), (1000, 9.0)),
        QWEN_CACHE,
        model="qwen3-coder-plus",
    ),
    c(
        "reasoning that is more than the output, without a total",
        {
            "prompt_tokens": 1000,
            "completion_tokens": 100,
            "completion_tokens_details": {"reasoning_tokens": 900},
        },
        usd((1000, 1.25), (1000, 2.5)),
        XAI,
        "≤",
        model="grok-4.3",
    ),
    c(
        "sources that xAI has searched",
        PLAIN_C | {"num_sources_used": 10},
        usd((100_000, 1.25), (1000, 2.5)) + 0.25,
        "https://docs.x.ai/docs/models#tools-pricing",
        "≥",
        model="grok-4.3",
    ),
    c(
        "tools of xAI in its ticks",
        PLAIN_C | {"num_server_side_tools_used": 3, "cost_in_usd_ticks": 377_560_000},
        0.037756,
        XAI_COST,
        model="grok-4.3",
    ),
    c(
        "a model that searches",
        PLAIN_C,
        usd((100_000, 2.5), (1000, 10.0)) + 0.025,
        OPENAI_PRICES,
        "≤",
        model="gpt-4o-search-preview",
    ),
    c(
        "Perplexity's fee for a request",
        PLAIN_C | {"search_context_size": "high"},
        usd((100_000, 1.0), (1000, 1.0)) + 0.012,
        PERPLEXITY_PRICES,
        "≤",
        model="sonar",
        url="https://api.perplexity.ai",
    ),
    c(
        "an answer that cites the web",
        PLAIN_C,
        COST_C + 0.02,
        "https://openrouter.ai/docs/features/web-search",
        "≤",
        model="openai/gpt-5",
        streamed=(True,),
        body=lambda row, _: (
            sse(
                {
                    "model": "openai/gpt-5",
                    "choices": [{"index": 0, "delta": {"annotations": [{"type": "url_citation"}]}}],
                }
            )
            + chat(row, True)
        ),
    ),
    c(
        "priority that was asked for, and nothing is told",
        PLAIN_C,
        COST_C,
        "https://openai.com/api-priority-processing/",
        "≤",
        asked={"service_tier": "priority"},
    ),
    c(
        "priority that was asked for, and not given",
        PLAIN_C,
        COST_C,
        "https://openai.com/api-priority-processing/",
        asked={"service_tier": "priority"},
        more={"service_tier": "default"},
    ),
    c(
        "flex that was asked for, and null is told",
        PLAIN_C,
        COST_C / 2,
        "https://platform.openai.com/docs/guides/flex-processing",
        "≤",
        asked={"service_tier": "flex"},
        more={"service_tier": None},
    ),
    c(
        "audio that is more than the input",
        {
            "prompt_tokens": 1000,
            "completion_tokens": 100,
            "prompt_tokens_details": {"audio_tokens": 5000},
        },
        usd((1000, 32.0), (100, 10.0)),
        CHAT_OBJECT,
        "≤",
        model="gpt-audio",
    ),
    c("empty usage", {}, usd((20, 1.25), (100, 10.0)), CHAT_OBJECT, "≈", text=TEXT),
    c(
        "usage of zeros",
        {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        usd((20, 1.25), (100, 10.0)),
        CHAT_OBJECT,
        "≈",
        text=TEXT,
    ),
    c(
        "NaN beside the usage",
        PLAIN_C,
        COST_C,
        JSON,
        change=instead(b'"index": 0', b'"index": 0, "logprobs": NaN'),
    ),
    c(
        "a number beyond a float in the usage",
        PLAIN_C,
        COST_C,
        JSON,
        change=instead(b'"prompt_tokens"', b'"x": 1e999, "y": -Infinity, "prompt_tokens"'),
    ),
    c("a tab in a text", PLAIN_C, COST_C, JSON, change=instead(b"Hello.", b"Hel\tlo.")),
    c("Latin-1 in a text", PLAIN_C, COST_C, JSON, change=instead(b"Hello.", b"Hell\xf4.")),
    c(
        "data in two lines",
        PLAIN_C,
        COST_C,
        SSE,
        streamed=(True,),
        change=instead(b', "usage"', b',\ndata: "usage"'),
    ),
    c(
        "two content encodings",
        PLAIN_C,
        COST_C,
        "https://www.rfc-editor.org/rfc/rfc9110#section-8.4",
        encoding="gzip, br",
        change=lambda body: brotli.compress(gzip.compress(body)),
    ),
    c(
        "two gzip members",
        PLAIN_C,
        COST_C,
        "https://www.rfc-editor.org/rfc/rfc1952",
        encoding="x-gzip",
        change=lambda body: gzip.compress(body[:50]) + gzip.compress(body[50:]),
    ),
    c(
        "an error after the role",
        None,
        0.0,
        "https://openrouter.ai/docs/api-reference/errors",
        "≥",
        streamed=(True,),
        body=stream(ROLE_C, ERROR_C),
    ),
    c(
        "an error after details of thinking",
        None,
        usd((20, 1.25), (100, 10.0)),
        "https://openrouter.ai/docs/use-cases/reasoning-tokens",
        "≈",
        streamed=(True,),
        body=said_c(reasoning_details=[{"type": "reasoning.text", "text": TEXT}]),
    ),
    c(
        "an error after hidden thinking",
        None,
        usd((20, 1.25), (300, 10.0)),
        "https://openrouter.ai/docs/use-cases/reasoning-tokens",
        "≈",
        streamed=(True,),
        body=said_c(reasoning_details=[{"type": "reasoning.encrypted", "data": "QUJD" * 300}]),
    ),
    c(
        "an error after parts of content",
        None,
        usd((20, 1.25), (100, 10.0)),
        "https://docs.mistral.ai/capabilities/reasoning",
        "≈",
        streamed=(True,),
        body=said_c(content=[{"type": "thinking", "thinking": [{"type": "text", "text": TEXT}]}]),
    ),
    c(
        "an error after thinking in two fields",
        None,
        usd((20, 1.25), (100, 10.0)),
        "https://docs.vllm.ai/en/latest/features/reasoning_outputs.html",
        "≈",
        streamed=(True,),
        body=said_c(reasoning=TEXT, reasoning_content=TEXT),
    ),
    c(
        "an error after the name of a tool",
        None,
        usd((20, 1.25), (40, 10.0)),
        "https://openrouter.ai/docs/api-reference/errors",
        "≈",
        streamed=(True,),
        body=said_c(tool_calls=[{"index": 0, "function": {"name": "ls", "arguments": ""}}]),
    ),
]

# ---- Responses


def r(what: str, usage: Any, right: float, source: str, mark: Mark = "=", **more: Any) -> Row:
    model = more.pop("model", "gpt-5")
    return Row("openai-responses", what, model, usage, right, source, mark, **more)


PLAIN_R = {"input_tokens": 100_000, "output_tokens": 1000, "total_tokens": 101_000}


def calls(*actions: Any) -> dict[str, Any]:
    return {"output": [{"type": "web_search_call", "action": action} for action in actions]}


def r_error(event: dict[str, Any], *before: dict[str, Any]) -> Callable[[Row, bool], bytes]:
    return lambda _, streamed: sse(*before, event) if streamed else json.dumps(event).encode()


FAILED_RESPONSE: dict[str, Any] = {
    "model": "gpt-5",
    "status": "failed",
    "error": {"code": "server_error", "message": "x"},
    "usage": None,
    "output": [],
}
FAILED = {"type": "response.failed", "response": FAILED_RESPONSE}
CREATED = {"type": "response.created", "response": {"model": "gpt-5", "usage": None, "output": []}}
WORDS_R = {"type": "response.output_text.delta", "delta": TEXT}

RESPONSES_ROWS = [
    r("text", PLAIN_R, COST_C, OPENAI_PRICES),
    r(
        "read from a cache",
        PLAIN_R | {"input_tokens_details": {"cached_tokens": 60_000}},
        usd((40_000, 1.25), (60_000, 0.125), (1000, 10.0)),
        OPENAI_PRICES,
    ),
    r(
        "reasoning is in the output",
        PLAIN_R | {"output_tokens_details": {"reasoning_tokens": 900}},
        COST_C,
        RESPONSE_OBJECT,
    ),
    r(
        "audio in and out",
        {
            "input_tokens": 19_600,
            "output_tokens": 6000,
            "input_tokens_details": SPOKEN["prompt_tokens_details"],
            "output_tokens_details": SPOKEN["completion_tokens_details"],
        },
        SPOKEN_COST,
        OPENAI_PRICES,
        model="gpt-audio",
    ),
    r(
        "images in",
        {
            "input_tokens": 6000,
            "output_tokens": 100,
            "input_tokens_details": {"image_tokens": 5000, "text_tokens": 1000},
        },
        usd((1000, 5.0), (5000, 10.0), (100, 40.0)),
        OPENAI_PRICES,
        model="gpt-image-1",
    ),
    r(
        "images in at the rate of text",
        PLAIN_R | {"input_tokens_details": {"image_tokens": 50_000}},
        COST_C,
        "https://platform.openai.com/docs/guides/images-vision",
    ),
    r(
        "images out",
        {
            "input_tokens": 1000,
            "output_tokens": 4100,
            "output_tokens_details": {"image_tokens": 4000, "text_tokens": 100},
        },
        usd((1000, 5.0), (100, 10.0), (4000, 32.0)),
        OPENAI_PRICES,
        model="gpt-image-1.5",
    ),
    r(
        "a dearer model has answered",
        PLAIN_R,
        COST_C,
        OPENAI_PRICES,
        model="gpt-5-nano",
        served="gpt-5-2025-08-07",
    ),
    r(
        "a cheaper model has answered",
        PLAIN_R,
        usd((100_000, 0.05), (1000, 0.4)),
        OPENAI_PRICES,
        "≤",
        served="gpt-5-nano",
    ),
    r(
        "a deployment's own name was asked for",
        PLAIN_R,
        usd((100_000, 0.25), (1000, 2.0)),
        "https://learn.microsoft.com/azure/ai-foundry/openai/reference",
        model="our-deployment",
        served="gpt-5-mini",
    ),
    r("credits", PLAIN_R | {"cost": 0.0321}, 0.0321, OPENROUTER),
    r(
        "credits and the caller's key",
        PLAIN_R
        | {"cost": 0.001, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.02}},
        0.021,
        OPENROUTER,
    ),
    r("ticks", PLAIN_R | {"cost_in_usd_ticks": 377_560_000}, 0.037756, XAI_COST, model="grok-4.3"),
    r(
        "writes to a cache",
        PLAIN_R | {"input_tokens_details": {"cached_tokens": 60_000, "cache_write_tokens": 30_000}},
        usd((10_000, 1.0), (60_000, 0.1), (30_000, 1.25), (1000, 5.0)),
        OPENROUTER,
        model=f"anthropic/{HAIKU}",
    ),
    r(
        "priority",
        PLAIN_R,
        2 * COST_C,
        "https://openai.com/api-priority-processing/",
        more={"service_tier": "priority"},
    ),
    r(
        "a search",
        PLAIN_R,
        COST_C + 0.01,
        OPENAI_SEARCH,
        more=calls({"type": "search", "query": "x"}),
    ),
    r("a search without an action", PLAIN_R, COST_C + 0.01, OPENAI_SEARCH, more=calls(None)),
    r(
        "a page that is opened, and searched",
        PLAIN_R,
        COST_C + 0.01,
        OPENAI_SEARCH,
        more=calls(
            {"type": "search"},
            {"type": "open_page", "url": "x"},
            {"type": "find_in_page", "pattern": "x"},
            {"type": "find"},
        ),
    ),
    r(
        "an image that is made",
        PLAIN_R,
        COST_C + 0.04,
        OPENAI_PRICES,
        "≤",
        more={"output": [{"type": "image_generation_call", "result": "QUJD"}]},
    ),
    r(
        "a search that has failed",
        PLAIN_R,
        COST_C,
        OPENAI_SEARCH,
        "≤",
        more={"output": [{"type": "web_search_call", "status": "failed"}]},
    ),
    r("details that are null", PLAIN_R | {"input_tokens_details": None}, COST_C, RESPONSE_OBJECT),
    r(
        "a cache of another type",
        PLAIN_R | {"input_tokens_details": {"cached_tokens": "60000"}},
        usd((40_000, 1.25), (60_000, 0.125), (1000, 10.0)),
        RESPONSE_OBJECT,
        "≈",
    ),
    r(
        "a negative input",
        PLAIN_R | {"input_tokens": -1, "total_tokens": None},
        usd((20, 1.25), (1000, 10.0)),
        RESPONSE_OBJECT,
        "≈",
    ),
    r(
        "output that is a text",
        PLAIN_R | {"output_tokens": "1000", "total_tokens": None},
        usd((100_000, 1.25), (100, 10.0)),
        RESPONSE_OBJECT,
        "≥",
        text=TEXT,
    ),
    r(
        "an item of another form",
        PLAIN_R,
        COST_C,
        RESPONSE_OBJECT,
        more={"output": [5, {"type": None}, {"type": "message", "content": "x"}]},
    ),
    r(
        "an error before any output",
        None,
        0.0,
        "https://platform.openai.com/docs/guides/error-codes",
        "≥",
        streamed=(True,),
        body=r_error({"type": "error", "code": "server_error", "message": "overloaded"}),
    ),
    r(
        "a response that has failed",
        None,
        0.0,
        RESPONSE_OBJECT,
        "≥",
        streamed=(True,),
        body=r_error(FAILED, CREATED),
    ),
    r(
        "a whole response that has failed",
        None,
        0.0,
        RESPONSE_OBJECT,
        "≥",
        streamed=(False,),
        body=r_error(FAILED_RESPONSE),
    ),
    r(
        "a response that has failed after words",
        None,
        usd((20, 1.25), (100, 10.0)),
        RESPONSE_OBJECT,
        "≈",
        streamed=(True,),
        body=r_error(FAILED, CREATED, WORDS_R),
    ),
    r(
        "a response that is incomplete",
        PLAIN_R,
        COST_C,
        RESPONSE_OBJECT,
        more={"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
    ),
    r(
        "a response that has failed and says its usage",
        None,
        COST_C,
        RESPONSE_OBJECT,
        streamed=(True,),
        body=stream(
            CREATED,
            WORDS_R,
            {"type": "response.failed", "response": FAILED_RESPONSE | {"usage": PLAIN_R}},
        ),
    ),
    r(
        "the end comes twice, the second time without usage",
        None,
        COST_C,
        RESPONSE_OBJECT,
        streamed=(True,),
        body=stream(
            WORDS_R,
            {
                "type": "response.completed",
                "response": FAILED_RESPONSE | {"error": None, "usage": PLAIN_R},
            },
            {"type": "response.completed", "response": FAILED_RESPONSE | {"error": None}},
        ),
    ),
    r(
        "usage that is null at the end",
        None,
        usd((20, 1.25), (100, 10.0)),
        RESPONSE_OBJECT,
        "≈",
        text=TEXT,
    ),
    r(
        "a cache beside the input",
        {"input_tokens": 10_000, "output_tokens": 1000, "cache_read_input_tokens": 90_000},
        usd((10_000, 1.0), (90_000, 0.1), (1000, 5.0)),
        LITELLM,
        "≤",
        model=HAIKU,
    ),
    r(
        "reasoning that is more than the output, without a total",
        {
            "input_tokens": 1000,
            "output_tokens": 100,
            "output_tokens_details": {"reasoning_tokens": 900},
        },
        usd((1000, 1.25), (1000, 2.5)),
        XAI,
        "≤",
        model="grok-4.3",
    ),
    r(
        "a search in preview of a model that does not reason",
        PLAIN_R,
        usd((100_000, 2.0), (1000, 8.0)) + 0.025,
        OPENAI_PRICES,
        "≤",
        model="gpt-4.1",
        asked={"tools": [{"type": "web_search_preview"}]},
        more=calls({"type": "search"}),
    ),
    r(
        "a search in files",
        PLAIN_R,
        COST_C + 0.0025,
        OPENAI_PRICES,
        more={"output": [{"type": "file_search_call"}]},
    ),
    r(
        "two uses of a container",
        PLAIN_R,
        COST_C + 0.03,
        OPENAI_PRICES,
        "≤",
        more={"output": [{"type": "code_interpreter_call"}] * 2},
    ),
    r(
        "flex",
        PLAIN_R,
        COST_C / 2,
        "https://platform.openai.com/docs/guides/flex-processing",
        asked={"service_tier": "flex"},
        more={"service_tier": "flex"},
    ),
    r(
        "priority that was asked for, and nothing is told",
        PLAIN_R,
        COST_C,
        "https://openai.com/api-priority-processing/",
        "≤",
        asked={"service_tier": "priority"},
    ),
    r(
        "an error after words without deltas",
        None,
        usd((20, 1.25), (100, 10.0)),
        RESPONSE_OBJECT,
        "≈",
        streamed=(True,),
        body=r_error(FAILED, CREATED, {"type": "response.output_text.done", "text": TEXT}),
    ),
    r(
        "an error after a part of an image",
        None,
        usd((20, 1.25), (100, 10.0)),
        "https://platform.openai.com/docs/guides/image-generation",
        "≈",
        streamed=(True,),
        body=r_error(FAILED, CREATED, {"type": "response.image_generation_call.partial_image"}),
    ),
]

# ---- Gemini. 2.5 Flash: 0.30 and 2.50 USD, audio 1.00; from a cache 0.03, audio 0.10

FLASH = "gemini-2.5-flash"


def g(what: str, usage: Any, right: float, source: str, mark: Mark = "=", **more: Any) -> Row:
    return Row("gemini", what, more.pop("model", FLASH), usage, right, source, mark, **more)


def by(**told: int) -> list[dict[str, Any]]:
    return [{"modality": mode.upper(), "tokenCount": count} for mode, count in told.items()]


PLAIN_G = {"promptTokenCount": 100_000, "candidatesTokenCount": 1000}
COST_G = usd((100_000, 0.3), (1000, 2.5))


def g_array(row: Row, _: bool) -> bytes:
    """A stream that was not asked for as events."""
    first = {"candidates": [{"content": {"parts": [{"text": row.text}]}}]}
    last = {"candidates": [{"finishReason": "STOP"}], "usageMetadata": row.usage}
    return json.dumps([first, last | {"modelVersion": row.model}], indent=2).encode()


def g_error(*before: dict[str, Any]) -> Callable[[Row, bool], bytes]:
    error = {"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}}
    return lambda _, streamed: sse(*before, error) if streamed else json.dumps(error).encode()


WORDS_G = {
    "candidates": [{"content": {"parts": [{"text": TEXT}]}}],
    "usageMetadata": {"promptTokenCount": 100_000},
}

WAITS_G = {"promptTokenCount": 100_000}


def part_g(usage: Any = WAITS_G, **part: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"parts": [part]}}], "usageMetadata": usage}


def g_image(row: Row, _: bool) -> bytes:
    blob = part_g(row.usage, inlineData={"mimeType": "image/png", "data": "QUJD"})
    return sse(blob, {"candidates": [{"finishReason": "STOP"}], "usageMetadata": row.usage})


GEMINI_ROWS = [
    g("text", PLAIN_G, COST_G, GEMINI_PRICES),
    g(
        "audio in",
        {
            "promptTokenCount": 200_000,
            "candidatesTokenCount": 2,
            "promptTokensDetails": by(audio=199_000, text=1000),
        },
        usd((1000, 0.3), (199_000, 1.0), (2, 2.5)),
        GEMINI_PRICES,
    ),
    g(
        "images out",
        {
            "promptTokenCount": 100,
            "candidatesTokenCount": 12_900,
            "candidatesTokensDetails": by(image=12_900),
        },
        usd((100, 0.3), (12_900, 30.0)),
        GEMINI_PRICES,
        model=IMAGE_MODEL,
    ),
    g(
        "images and text out",
        {
            "promptTokenCount": 100,
            "candidatesTokenCount": 1390,
            "candidatesTokensDetails": by(image=1290, text=100),
        },
        usd((100, 0.3), (100, 2.5), (1290, 30.0)),
        GEMINI_PRICES,
        model=IMAGE_MODEL,
    ),
    g(
        "an image in",
        PLAIN_G | {"promptTokensDetails": by(image=50_000, text=50_000)},
        COST_G,
        GEMINI_PRICES,
    ),
    g(
        "video in",
        PLAIN_G | {"promptTokensDetails": by(video=80_000, audio=10_000, text=10_000)},
        usd((90_000, 0.3), (10_000, 1.0), (1000, 2.5)),
        GEMINI_PRICES,
    ),
    g(
        "a document in",
        PLAIN_G | {"promptTokensDetails": by(document=90_000, text=10_000)},
        COST_G,
        GEMINI_PRICES,
    ),
    g(
        "read from a cache",
        PLAIN_G | {"cachedContentTokenCount": 60_000},
        usd((40_000, 0.3), (60_000, 0.03), (1000, 2.5)),
        GEMINI_PRICES,
    ),
    g(
        "audio from a cache",
        PLAIN_G
        | {
            "cachedContentTokenCount": 60_000,
            "promptTokensDetails": by(audio=80_000, text=20_000),
            "cacheTokensDetails": by(audio=50_000, text=10_000),
        },
        usd((10_000, 0.3), (10_000, 0.03), (30_000, 1.0), (50_000, 0.1), (1000, 2.5)),
        GEMINI_PRICES,
    ),
    g(
        "a cache that may be audio",
        PLAIN_G
        | {"cachedContentTokenCount": 60_000, "promptTokensDetails": by(audio=80_000, text=20_000)},
        usd((10_000, 0.3), (10_000, 0.03), (30_000, 1.0), (50_000, 0.1), (1000, 2.5)),
        GEMINI_PRICES,
        "≤",
    ),
    g(
        "thoughts",
        PLAIN_G | {"thoughtsTokenCount": 500, "totalTokenCount": 101_500},
        COST_G + usd((500, 2.5)),
        GEMINI_USAGE,
    ),
    g(
        "a tool's input",
        PLAIN_G | {"toolUsePromptTokenCount": 7000, "totalTokenCount": 108_000},
        COST_G + usd((7000, 0.3)),
        GEMINI_USAGE,
    ),
    g(
        "a tool's audio",
        PLAIN_G | {"toolUsePromptTokenCount": 7000, "toolUsePromptTokensDetails": by(audio=7000)},
        COST_G + usd((7000, 1.0)),
        GEMINI_USAGE,
    ),
    g(
        "a total that is more than its parts",
        PLAIN_G | {"totalTokenCount": 101_400},
        COST_G + usd((400, 2.5)),
        GEMINI_USAGE,
        "≤",
    ),
    g(
        "a long request",
        {"promptTokenCount": 300_000, "candidatesTokenCount": 1000},
        usd((300_000, 2.5), (1000, 15.0)),
        GEMINI_PRICES,
        model="gemini-2.5-pro",
    ),
    g(
        "speech of a model without a rate of it",
        {
            "promptTokenCount": 1000,
            "candidatesTokenCount": 5000,
            "candidatesTokensDetails": by(audio=5000),
        },
        usd((1000, 0.5), (5000, 10.0)),
        GEMINI_PRICES,
        "≤",
        model="gemini-2.5-flash-preview-tts",
    ),
    g(
        "a dearer model has answered",
        PLAIN_G,
        usd((100_000, 1.25), (1000, 10.0)),
        GEMINI_PRICES,
        served="gemini-2.5-pro",
    ),
    g(
        "a cheaper model has answered",
        PLAIN_G,
        COST_G,
        GEMINI_PRICES,
        "≤",
        model="gemini-2.5-pro",
        served=FLASH,
    ),
    g(
        "another name of the model was asked for",
        PLAIN_G,
        COST_G,
        GEMINI_PRICES,
        model="our-model",
        served=FLASH,
    ),
    g(
        "a search",
        PLAIN_G,
        COST_G,
        GEMINI_PRICES,
        "≤",
        more={"groundingMetadata": {"webSearchQueries": ["a"]}},
    ),
    g("an array", PLAIN_G, COST_G, GEMINI_USAGE, streamed=(False,), body=g_array),
    g(
        "details that are null",
        PLAIN_G | {"promptTokensDetails": None, "cachedContentTokenCount": None},
        COST_G,
        GEMINI_USAGE,
    ),
    g(
        "details of another form",
        PLAIN_G | {"promptTokensDetails": {"AUDIO": 5}},
        COST_G,
        GEMINI_USAGE,
        "≥",
    ),
    g(
        "one detail of another form",
        PLAIN_G
        | {"promptTokensDetails": [5, *by(audio=10_000), {"modality": "AUDIO", "tokenCount": "x"}]},
        usd((90_000, 0.3), (10_000, 1.0), (1000, 2.5)),
        GEMINI_USAGE,
        "≥",
    ),
    g(
        "a detail that is a text",
        PLAIN_G | {"promptTokensDetails": ["AUDIO", *by(text=90_000)]},
        usd((90_000, 0.3), (10_000, 1.0), (1000, 2.5)),
        GEMINI_USAGE,
        "≥",
    ),
    g(
        "a cache that cannot be read",
        PLAIN_G | {"cachedContentTokenCount": "60000"},
        usd((40_000, 0.3), (60_000, 0.03), (1000, 2.5)),
        GEMINI_USAGE,
        "≈",
    ),
    g(
        "a cache of which one detail cannot be read",
        PLAIN_G
        | {
            "promptTokensDetails": by(audio=30_000, text=70_000),
            "cachedContentTokenCount": 60_000,
            "cacheTokensDetails": [{"modality": "AUDIO", "tokenCount": "x"}, *by(text=40_000)],
        },
        usd((30_000, 0.3), (40_000, 0.03), (10_000, 1.0), (20_000, 0.1), (1000, 2.5)),
        GEMINI_USAGE,
        "≈",
    ),
    g(
        "cached audio that is more than the audio",
        PLAIN_G
        | {
            "promptTokensDetails": by(audio=10_000, text=90_000),
            "cachedContentTokenCount": 60_000,
            "cacheTokensDetails": by(audio=50_000, text=10_000),
        },
        usd((40_000, 0.3), (10_000, 0.03), (50_000, 0.1), (1000, 2.5)),
        GEMINI_USAGE,
        "≈",
    ),
    g(
        "details of a cache whose size is not told",
        PLAIN_G | {"promptTokensDetails": by(audio=100_000), "cacheTokensDetails": by(audio=100)},
        usd((99_900, 1.0), (100, 0.1), (1000, 2.5)),
        GEMINI_USAGE,
        "≈",
    ),
    g(
        "an image out, of which nothing is told",
        {"promptTokenCount": 1000, "candidatesTokenCount": 1300},
        usd((1000, 0.3), (1300, 30.0)),
        GEMINI_PRICES,
        "≈",
        model=IMAGE_MODEL,
        streamed=(True,),
        body=g_image,
    ),
    g(
        "priority of Vertex AI",
        PLAIN_G | {"trafficType": "ON_DEMAND_PRIORITY"},
        2 * COST_G,
        VERTEX_TIERS,
    ),
    g("flex of Vertex AI", PLAIN_G | {"trafficType": "ON_DEMAND_FLEX"}, COST_G / 2, VERTEX_TIERS),
    g(
        "input that is a text",
        PLAIN_G | {"promptTokenCount": "x"},
        usd((20, 0.3), (1000, 2.5)),
        GEMINI_USAGE,
        "≈",
    ),
    g(
        "output that is missing",
        {"promptTokenCount": 100_000},
        usd((100_000, 0.3), (100, 2.5)),
        GEMINI_USAGE,
        "≥",
        text=TEXT,
    ),
    g(
        "output that is negative",
        PLAIN_G | {"candidatesTokenCount": -5},
        usd((100_000, 0.3), (100, 2.5)),
        GEMINI_USAGE,
        "≥",
        text=TEXT,
    ),
    g(
        "an error before any output",
        None,
        0.0,
        "https://ai.google.dev/gemini-api/docs/troubleshooting",
        "≥",
        body=g_error(),
    ),
    g(
        "an error after words",
        None,
        usd((100_000, 0.3), (100, 2.5)),
        "https://ai.google.dev/gemini-api/docs/troubleshooting",
        "≥",
        streamed=(True,),
        body=g_error(WORDS_G),
    ),
    g(
        "200 000 tokens are no long request",
        {"promptTokenCount": 200_000, "candidatesTokenCount": 1000},
        usd((200_000, 1.25), (1000, 10.0)),
        GEMINI_PRICES,
        model="gemini-2.5-pro",
    ),
    g(
        "200 001 tokens are one, with its cache",
        {
            "promptTokenCount": 200_001,
            "cachedContentTokenCount": 100_000,
            "candidatesTokenCount": 1000,
        },
        usd((100_001, 2.5), (100_000, 0.25), (1000, 15.0)),
        GEMINI_PRICES,
        model="gemini-2.5-pro",
    ),
    g(
        "input of a modality that is not named",
        PLAIN_G | {"promptTokensDetails": by(modality_unspecified=80_000, text=20_000)},
        usd((20_000, 0.3), (80_000, 1.0), (1000, 2.5)),
        GEMINI_USAGE,
        "≥",
    ),
    g(
        "output of a modality that is not known",
        PLAIN_G | {"candidatesTokensDetails": by(hologram=1000)},
        usd((100_000, 0.3), (1000, 30.0)),
        GEMINI_USAGE,
        "≥",
        model=IMAGE_MODEL,
    ),
    g(
        "a cache that is larger than the input",
        {
            "promptTokenCount": 10_000,
            "cachedContentTokenCount": 90_000,
            "candidatesTokenCount": 1000,
        },
        usd((10_000, 0.3), (90_000, 0.03), (1000, 2.5)),
        GEMINI_USAGE,
        "≤",
    ),
    g(
        "a tier that is told",
        PLAIN_G | {"serviceTier": "SERVICE_TIER_FLEX"},
        COST_G / 2,
        "https://ai.google.dev/gemini-api/docs/flex-inference",
        asked={"serviceTier": "flex"},
    ),
    g(
        "priority that was asked for, and not given",
        PLAIN_G | {"serviceTier": "standard"},
        COST_G,
        GEMINI_TIERS,
        asked={"serviceTier": "priority"},
    ),
    g(
        "priority that was asked for, and nothing is told",
        PLAIN_G,
        COST_G,
        GEMINI_TIERS,
        "≤",
        asked={"serviceTier": "priority"},
    ),
    g(
        "maps",
        PLAIN_G,
        COST_G + 0.025,
        GEMINI_PRICES,
        "≤",
        asked={"tools": [{"googleMaps": {}}]},
        more={"groundingMetadata": {"groundingChunks": [{"maps": {"uri": "x"}}]}},
    ),
    g(
        "a search for images",
        PLAIN_G,
        COST_G + 0.014,
        GEMINI_PRICES,
        "≤",
        more={"groundingMetadata": {"imageSearchQueries": ["a"]}},
    ),
    g(
        "usage in the first event only",
        None,
        COST_G,
        GEMINI_USAGE,
        "≥",
        streamed=(True,),
        body=stream(part_g(PLAIN_G, text="x"), {"candidates": [{"finishReason": "STOP"}]}),
    ),
    g(
        "a prompt that was blocked",
        None,
        usd((100_000, 0.3)),
        "https://ai.google.dev/gemini-api/docs/safety-settings",
        "≥",
        streamed=(True,),
        body=stream({"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": WAITS_G}),
    ),
    g(
        "an error after code",
        None,
        usd((100_000, 0.3), (100, 2.5)),
        "https://ai.google.dev/gemini-api/docs/code-execution",
        "≥",
        streamed=(True,),
        body=g_error(part_g(executableCode={"language": "PYTHON", "code": TEXT})),
    ),
    g(
        "an error after hidden thoughts",
        None,
        usd((100_000, 0.3), (500, 2.5)),
        "https://ai.google.dev/gemini-api/docs/thought-signatures",
        "≥",
        streamed=(True,),
        body=g_error(part_g(WAITS_G | {"thoughtsTokenCount": 500}, thoughtSignature="QUJD")),
    ),
    g(
        "a call without arguments, and then an error",
        None,
        usd((100_000, 0.3), (20, 2.5)),
        GEMINI_USAGE,
        "≥",
        streamed=(True,),
        body=g_error(part_g(functionCall={"name": "ls"})),
    ),
]


# ---- Models that several providers sell. The host tells whose price counts

GPT_OSS = "openai/gpt-oss-120b"


def sold(url: str, model: str, into: float, out: float, source: str, **more: Any) -> Row:
    right = usd((100_000, into), (1000, out))
    return c(f"{model} at {url}", PLAIN_C, right, source, model=model, url=url, **more)


HOST_ROWS = [
    sold("https://api.groq.com/openai/v1", GPT_OSS, 0.15, 0.6, "https://groq.com/pricing"),
    sold(
        "https://api.groq.com/openai/v1", "qwen/qwen3-32b", 0.29, 0.59, "https://groq.com/pricing"
    ),
    sold(
        "https://api.cerebras.ai/v1", "gpt-oss-120b", 0.35, 0.75, "https://www.cerebras.ai/pricing"
    ),
    sold("https://api.together.ai/v1", GPT_OSS, 0.15, 0.6, "https://www.together.ai/pricing"),
    sold(
        "https://api.fireworks.ai/inference/v1",
        "accounts/fireworks/models/kimi-k2p5",
        0.6,
        3.0,
        "https://fireworks.ai/pricing",
    ),
    sold(
        "https://api.mistral.ai/v1",
        "magistral-medium-latest",
        2.0,
        5.0,
        "https://mistral.ai/pricing",
    ),
    sold(
        "https://api.deepseek.com",
        "deepseek-v3.2",
        0.2288,
        0.3432,
        "https://api-docs.deepseek.com/quick_start/pricing",
    ),
    sold(
        "https://me.openai.azure.com/openai/v1",
        "my-deployment",
        1.25,
        10.0,
        "https://azure.microsoft.com/pricing/details/cognitive-services/openai-service/",
        served="gpt-5-2025-08-07",
    ),
    sold(
        "https://bedrock-runtime.us-west-2.amazonaws.com/openai/v1",
        "openai.gpt-oss-120b-1:0",
        0.15,
        0.6,
        "https://aws.amazon.com/bedrock/pricing/",
    ),
    # what a router says itself counts before its list price
    c(
        "OpenRouter's own cost",
        PLAIN_C | {"cost": 0.0375},
        0.0375,
        OPENROUTER,
        model=GPT_OSS,
        url="https://openrouter.ai/api/v1",
    ),
]


def wrapped() -> Iterator[Row]:
    """Yield the plain reply of each API in other clothes."""
    plain = (ANTHROPIC_ROWS[0], CHAT_ROWS[0], RESPONSES_ROWS[0], GEMINI_ROWS[0])
    for one in plain:

        def row(what: str, one: Row = one, **more: Any) -> Row:
            return Row(one.api, what, one.model, one.usage, one.right, SSE, **more)

        yield row("a stream as text/plain", kind=b"text/plain", streamed=(True,))
        yield row("a stream as JSON", kind=b"application/json", streamed=(True,))
        yield row("a document as a stream", kind=b"text/event-stream", streamed=(False,))
        yield row("no content type", kind=b"")
        yield row("a byte order mark", change=lambda body: b"\xef\xbb\xbf" + body)
        yield row("CR alone", change=lambda body: body.replace(b"\n", b"\r"), streamed=(True,))
        yield row("CR LF", change=lambda body: body.replace(b"\n", b"\r\n"), streamed=(True,))
        yield row("no last blank line", change=lambda body: body[:-1], streamed=(True,))
        yield row("a comment first", change=lambda body: b": hello\n\n" + body, streamed=(True,))
        yield row("a file of 12 MiB", change=large)
        yield row(
            "no blank lines",
            change=lambda body: body.replace(b"\n\n", b"\n"),
            streamed=(True,),
        )
        yield row("gzip", encoding="gzip", change=gzip.compress)
        yield row("deflate", encoding="deflate", change=zlib.compress)
        yield row("brotli", encoding="br", change=brotli.compress)
        yield row("zstd", encoding="zstd", change=zstd_compressed)


def zstd_compressed(body: bytes) -> bytes:
    import sys

    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd.compress(body)


APIS_ROWS = (*ANTHROPIC_ROWS, *CHAT_ROWS, *RESPONSES_ROWS, *GEMINI_ROWS)
ROWS = [
    (row, streamed) for row in (*APIS_ROWS, *HOST_ROWS, *wrapped()) for streamed in row.streamed
]

# ---- how each is charged


@pytest.fixture(scope="module")
def pricing() -> UsePricing:
    listed = PriceList({}, loaded=lambda: None, trouble=lambda _: None)
    trio.run(listed.current.library.load)
    return UsePricing({}, listed)


def ended(row: Row, streamed: bool) -> EndCall:
    """Return what the gateway tells of a call that is answered so."""
    api, daemon = APIS[row.api], ScriptedDaemon()
    how = "streamGenerateContent" if streamed else "generateContent"
    path = PATHS[row.api].format(row.model, how)
    request = {"model": row.model, "stream": streamed} | row.asked
    answer, _ = answer_to(BodyQuestion(row.api, path, ""), json.dumps(request).encode())
    asked = AdmitCall(
        id=0,
        run="r",
        model=answer.call.model,
        input_tokens=20,
        max_output=5000,
        api=api.name,
        url=row.url,
    )
    decision = CallDecision(id=0, reservation="n")
    with BodyMemory().space("r", None) as space:
        tally = CallTally(daemon, Estimates(), asked, decision, api, answer.call, "host", space)
        tally.sending()
        usual = b"text/event-stream" if streamed else b"application/json"
        kind = usual if row.kind is None else row.kind
        headers = [(b"content-type", kind)] if kind else []
        if row.encoding:
            headers.append((b"content-encoding", row.encoding.encode()))
        tally.begun(Reply(200, headers))
        body = (row.body or BODIES[row.api])(row, streamed)
        body = body if row.change is None else row.change(body)
        for at in range(0, len(body), 1 << 16):
            tally.piece(body[at : at + (1 << 16)])
        tally.whole = True
        tally.settle()
    (told,) = daemon.told
    return told


def charged(pricing: UsePricing, told: EndCall) -> Use:
    return pricing.use_of_call(told, OpenReservation("m", 1, 1, 10**9, None, source="gateway"))


@together(
    ("row", "streamed"),
    ROWS,
)
def test_a_call_is_charged_what_its_provider_bills(
    pricing: UsePricing, row: Row, streamed: bool
) -> None:
    use = charged(pricing, ended(row, streamed))
    cost, sure = to_usd(use.cost), to_usd(use.sure_of(LimitKind.COST))
    assert cost is not None
    assert sure is not None
    assert {(False, False): "=", (False, True): "≤", (True, False): "≥", (True, True): "≈"}[
        use.partial, use.at_most
    ] == row.mark, (cost, sure, row.right)
    if row.mark == "=":
        assert cost == pytest.approx(row.right, rel=0.01)
    assert sure <= 1.01 * row.right
    if row.mark == "≤":
        assert cost >= 0.99 * row.right
    if row.mark == "≥":
        assert cost <= 1.01 * row.right


RICH = [
    a(
        "all fields",
        {
            "input_tokens": 10_000,
            "output_tokens": 1000,
            "cache_read_input_tokens": 50_000,
            "cache_creation_input_tokens": 40_000,
            "cache_creation": {
                "ephemeral_1h_input_tokens": 30_000,
                "ephemeral_5m_input_tokens": 10_000,
            },
            "server_tool_use": {"web_search_requests": 2},
        },
        COST_A + usd((50_000, 0.1), (30_000, 2.0), (10_000, 1.25)) + 0.02,
        ANTHROPIC_CACHES,
    ),
    c(
        "all fields",
        SPOKEN
        | {
            "total_tokens": 25_600,
            "prompt_tokens_details": {
                "audio_tokens": 18_000,
                "cached_tokens": 10_000,
                "cached_tokens_details": {"audio_tokens": 9000, "text_tokens": 1000},
            },
        },
        usd((600, 4.0), (1000, 0.4), (9000, 32.0), (9000, 0.4), (2000, 16.0), (4000, 64.0)),
        OPENAI_PRICES,
        model="gpt-realtime",
    ),
    c(
        "all fields of Alibaba",
        {
            "prompt_tokens": 100_000,
            "completion_tokens": 5000,
            "prompt_tokens_details": {
                "cached_tokens": 60_000,
                "cache_creation_input_tokens": 30_000,
                "cache_creation": {"ephemeral_5m_input_tokens": 30_000},
            },
        },
        usd((10_000, 1.8), (60_000, 0.36), (30_000, 2.25), (5000, 9.0)),
        QWEN_CACHE,
        model="qwen3-coder-plus",
    ),
    c(
        "all fields of Moonshot",
        PLAIN_C | {"total_tokens": 101_000, "cached_tokens": 60_000},
        usd((40_000, 0.95), (60_000, 0.16), (1000, 4.0)),
        MOONSHOT,
        model="kimi-k2.6",
    ),
    c(
        "all fields of a router",
        PLAIN_C | {"cost": 0.5, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.25}},
        0.75,
        OPENROUTER,
    ),
    r(
        "all fields",
        PLAIN_R
        | {
            "total_tokens": 101_000,
            "input_tokens_details": {"cached_tokens": 60_000},
            "output_tokens_details": {"reasoning_tokens": 500},
        },
        usd((40_000, 1.25), (60_000, 0.125), (1000, 10.0)),
        RESPONSE_OBJECT,
    ),
    g(
        "all fields",
        {
            "promptTokenCount": 100_000,
            "candidatesTokenCount": 4000,
            "thoughtsTokenCount": 1000,
            "toolUsePromptTokenCount": 5000,
            "cachedContentTokenCount": 60_000,
            "totalTokenCount": 110_000,
            "promptTokensDetails": by(audio=30_000, text=70_000),
            "toolUsePromptTokensDetails": by(text=5000),
            "cacheTokensDetails": by(audio=20_000, text=40_000),
            "candidatesTokensDetails": by(text=4000),
        },
        usd((10_000, 1.0), (20_000, 0.1), (35_000, 0.3), (40_000, 0.03), (5000, 2.5)),
        GEMINI_USAGE,
    ),
]
ODD = ("x", "12", -5, True, 0.5, 10**30, 1e300, [1, 2], [[None]])


def damaged(usage: Any) -> Iterator[Any]:
    """Yield an object with each of its fields in turn as it must not be."""
    parts = usage.items() if isinstance(usage, dict) else enumerate(usage)
    for name, value in [*parts]:
        inside = damaged(value) if isinstance(value, dict | list) else ()
        for odd in (*ODD, *inside):
            if not (name in {"cost", "upstream_inference_cost"} and odd in ("12", 0.5)):
                copy: Any = usage.copy()
                copy[name] = odd
                yield copy


@pytest.mark.parametrize("row", RICH, ids=str)
def test_whatever_field_cannot_be_read(pricing: UsePricing, row: Row) -> None:
    """Without it, what is charged is not exact, and is marked as at least or at most."""
    tried = 0
    for usage in (row.usage, *damaged(row.usage)):
        use = charged(pricing, ended(replace(row, usage=usage), streamed=tried % 2 == 1))
        cost, sure = to_usd(use.cost), to_usd(use.sure_of(LimitKind.COST))
        assert cost is not None
        assert sure is not None
        assert sure <= 1.01 * row.right, usage
        assert use.partial or cost >= 0.99 * row.right, usage
        assert use.at_most or cost <= 1.01 * row.right, usage
        tried += 1
    assert tried > 20


def test_the_table_is_long_enough() -> None:
    assert len(ROWS) >= 150
    assert all(row.source.startswith("https://") for row, _ in ROWS)
