"""Amounts of use on the command line: what `report`, `reserve` and `settle` have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sfad.protocol.types import Role
from sfad.protocol.units import parse_count, parse_usd

from .exits import UsageError, understood
from .options import Argument, Option

RUN = Argument("run", "RUN", "Run id (default: the run that this process is in)", required=False)
MODEL = Option(("--model",), "model", "Model, for the price of its tokens", "MODEL")
ROLE = Option(("--role",), "role", "Purpose: planning or execution (default: none)", "ROLE")
INPUT = Option(("--input-tokens",), "input_tokens", "Input tokens, including those from or to a cache; 200k is 200000", "N")
OUTPUT = Option(("--output-tokens",), "output_tokens", "Output tokens", "N")
MAX_OUTPUT = Option(("--max-output-tokens",), "max_output_tokens", "Maximum output tokens, as in the call to the model", "N")

AMOUNTS = (
    Option(("--turns",), "turns", "Tool calls", "N"),
    Option(("--messages",), "messages", "Messages of the model", "N"),
    INPUT,
    OUTPUT,
    Option(("--cached-tokens",), "cached_tokens", "Input tokens that were read from a cache", "N"),
    Option(("--cache-write-tokens",), "cache_write_tokens", "Input tokens that were written to a cache", "N"),
    Option(("--cost",), "cost_usd", "Cost in USD (default: computed from the prices of the model)", "USD"),
)
"""What a run has used. The target of each is its field in the message."""

OPTIONS = {option.target: option for option in (*AMOUNTS, MAX_OUTPUT)}


def read(given: Mapping[str, str], *needed: Option) -> dict[str, Any]:
    """Return the amounts, by field of the message, of the options that are given, by target. Raise `UsageError`."""
    for option in needed:
        if option.target not in given:
            raise UsageError(f"{option.flags[0]} is missing")
    return {target: _amount(OPTIONS[target], text) for target, text in given.items()}


def _amount(option: Option, text: str) -> float:
    return understood(option.flags[0], parse_usd if option.metavar == "USD" else parse_count, text)


def role(text: str | None) -> Role | None:
    """Return what the tokens were for. Raise `UsageError`."""
    try:
        return None if text is None else _ROLES[text]
    except KeyError:
        raise UsageError(f"--role: {text!r} is neither planning nor execution") from None


_ROLES: dict[str, Role] = {"planning": "planning", "execution": "execution"}
