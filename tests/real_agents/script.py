"""What the scripted model answers, whichever API it is asked through, and what every answer
costs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

INPUT_USD, OUTPUT_USD = 3e-6, 15e-6
"""For a token of Claude Sonnet 4.5."""
_BYTES_A_TOKEN = 4
OPENING = "Let me see."
"""What the model says before a tool call, so that one message is text and a call, as they often
are."""


@dataclass(frozen=True)
class Say:
    """A last word: the agent ends."""

    text: str


@dataclass(frozen=True)
class Shell:
    """A call of the agent's shell tool."""

    command: str
    background: bool = False
    """The agent goes on while it runs."""
    escalated: bool = False
    """Codex is asked to execute it outside of its sandbox."""


@dataclass(frozen=True)
class Tool:
    """A call of a tool of an MCP server."""

    name: str
    """Without what the agent puts in front of it."""
    arguments: dict[str, object]


@dataclass(frozen=True)
class Stall:
    """Text that is streamed; then the reply neither goes on nor ends until `Model.released` is
    set."""

    text: str


@dataclass(frozen=True)
class Fail:
    """No answer."""

    status: int | None
    """Of HTTP; `None`: the connection is closed."""


@dataclass(frozen=True)
class Write:
    """Text of so many tokens, or of the maximum that the request allows, and then, if it was not
    cut, a call of the shell tool. Its input is billed by the size of the request."""

    tokens: int

    def call(self, number: int) -> Shell:
        """Return a call that is not like those before: Gemini CLI asks a person about an agent that
        repeats itself."""
        return Shell(f"echo {number}")

    def output(self, maximum: int | None) -> int:
        """Return the tokens that are written."""
        return self.tokens if maximum is None else min(self.tokens, maximum)

    def text(self, maximum: int | None) -> str:
        """Return a text of which no two pieces are alike, for the same reason."""
        return " ".join(f"{number * 7919 % 9973:04}" for number in range(self.output(maximum)))

    def usd(self, body: dict[str, Any], maximum: int | None) -> float:
        """Return what the call costs at the prices of Claude Sonnet 4.5."""
        return INPUT_USD * self.input(body) + OUTPUT_USD * self.output(maximum)

    @staticmethod
    def input(body: dict[str, Any]) -> int:
        """Return the tokens of a request."""
        return len(json.dumps(body)) // _BYTES_A_TOKEN

    def is_cut(self, maximum: int | None) -> bool:
        return self.output(maximum) < self.tokens


Told = Say | Shell | Tool | Stall | Write
Reply = Told | Fail


@dataclass(frozen=True)
class Price:
    """Tokens that every reply is said to have cost, in the words of the API."""

    input: int
    """All of it, what went through a cache included."""
    cached: int
    cache_write: int
    output: int
    reasoning: int = 0
    """Of `output`."""

    @property
    def input_usd(self) -> float:
        """What the input of a call costs at the prices of Claude Sonnet 4.5."""
        fresh = self.input - self.cached - self.cache_write
        return (3 * fresh + 0.3 * self.cached + 3.75 * self.cache_write) / 1e6


ANTHROPIC = Price(input=1350, cached=300, cache_write=50, output=60)
OPENAI = Price(input=1500, cached=400, cache_write=0, output=80, reasoning=16)
GEMINI = Price(input=1700, cached=600, cache_write=0, output=90, reasoning=20)


def text_of(content: str | list[dict[str, Any]]) -> str:
    """Return the text of a message, which is a string or a list of parts."""
    return (
        content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    )
