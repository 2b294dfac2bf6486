"""Amounts of use on the command line: what `report`, `reserve` and `settle` have in common."""

from typing import Annotated, Any

import typer
from msgspec import Struct
from msgspec.structs import asdict

from sfad.protocol.types import Role

from .exits import UsageError
from .options import AMOUNT, USD, either

OwnRun = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="Run id (default: the run that this process is in)"),
]
Model = Annotated[
    str | None, typer.Option("--model", metavar="MODEL", help="Model, for the price of its tokens")
]
Purpose = Annotated[
    Role | None,
    typer.Option(
        "--role",
        metavar="ROLE",
        help="Purpose: planning or execution (default: none)",
        parser=either("planning", "execution"),
    ),
]
InputTokens = Annotated[
    int | None,
    typer.Option(
        "--input-tokens",
        metavar="N",
        help="Input tokens, including those from or to a cache; 200k is 200000",
        parser=AMOUNT,
    ),
]
OutputTokens = Annotated[
    int | None, typer.Option("--output-tokens", metavar="N", help="Output tokens", parser=AMOUNT)
]
MaxOutputTokens = Annotated[
    int | None,
    typer.Option(
        "--max-output-tokens",
        metavar="N",
        help="Maximum output tokens, as in the call to the model",
        parser=AMOUNT,
    ),
]


class Amounts(Struct, frozen=True):
    """What a run has used. Each field is one of the message."""

    turns: Annotated[
        int | None, typer.Option("--turns", metavar="N", help="Tool calls", parser=AMOUNT)
    ] = None
    messages: Annotated[
        int | None,
        typer.Option("--messages", metavar="N", help="Messages of the model", parser=AMOUNT),
    ] = None
    input_tokens: InputTokens = None
    output_tokens: OutputTokens = None
    cached_tokens: Annotated[
        int | None,
        typer.Option(
            "--cached-tokens",
            metavar="N",
            help="Input tokens that were read from a cache",
            parser=AMOUNT,
        ),
    ] = None
    cache_write_tokens: Annotated[
        int | None,
        typer.Option(
            "--cache-write-tokens",
            metavar="N",
            help="Input tokens that were written to a cache",
            parser=AMOUNT,
        ),
    ] = None
    cost_usd: Annotated[
        float | None,
        typer.Option(
            "--cost",
            metavar="USD",
            help="Cost in USD (default: computed from the prices of the model)",
            parser=USD,
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
