"""The sentence in the last call of a run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sfad.features.gateway.program.bodies.reading import BodyQuestion, answer_to

SENTENCE = "This is your last answer."
USER, ASSISTANT = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}
SAID = f"hi\n\n{SENTENCE}"
RESULT = {"type": "tool_result", "tool_use_id": "t", "content": "x"}


def part(kind: str) -> dict[str, str]:
    return {"type": kind, "text": SENTENCE}


def concluded(api: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    question = BodyQuestion(api, path, "", change=True, last=SENTENCE, completes=False)
    _, changed = answer_to(question, json.dumps(body).encode())
    found: dict[str, Any] = json.loads(changed)
    return found


MESSAGES: list[tuple[list[Any], list[Any]]] = [
    ([USER], [{"role": "user", "content": SAID}]),
    ([USER, ASSISTANT], [USER, ASSISTANT, {"role": "user", "content": SENTENCE}]),
    (
        [{"role": "user", "content": [RESULT]}],
        [{"role": "user", "content": [RESULT, part("text")]}],
    ),
]


@pytest.mark.parametrize(("given", "sent"), MESSAGES)
def test_messages(given: list[Any], sent: list[Any]) -> None:
    for api, path in (("anthropic", "/v1/messages"), ("openai-chat", "/v1/chat/completions")):
        body = {"model": "m", "max_tokens": 9, "messages": given, "temperature": 0.5}
        assert concluded(api, path, body) == body | {"messages": sent}


def test_a_chat_with_the_result_of_a_tool() -> None:
    tool = {"role": "tool", "tool_call_id": "t", "content": "x"}
    body = {"model": "m", "max_tokens": 9, "messages": [USER, tool]}
    found = concluded("openai-chat", "/v1/chat/completions", body)
    assert found["messages"] == [USER, tool, {"role": "user", "content": SENTENCE}]


HI = {"type": "input_text", "text": "hi"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "x"}


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("hi", SAID),
        ([USER], [{"role": "user", "content": SAID}]),
        ([USER, OUTPUT], [USER, OUTPUT, {"role": "user", "content": SENTENCE}]),
        (
            [{"role": "user", "content": [HI]}],
            [{"role": "user", "content": [HI, part("input_text")]}],
        ),
    ],
)  # fmt: skip
def test_responses(given: Any, sent: Any) -> None:
    body = {"model": "m", "input": given}
    assert concluded("openai-responses", "/v1/responses", body) == body | {"input": sent}


def test_gemini() -> None:
    body = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
    found = concluded("gemini", "/v1beta/models/gemini-2.5-pro:generateContent", body)
    assert found["contents"][1:] == [{"role": "user", "parts": [{"text": SENTENCE}]}]
