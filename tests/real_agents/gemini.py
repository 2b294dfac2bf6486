"""The Gemini API, as far as Gemini CLI uses it. Pure: requests in, bodies out."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.real_agents.script import GEMINI, OPENING, Say, Shell, Stall, Told, Tool, Write

Body = dict[str, Any]

_SHELL = "run_shell_command"
_OUTPUT = re.compile(
    r"Output: (.*?)\n(?:Background PIDs|Process Group PGID|Exit Code|Signal|</untrusted_context>)",
    re.DOTALL,
)
"""What the command printed, in what Gemini CLI makes of it."""


def asks(path: str) -> bool:
    """Whether a request to this path wants the model to answer."""
    return path.endswith(("streamGenerateContent", ":generateContent"))


def is_turn(body: Body) -> bool:
    """Whether the agent itself asks, and not one of its helpers that routes or summarises."""
    return any(
        call.get("name") == _SHELL
        for tool in body.get("tools", [])
        for call in tool.get("functionDeclarations", [])
    )


def maximum(body: Body) -> int | None:
    """Return how many tokens a reply may have; `None` if the request does not say."""
    found: int | None = body.get("generationConfig", {}).get("maxOutputTokens")
    return found


def tool_outputs(body: Body) -> list[str]:
    """What the tools called so far have answered, in order."""
    parts = [part for content in body["contents"] for part in content["parts"]]
    responses = [
        part["functionResponse"]["response"] for part in parts if "functionResponse" in part
    ]
    said = [str(response.get("output") or response.get("error", "")) for response in responses]
    return [found[1] if (found := _OUTPUT.search(text)) else text for text in said]


def answer(body: Body, reply: Told, number: int) -> tuple[str, bytes, bytes]:
    """The type of the stream that says it, its bytes up to the end of the text, and the rest;
    Gemini CLI asks for nothing else in a turn."""
    about = {"modelVersion": body.get("model", "gemini-2.5-pro"), "responseId": f"resp_{number:04}"}
    usage, text = _usage(body, reply), OPENING if isinstance(reply, Shell | Tool) else ""
    finish = "STOP"
    if isinstance(reply, Write):
        text = reply.text(maximum(body))
        finish, reply = (
            ("MAX_TOKENS", Say("")) if reply.is_cut(maximum(body)) else ("STOP", reply.call(number))
        )
    elif isinstance(reply, Say | Stall):
        text = reply.text
    call = (
        [{"functionCall": _call(body, reply)}]
        if isinstance(reply, Shell | Tool)
        else [{"text": ""}]
    )
    said = _event(about | {"candidates": [_candidate([{"text": text}])]})
    done = _candidate(call) | {"finishReason": finish}
    return "text/event-stream", said, _event(about | {"candidates": [done], "usageMetadata": usage})


def _candidate(parts: list[Body]) -> Body:
    return {"content": {"role": "model", "parts": parts}, "index": 0}


def _event(event: Body) -> bytes:
    return f"data: {json.dumps(event)}\r\n\r\n".encode()


def _call(body: Body, reply: Shell | Tool) -> Body:
    if isinstance(reply, Tool):
        offered = [
            call["name"] for tool in body["tools"] for call in tool.get("functionDeclarations", [])
        ]
        (name,) = (name for name in offered if name.endswith(reply.name))
        return {"name": name, "args": reply.arguments}
    return {
        "name": _SHELL,
        "args": {
            "command": reply.command,
            "description": "scripted",
            "is_background": reply.background,
        },
    }


def _usage(body: Body, reply: Told) -> Body:
    if isinstance(reply, Write):
        size, written = reply.input(body), reply.output(maximum(body))
        return {
            "promptTokenCount": size,
            "candidatesTokenCount": written,
            "totalTokenCount": size + written,
        }
    return {
        "promptTokenCount": GEMINI.input,
        "cachedContentTokenCount": GEMINI.cached,
        "candidatesTokenCount": GEMINI.output - GEMINI.reasoning,
        "thoughtsTokenCount": GEMINI.reasoning,
        "totalTokenCount": GEMINI.input + GEMINI.output,
    }
