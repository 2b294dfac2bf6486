"""The Anthropic Messages API, as far as Claude Code and opencode use it. Pure: requests in, bodies out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.agents.script import ANTHROPIC, OPENING, Reply, Say

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


def tool_outputs(body: Body) -> list[str]:
    """What the tools called so far have answered, in order."""
    blocks = [block for message in body["messages"] if isinstance(message["content"], list) for block in message["content"]]
    return [_text(block.get("content", "")) for block in blocks if block["type"] == "tool_result"]


def _text(content: str | list[Body]) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def answer(body: Body, reply: Reply, number: int) -> tuple[str, bytes]:
    """The type and bytes of the body that says it, as a stream where one was asked for."""
    message = _message(body, reply, number)
    if body.get("stream"):
        return "text/event-stream", b"".join(_event(event) for event in _stream(message))
    return "application/json", json.dumps(message).encode()


def _message(body: Body, reply: Reply, number: int) -> Body:
    return {
        "id": f"msg_{number:04}",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": _content(body, reply, number),
        "stop_reason": "end_turn" if isinstance(reply, Say) else "tool_use",
        "stop_sequence": None,
        "usage": _usage(ANTHROPIC.output),
    }


def _content(body: Body, reply: Reply, number: int) -> list[Body]:
    if isinstance(reply, Say):
        return [{"type": "text", "text": reply.text}]
    (shell,) = _shells(body)
    call: Body = {"command": reply.command, "description": "scripted"}
    if shell == "Bash":
        call["run_in_background"] = reply.background
    return [
        {"type": "text", "text": OPENING},
        {"type": "tool_use", "id": f"toolu_{number:04}", "name": shell, "input": call},
    ]


def _usage(output: int) -> Body:
    return {
        "input_tokens": ANTHROPIC.input - ANTHROPIC.cached - ANTHROPIC.cache_write,
        "cache_creation_input_tokens": ANTHROPIC.cache_write,
        "cache_read_input_tokens": ANTHROPIC.cached,
        "output_tokens": output,
    }


def _stream(message: Body) -> Iterator[Body]:
    yield {"type": "message_start", "message": message | {"content": [], "stop_reason": None, "usage": _usage(1)}}
    for index, block in enumerate(message["content"]):
        yield from _block(index, block)
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": end, "usage": {"output_tokens": ANTHROPIC.output}}
    yield {"type": "message_stop"}


def _block(index: int, block: Body) -> Iterator[Body]:
    if block["type"] == "text":
        start, delta = block | {"text": ""}, {"type": "text_delta", "text": block["text"]}
    else:
        start, delta = block | {"input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
    yield {"type": "content_block_start", "index": index, "content_block": start}
    yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


def _event(event: Body) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
