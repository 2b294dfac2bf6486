"""The OpenAI Chat Completions API, as far as Qwen Code and Copilot CLI use it. Pure: requests in,
bodies out."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.real_agents.script import OPENAI, OPENING, Say, Shell, Told, Tool, Write, text_of

Body = dict[str, Any]

_SHELLS = ("run_shell_command", "bash")
"""What Qwen Code and Copilot CLI call their shells."""
_OUTPUT = re.compile(r"Output: (.*?)\nError: .*\nExit Code: ", re.DOTALL)
"""What the command printed, in what Qwen Code makes of it."""


def asks(path: str) -> bool:
    """Whether a request to this path wants the model to answer."""
    return path.endswith("/chat/completions")


def is_turn(body: Body) -> bool:
    """Whether the agent itself asks, and not one of its helpers that sums up."""
    return any(name in _SHELLS for name in _offered(body))


def _offered(body: Body) -> list[str]:
    return [tool["function"]["name"] for tool in body.get("tools", [])]


def maximum(body: Body) -> int | None:
    """Return how many tokens a reply may have; `None` if the request does not say."""
    found: int | None = body.get("max_completion_tokens", body.get("max_tokens"))
    return found


def tool_outputs(body: Body) -> list[str]:
    """What the tools called so far have answered, in order."""
    said = [
        text_of(message["content"]) for message in body["messages"] if message["role"] == "tool"
    ]
    return [found[1] if (found := _OUTPUT.search(text)) else text for text in said]


def answer(body: Body, reply: Told, number: int) -> tuple[str, bytes, bytes]:
    """The type of the stream that says it, its bytes up to the end of the text, and the rest."""
    about = {
        "id": f"chatcmpl-{number:04}",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": body["model"],
    }
    usage, finish = _usage(body, reply), "stop"
    text = (
        OPENING
        if isinstance(reply, Shell | Tool)
        else reply.text(maximum(body))
        if isinstance(reply, Write)
        else reply.text
    )
    if isinstance(reply, Write):
        finish, reply = (
            ("length", Say("")) if reply.is_cut(maximum(body)) else ("stop", reply.call(number))
        )
    calls = [_call(body, reply, number)] if isinstance(reply, Shell | Tool) else []
    message = {"role": "assistant", "content": text} | ({"tool_calls": calls} if calls else {})
    finish = "tool_calls" if calls else finish
    if not body.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return (
            "application/json",
            json.dumps(about | {"choices": [choice], "usage": usage}).encode(),
            b"",
        )
    said = _event(about, {"choices": [_choice({"role": "assistant", "content": text})]})
    called = _event(about, {"choices": [_choice({"tool_calls": calls})]}) if calls else b""
    done = _event(about, {"choices": [_choice({}) | {"finish_reason": finish}]}) + _event(
        about, {"choices": [], "usage": usage}
    )
    return "text/event-stream", said, called + done + b"data: [DONE]\n\n"


def _choice(delta: Body) -> Body:
    return {"index": 0, "delta": delta, "finish_reason": None}


def _event(about: Body, chunk: Body) -> bytes:
    return f"data: {json.dumps(about | chunk)}\n\n".encode()


def _call(body: Body, reply: Shell | Tool, number: int) -> Body:
    if isinstance(reply, Tool):
        # Qwen Code does not offer it, because the model is to search for it first, and runs it
        # nevertheless
        own = f"sfad-{reply.name}"
        name, arguments = (
            own if own in _offered(body) else f"mcp__sfad__{reply.name}",
            reply.arguments,
        )
    else:
        name = next(name for name in _SHELLS if name in _offered(body))
        arguments = {
            "command": reply.command,
            "description": "scripted",
            "is_background": reply.background,
        }
    return {
        "index": 0,
        "id": f"call_{number:04}",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    }


def _usage(body: Body, reply: Told) -> Body:
    if isinstance(reply, Write):
        size, written = reply.input(body), reply.output(maximum(body))
        return {"prompt_tokens": size, "completion_tokens": written, "total_tokens": size + written}
    return {
        "prompt_tokens": OPENAI.input,
        "prompt_tokens_details": {"cached_tokens": OPENAI.cached},
        "completion_tokens": OPENAI.output,
        "completion_tokens_details": {"reasoning_tokens": OPENAI.reasoning},
        "total_tokens": OPENAI.input + OPENAI.output,
    }
