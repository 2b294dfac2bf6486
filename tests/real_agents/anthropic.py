"""The Anthropic Messages API, as far as Claude Code and opencode use it. Pure: requests in, bodies
out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.real_agents.script import ANTHROPIC, OPENING, Shell, Told, Tool, Write, text_of

Body = dict[str, Any]

_SHELLS = {"Bash", "bash"}
"""What Claude Code calls its shell tool, and what opencode does."""


def asks(path: str) -> bool:
    """Whether a request to this path wants the model to answer."""
    return path.endswith("/v1/messages")


def is_turn(body: Body) -> bool:
    """Whether the agent itself asks, and not one of its helpers that title or summarise."""
    return bool(_shells(body))


def _shells(body: Body) -> set[str]:
    return _SHELLS & {tool.get("name") for tool in body.get("tools", [])}


def maximum(body: Body) -> int | None:
    """Return how many tokens a reply may have."""
    return int(body["max_tokens"])


def tool_outputs(body: Body) -> list[str]:
    """What the tools called so far have answered, in order."""
    blocks = [
        block
        for message in body["messages"]
        if isinstance(message["content"], list)
        for block in message["content"]
    ]
    return [text_of(block.get("content", "")) for block in blocks if block["type"] == "tool_result"]


def answer(body: Body, reply: Told, number: int) -> tuple[str, bytes, bytes]:
    """The type of the body that says it, its bytes up to the end of the text, and the rest; a
    stream where one was asked for."""
    message = _message(body, reply, number)
    if body.get("stream"):
        text, rest = (b"".join(map(_event, events)) for events in _stream(message))
        return "text/event-stream", text, rest
    return "application/json", json.dumps(message).encode(), b""


def _message(body: Body, reply: Told, number: int) -> Body:
    return {
        "id": f"msg_{number:04}",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": _content(body, reply, number),
        "stop_reason": _stop_reason(body, reply),
        "stop_sequence": None,
        "usage": _usage(body, reply),
    }


def _stop_reason(body: Body, reply: Told) -> str:
    if isinstance(reply, Write) and reply.is_cut(maximum(body)):
        return "max_tokens"
    return "tool_use" if isinstance(reply, Shell | Tool | Write) else "end_turn"


def _content(body: Body, reply: Told, number: int) -> list[Body]:
    text = OPENING
    if isinstance(reply, Write):
        text = reply.text(maximum(body))
        if reply.is_cut(maximum(body)):
            return [{"type": "text", "text": text}]
        reply = reply.call(number)
    match reply:
        case Shell(command, background):
            (name,) = _shells(body)
            call: Body = {"command": command, "description": "scripted"}
            if name == "Bash":
                call["run_in_background"] = background
        case Tool(wanted, call):
            (name,) = (
                tool["name"] for tool in body["tools"] if tool["name"].endswith(f"_{wanted}")
            )
        case _:
            return [{"type": "text", "text": reply.text}]
    return [
        {"type": "text", "text": text},
        {"type": "tool_use", "id": f"toolu_{number:04}", "name": name, "input": call},
    ]


def _usage(body: Body, reply: Told) -> Body:
    if isinstance(reply, Write):
        return {"input_tokens": reply.input(body), "output_tokens": reply.output(maximum(body))}
    return {
        "input_tokens": ANTHROPIC.input - ANTHROPIC.cached - ANTHROPIC.cache_write,
        "cache_creation_input_tokens": ANTHROPIC.cache_write,
        "cache_read_input_tokens": ANTHROPIC.cached,
        "output_tokens": ANTHROPIC.output,
    }


def _stream(message: Body) -> tuple[list[Body], list[Body]]:
    start = {
        "type": "message_start",
        "message": message
        | {"content": [], "stop_reason": None, "usage": message["usage"] | {"output_tokens": 1}},
    }
    blocks = [
        event for index, block in enumerate(message["content"]) for event in _block(index, block)
    ]
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    told = {
        "type": "message_delta",
        "delta": end,
        "usage": {"output_tokens": message["usage"]["output_tokens"]},
    }
    return [start, *blocks[:-1]], [blocks[-1], told, {"type": "message_stop"}]


def _block(index: int, block: Body) -> Iterator[Body]:
    if block["type"] == "text":
        start, delta = block | {"text": ""}, {"type": "text_delta", "text": block["text"]}
    else:
        start, delta = (
            block | {"input": {}},
            {"type": "input_json_delta", "partial_json": json.dumps(block["input"])},
        )
    yield {"type": "content_block_start", "index": index, "content_block": start}
    yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


def _event(event: Body) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
