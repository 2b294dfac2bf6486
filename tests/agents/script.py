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


Reply = Say | Shell


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


ANTHROPIC = Price(input=1350, cached=300, cache_write=50, output=60)
OPENAI = Price(input=1500, cached=400, cache_write=0, output=80, reasoning=16)
GEMINI = Price(input=1700, cached=600, cache_write=0, output=90, reasoning=20)
