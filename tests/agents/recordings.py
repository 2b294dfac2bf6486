"""The recordings, and short ways to read them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sfad.agents import Reading, named
from sfad.protocol.types import Tokens

STREAMS = Path(__file__).parent / "streams"
RECORDINGS = sorted(STREAMS.glob("*.jsonl"))

COMMANDS = {
    "claude": ["claude", "-p", "hi", "--output-format", "stream-json", "--verbose"],
    "codex": ["codex", "exec", "--json", "-m", "gpt-5-codex", "hi"],
    "gemini": ["gemini", "-o", "stream-json", "-p", "hi"],
    "opencode": ["opencode", "run", "--format", "json", "-m", "anthropic/claude-sonnet-4-5", "hi"],
    "qwen": ["qwen", "-o", "stream-json", "-p", "hi"],
    "copilot": ["copilot", "--output-format", "json", "-p", "hi"],
    "jsonl": ["./agent"],
}
"""By program: a command that prints its events."""

USAGE_EVENTS = {
    "claude": "assistant",
    "codex": "item.completed",
    "gemini": "result",
    "opencode": "step_finish",
    "qwen": "assistant",
    "copilot": "assistant.message",
    "jsonl": "usage",
}
"""By program: a type of event that its meter decodes."""

OPENCODE = [
    {
        "type": "step_start",
        "timestamp": 1,
        "sessionID": "ses_1",
        "part": {"id": "prt_1", "type": "step-start"},
    },
    {
        "type": "tool_use",
        "sessionID": "ses_1",
        "part": {
            "id": "prt_2",
            "type": "tool",
            "callID": "call_1",
            "tool": "bash",
            "state": {"status": "completed", "output": "x"},
        },
    },
    {
        "type": "step_finish",
        "sessionID": "ses_1",
        "part": {
            "id": "prt_3",
            "type": "step-finish",
            "reason": "tool-calls",
            "cost": 0.25,
            "tokens": {
                "total": 175,
                "input": 100,
                "output": 20,
                "reasoning": 5,
                "cache": {"read": 40, "write": 10},
            },
        },
    },
    {"type": "step_start", "sessionID": "ses_1", "part": {"id": "prt_4", "type": "step-start"}},
    {"type": "text", "sessionID": "ses_1", "part": {"id": "prt_5", "type": "text", "text": "done"}},
    {
        "type": "step_finish",
        "sessionID": "ses_1",
        "part": {
            "id": "prt_6",
            "type": "step-finish",
            "reason": "stop",
            "cost": 0.5,
            "tokens": {"input": 7, "output": 3},
        },
    },
    {"type": "done", "sessionID": "ses_1", "reason": "idle", "rejected": []},
]
"""Events of opencode in the form that its source writes, because there is no recording."""

JSONL = [
    {"type": "turn", "tool": "Bash"},
    {
        "type": "usage",
        "model": "m",
        "input_tokens": 10,
        "output_tokens": 2,
        "cached_tokens": 4,
        "cost_usd": 0.5,
        "messages": 1,
    },
    {"type": "result", "failed": False},
]


def program_of(path: Path) -> str:
    """`claude-success.jsonl` → `claude`."""
    return path.name.split("-")[0]


def lines(*events: Any) -> bytes:
    """Return events as a program prints them."""
    return b"".join(json.dumps(event, separators=(",", ":")).encode() + b"\n" for event in events)


def samples() -> dict[str, tuple[str, bytes]]:
    """Return a stream of each kind, with the program that prints it."""
    found = {path.stem: (program_of(path), path.read_bytes()) for path in RECORDINGS}
    return found | {"opencode": ("opencode", lines(*OPENCODE)), "jsonl": ("jsonl", lines(*JSONL))}


def read(program: str, *parts: bytes | memoryview, argv: Iterable[str] | None = None) -> Reading:
    """Return what a new meter reads in the parts, fed one after another."""
    found = named(program)
    assert found is not None
    meter = found.meter(list(COMMANDS[program] if argv is None else argv))
    for part in parts:
        meter.feed(part)
    return meter.reading


def in_all(reading: Reading) -> Tokens:
    """Return the sum of the tokens of all models."""
    every = list(reading.models.values())
    return Tokens(
        input=sum(one.input for one in every),
        output=sum(one.output for one in every),
        cached=sum(one.cached for one in every),
        cache_write=sum(one.cache_write for one in every),
    )
