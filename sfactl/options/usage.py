"""Amounts of use on the command line: what `report`, `reserve` and `settle` have in common."""

from typing import Annotated, Any

from msgspec import Struct
from msgspec.structs import asdict

from sfad.protocol.texts.units import parse_usd
from sfad.protocol.types import Role

from ..exits import UsageError
from .shared import AMOUNT, MODEL, Value, one_of

OwnRun = Annotated[
    str | None, Value("RUN").argument("Run id (default: the run that this process is in)")
]
Model = Annotated[str | None, MODEL.option("Model, for the price of its tokens", "--model")]
Purpose = Annotated[
    Role | None,
    Value("ROLE", one_of(("planning", "execution"), "role")).option(
        "Purpose: planning or execution (default: none)", "--role"
    ),
]
InputTokens = Annotated[
    int | None,
    AMOUNT.option(
        "Input tokens, including those from or to a cache; 200k is 200000", "--input-tokens"
    ),
]
OutputTokens = Annotated[int | None, AMOUNT.option("Output tokens", "--output-tokens")]
MaxOutputTokens = Annotated[
    int | None,
    AMOUNT.option("Maximum output tokens, as in the call to the model", "--max-output-tokens"),
]


class Amounts(Struct, frozen=True):
    """What a run has used. Each field is one of the message."""

    turns: Annotated[int | None, AMOUNT.option("Tool calls")] = None
    messages: Annotated[int | None, AMOUNT.option("Messages of the model")] = None
    input_tokens: InputTokens = None
    output_tokens: OutputTokens = None
    cached_tokens: Annotated[
        int | None, AMOUNT.option("Input tokens that were read from a cache")
    ] = None
    cache_write_tokens: Annotated[
        int | None, AMOUNT.option("Input tokens that were written to a cache")
    ] = None
    cost_usd: Annotated[
        float | None,
        Value("USD", parse_usd).option(
            "Cost in USD (default: computed from the prices of the model)", "--cost"
        ),
    ] = None

    def given(self) -> dict[str, Any]:
        """Return the amounts that are given, by field."""
        return {name: amount for name, amount in asdict(self).items() if amount is not None}


def needed(amount: int | None, option: str) -> int:
    """Return an amount. Raise `UsageError` if it is not given."""
    if amount is None:
        raise UsageError(f"{option} is missing")
    return amount
