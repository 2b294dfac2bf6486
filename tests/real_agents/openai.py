"""The OpenAI Responses API, as far as Codex uses it. Pure: requests in, bodies out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.real_agents.script import OPENAI, OPENING, Shell, Told, Tool, Write, text_of

Body = dict[str, Any]

_OUTPUTS = ("function_call_output", "custom_tool_call_output")


def asks(path: str) -> bool:
    """Whether a request to this path wants the model to answer."""
    return path.endswith("/responses")


def is_turn(body: Body) -> bool:
    """Whether the agent itself asks: it offers a shell, and does not want a title for its
    terminal."""
    return bool(_offered(body) & {"exec", "exec_command"}) and not _asks_for_title(body)


def _asks_for_title(body: Body) -> bool:
    content = body["input"][-1].get("content") or [{}]
    return str(content[0].get("text", "")).startswith("Generate a concise, single-line task title")


def _offered(body: Body) -> set[str]:
    """Names of the tools. Newer models get them in the input, in name spaces."""
    tools = [
        *body.get("tools", []),
        *(tool for item in body["input"] for tool in item.get("tools", [])),
    ]
    inner = [tool for space in tools for tool in space.get("tools", [])]
    return {tool["name"] for tool in tools + inner if "name" in tool}


def maximum(body: Body) -> int | None:
    """Return how many tokens a reply may have; `None` if the request does not say."""
    return body.get("max_output_tokens")


def tool_outputs(body: Body) -> list[str]:
    """What the tools called so far have answered, in order."""
    return [text_of(item["output"]) for item in body["input"] if item["type"] in _OUTPUTS]


def answer(body: Body, reply: Told, number: int) -> tuple[str, bytes, bytes]:
    """The type of the stream that says it, its bytes up to the end of the text, and the rest."""
    *said, done, end = map(_event, _stream(body, reply, number))
    return "text/event-stream", b"".join(said), done + end


def _stream(body: Body, reply: Told, number: int) -> Iterator[Body]:
    response = {"id": f"resp_{number:04}"}
    yield {"type": "response.created", "response": response}
    for index, item in enumerate(_items(body, reply, number)):
        at = {"output_index": index, "item_id": item.get("id", "")}
        yield {"type": "response.output_item.added", "output_index": index, "item": item}
        for part in item.get("content", ()):
            yield {
                "type": "response.output_text.delta",
                "content_index": 0,
                "delta": part["text"],
            } | at
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    if isinstance(reply, Write) and reply.is_cut(maximum(body)):
        why = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        yield {
            "type": "response.incomplete",
            "response": response | why | {"usage": _usage(body, reply)},
        }
    else:
        yield {"type": "response.completed", "response": response | {"usage": _usage(body, reply)}}


def _items(body: Body, reply: Told, number: int) -> list[Body]:
    text = (
        OPENING
        if isinstance(reply, Shell | Tool)
        else reply.text(maximum(body))
        if isinstance(reply, Write)
        else reply.text
    )
    content = [{"type": "output_text", "text": text, "annotations": []}]
    items: list[Body] = [
        {"type": "message", "id": f"msg_{number:04}", "role": "assistant", "content": content}
    ]
    if isinstance(reply, Write) and not reply.is_cut(maximum(body)):
        reply = reply.call(number)
    if isinstance(reply, Shell | Tool):
        items.append(_call(body, reply, number))
    return items


def _call(body: Body, reply: Shell | Tool, number: int) -> Body:
    """A tool of its own, or for newer models a function of the one tool that runs JavaScript."""
    item = {"call_id": f"call_{number:04}", "status": "completed"}
    if isinstance(reply, Tool):
        name, arguments, output = (
            f"mcp__sfad__{reply.name}",
            json.dumps(reply.arguments),
            "content[0].text",
        )
    else:
        patience = 250 if reply.background else 30_000  # the least and the most that Codex allows
        given = {"cmd": reply.command, "yield_time_ms": patience}
        if reply.escalated:
            given |= {"sandbox_permissions": "require_escalated", "justification": "It must be."}
        name, arguments, output = "exec_command", json.dumps(given), "output"
    if name in _offered(body):
        return item | {"type": "function_call", "name": name, "arguments": arguments}
    script = f"text((await tools.{name}({arguments})).{output})"
    return item | {"type": "custom_tool_call", "name": "exec", "input": script}


def _usage(body: Body, reply: Told) -> Body:
    if isinstance(reply, Write):
        size, written = reply.input(body), reply.output(maximum(body))
        return {"input_tokens": size, "output_tokens": written, "total_tokens": size + written}
    return {
        "input_tokens": OPENAI.input,
        "input_tokens_details": {"cached_tokens": OPENAI.cached},
        "output_tokens": OPENAI.output,
        "output_tokens_details": {"reasoning_tokens": OPENAI.reasoning},
        "total_tokens": OPENAI.input + OPENAI.output,
    }


def _event(event: Body) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
