"""Amounts of use on the command line: what `report`, `reserve` and `settle` have in common."""

from __future__ import annotations

from typing import cast

from sfad.protocol.types import Role
from sfad.protocol.units import parse_count

from .exits import UsageError
from .options import Argument, Option

RUN = Argument("run", "RUN", "Run id; without it, the run that this process is in", required=False)
MODEL = Option(("--model",), "model", "The model, for the price of its tokens", "MODEL")
ROLE = Option(("--role",), "role", "What it was for: planning or execution", "ROLE")
TURNS = Option(("--turns",), "turns", "Tool calls", "N")
MESSAGES = Option(("--messages",), "messages", "Messages of the model", "N")
INPUT = Option(("--input-tokens",), "input_tokens", "Tokens in, those from or to a cache included; 200k is 200000", "N")
OUTPUT = Option(("--output-tokens",), "output_tokens", "Tokens out", "N")
CACHED = Option(("--cached-tokens",), "cached_tokens", "Of the tokens in, those read from a cache", "N")
CACHE_WRITE = Option(("--cache-write-tokens",), "cache_write_tokens", "Of the tokens in, those written to a cache", "N")
COST = Option(("--cost",), "cost", "USD, if the agent knows it; else it is computed from the model's prices", "USD")


def count(option: str, text: str | None) -> int | None:
    """A whole number like 1200 or 200k; `None` where it is not given. Raises `UsageError`."""
    if text is None:
        return None
    try:
        return parse_count(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def needed(option: str, text: str | None) -> int:
    """The same for an option that must be given."""
    found = count(option, text)
    if found is None:
        raise UsageError(f"{option} is missing")
    return found


def usd(option: str, text: str | None) -> float | None:
    """US dollars; `None` where none are given. Raises `UsageError`."""
    if text is None:
        return None
    from sfad.protocol.limits import parse_usd

    try:
        return parse_usd(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def role(text: str | None) -> Role | None:
    """What the tokens were for. Raises `UsageError`."""
    if text not in (None, "planning", "execution"):
        raise UsageError(f"--role: {text!r} is neither planning nor execution")
    return cast(Role | None, text)
