"""Requests and replies of each API, as the providers' documentation shows them, and what they
use."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sfad.features.gateway.program.apis import APIS, ReplyReader
from sfad.protocol.types import Tokens


@dataclass(frozen=True)
class Sample:
    api: str
    body: bytes
    streamed: bool
    tokens: Tokens
    tools: tuple[str, ...] = ()
    """Names of the tools that are called."""
    written: int = 0


def sse(*events: Any, named: bool = True) -> bytes:
    lines = []
    for data in events:
        if named and isinstance(data, dict) and "type" in data:
            lines.append(f"event: {data['type']}\n")
        lines.append(f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n")
    return "".join(lines).encode()


def delta(index: int, **said: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": said}


ANTHROPIC_USAGE = {
    "input_tokens": 100,
    "cache_read_input_tokens": 30,
    "cache_creation_input_tokens": 20,
    "output_tokens": 1,
}
ANTHROPIC_STREAM = sse(
    {"type": "message_start",
     "message": {"id": "m", "content": [], "model": "c", "usage": ANTHROPIC_USAGE}},
    {"type": "content_block_start", "index": 0,
     "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
    {"type": "ping"}, delta(0, type="thinking_delta", thinking="hmm…"),
    delta(0, type="signature_delta", signature="c2ln"), {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1,
     "content_block": {"type": "tool_use", "id": "t1", "name": "Bash", "input": {}}},
    {"type": "content_block_start", "index": 2,
     "content_block": {"type": "tool_use", "id": "t2", "name": "Read", "input": {}}},
    delta(1, type="input_json_delta", partial_json='{"command": '),
    delta(2, type="input_json_delta", partial_json='{"path": "é"}'),
    delta(1, type="input_json_delta", partial_json='"ls"}'),
    {"type": "content_block_stop", "index": 1}, {"type": "content_block_stop", "index": 2},
    {"type": "content_block_start", "index": 3,
     "content_block": {"type": "server_tool_use", "name": "web_search", "input": {}}},
    {"type": "content_block_stop", "index": 3},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None},
     "usage": {"output_tokens": 77}},
    {"type": "message_stop"},
)  # fmt: skip
ANTHROPIC_WHOLE = json.dumps(
    {
        "id": "m",
        "type": "message",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}},
            {"type": "tool_use", "id": "t2", "name": "Bash", "input": {"command": "ls"}},
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}},
            {
                "type": "web_search_tool_result",
                "tool_use_id": "s",
                "content": [{"type": "web_search_result", "title": "x"}],
            },
        ],
        "usage": {
            "input_tokens": 23_000,
            "output_tokens": 1000,
            "cache_creation": {"ephemeral_1h_input_tokens": 5},
            "iterations": [
                {
                    "type": "compaction",
                    "input_tokens": 180_000,
                    "output_tokens": 3500,
                    "cache_read_input_tokens": 9,
                },
                {"type": "message", "input_tokens": 23_000, "output_tokens": 1000},
            ],
        },
    }
).encode()

CHAT_USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 50,
    "total_tokens": 150,
    "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 10, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 40},
}


def chat(
    index: int = 0, finish: str | None = None, usage: Any = None, **said: Any
) -> dict[str, Any]:
    return {
        "id": "c",
        "choices": [{"index": index, "delta": said, "finish_reason": finish}],
        "usage": usage,
    }


def chat_tool(number: int, arguments: str, name: str | None = None) -> dict[str, Any]:
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return {"index": number, "function": function}


CHAT_STREAM = sse(
    chat(role="assistant", content=""),
    chat(content="Hal"),
    chat(index=1, content="lo"),
    chat(tool_calls=[chat_tool(0, "", "Bash")]),
    chat(tool_calls=[chat_tool(1, "{}", "Read"), chat_tool(0, '{"command": "ls"}')]),
    chat(index=1, tool_calls=[chat_tool(0, "{}", "Read")]),
    chat(finish="tool_calls"),
    chat(index=1, finish="stop"),
    {"id": "c", "choices": [], "usage": CHAT_USAGE},
    "[DONE]",
    named=False,
)
CHAT_WHOLE = json.dumps(
    {
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "1",
                            "type": "function",
                            "function": {"name": "Bash", "arguments": '{"command": "ls"}'},
                        },
                        {
                            "id": "2",
                            "type": "function",
                            "function": {"name": "Read", "arguments": "{}"},
                        },
                    ],
                },
                "finish_reason": "tool_calls",
            },
            {
                "index": 1,
                "message": {"role": "assistant", "content": "hello", "refusal": None},
                "finish_reason": "stop",
            },
        ],
        "usage": CHAT_USAGE,
    }
).encode()

RESPONSES_USAGE = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 10},
    "output_tokens": 50,
    "output_tokens_details": {"reasoning_tokens": 40},
    "total_tokens": 150,
}
RESPONSES_CALLS: list[dict[str, Any]] = [
    {
        "type": "function_call",
        "id": "f",
        "call_id": "1",
        "name": "shell",
        "arguments": '{"command": ["ls"]}',
    },
    {"type": "custom_tool_call", "call_id": "2", "name": "apply_patch", "input": "*** Begin Patch"},
    {"type": "local_shell_call", "call_id": "3", "action": {"type": "exec", "command": ["ls"]}},
    {"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search"}},
]
RESPONSES_STREAM = sse(
    {
        "type": "response.created",
        "response": {
            "id": "r",
            "status": "in_progress",
            "usage": None,
            "output": [],
            "background": False,
        },
    },
    {"type": "response.reasoning_summary_text.delta", "delta": "hm"},
    {"type": "response.output_text.delta", "delta": "hello"},
    {"type": "response.function_call_arguments.delta", "delta": "{}"},
    *({"type": "response.output_item.done", "item": item} for item in RESPONSES_CALLS),
    {
        "type": "response.completed",
        "response": {"status": "completed", "output": RESPONSES_CALLS, "usage": RESPONSES_USAGE},
    },
)
RESPONSES_WHOLE = json.dumps(
    {
        "status": "completed",
        "background": False,
        "output": [
            {"type": "reasoning", "summary": [], "encrypted_content": "x"},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "hello", "annotations": []}],
            },
            *RESPONSES_CALLS,
        ],
        "usage": RESPONSES_USAGE,
    }
).encode()

GEMINI_USAGE = {
    "promptTokenCount": 100,
    "cachedContentTokenCount": 60,
    "toolUsePromptTokenCount": 7,
    "candidatesTokenCount": 10,
    "thoughtsTokenCount": 40,
    "totalTokenCount": 157,
    "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 100}],
}


def gemini(
    *parts: dict[str, Any], finish: str | None = None, usage: dict[str, Any] | None = None
) -> dict[str, Any]:
    candidate = {"content": {"parts": list(parts), "role": "model"}, "index": 0} | (
        {"finishReason": finish} if finish else {}
    )
    return {
        "candidates": [candidate],
        "usageMetadata": usage or {"promptTokenCount": 100, "candidatesTokenCount": 1},
    }


GEMINI_PARTS = [
    gemini({"text": "hm", "thought": True}),
    gemini({"text": "hello"}),
    gemini(
        {"functionCall": {"name": "shell", "args": {"command": "ls"}}},
        {"functionCall": {"name": "now"}},
    ),
    gemini({"text": ""}, finish="STOP", usage=GEMINI_USAGE),
]
GEMINI_LAST_ALONE = [
    *GEMINI_PARTS[:3],
    gemini({"text": ""}, finish="STOP"),
    {"usageMetadata": GEMINI_USAGE},
]
GEMINI_WHOLE = gemini(
    *(p for each in GEMINI_PARTS for p in each["candidates"][0]["content"]["parts"]),
    finish="STOP",
    usage=GEMINI_USAGE,
)

OPENAI_TOKENS = Tokens(input=100, output=50, cached=60, cache_write=10)
GEMINI_TOKENS = Tokens(input=107, output=50, cached=60)
RESPONSES_TOOLS = ("shell", "apply_patch", "local_shell_call")
SAMPLES: dict[str, Sample] = {
    "anthropic stream": Sample(
        "anthropic",
        ANTHROPIC_STREAM,
        True,
        Tokens(input=150, output=77, cached=30, cache_write=20),
        ("Bash", "Read"),
        37,
    ),
    "anthropic whole": Sample(
        "anthropic",
        ANTHROPIC_WHOLE,
        False,
        Tokens(input=203_014, output=4500, cached=9, cache_write=5, long_write=5),
        ("Bash", "Bash"),
    ),
    "chat stream": Sample(
        "openai-chat", CHAT_STREAM, True, OPENAI_TOKENS, ("Bash", "Read", "Read"), 26
    ),
    "chat whole": Sample("openai-chat", CHAT_WHOLE, False, OPENAI_TOKENS, ("Bash", "Read")),
    "responses stream": Sample(
        "openai-responses", RESPONSES_STREAM, True, OPENAI_TOKENS, RESPONSES_TOOLS, 9
    ),
    "responses whole": Sample(
        "openai-responses", RESPONSES_WHOLE, False, OPENAI_TOKENS, RESPONSES_TOOLS
    ),
    "gemini stream": Sample(
        "gemini", sse(*GEMINI_PARTS, named=False), True, GEMINI_TOKENS, ("shell", "now"), 24
    ),
    "gemini usage last": Sample(
        "gemini", sse(*GEMINI_LAST_ALONE, named=False), True, GEMINI_TOKENS, ("shell", "now"), 24
    ),
    "gemini array": Sample(
        "gemini", json.dumps(GEMINI_PARTS).encode(), False, GEMINI_TOKENS, ("shell", "now")
    ),
    "gemini whole": Sample(
        "gemini", json.dumps(GEMINI_WHOLE).encode(), False, GEMINI_TOKENS, ("shell", "now")
    ),
}


def read(api: str, *pieces: bytes, streamed: bool = True, whole: bool = True) -> ReplyReader:
    reader = APIS[api].reply(streamed=streamed)
    for piece in pieces:
        reader.feed(piece)
    if whole:
        reader.end()
    return reader
