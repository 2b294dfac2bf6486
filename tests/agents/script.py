"""What the scripted model answers, whichever API it is asked through, and what every answer costs."""

from __future__ import annotations

from dataclasses import dataclass

OPENING = "Let me see."
"""What the model says before a tool call, so that one message is text and a call, as they often are."""


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


@dataclass(frozen=True)
class Tool:
    """A call of a tool of an MCP server."""

    name: str
    """Without what the agent puts in front of it."""
    arguments: dict[str, object]


@dataclass(frozen=True)
class Stall:
    """Text that is streamed; then the reply neither goes on nor ends until `Model.released` is set."""

    text: str


@dataclass(frozen=True)
class Fail:
    """No answer."""

    status: int | None
    """Of HTTP; `None`: the connection is closed."""


Told = Say | Shell | Tool | Stall
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
