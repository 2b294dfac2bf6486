"""Replace a reservation by what was used.

Replaces what `sfactl reserve` held by what the call used. A call that was not made, or is not billed, is settled with 0 and 0.
Prints nothing; --json prints the run.

Exit codes: 0 it is settled; 1 no such reservation is open: it was settled, or its run has ended; 2 a value is missing; 77 not
permitted.
"""

from __future__ import annotations

from sfad.protocol.messages import RunReply, Settle

from .. import output, usage
from ..connection import connect
from ..exits import Exit
from ..options import COMMON, Argument, Parameter

PARAMETERS: tuple[Parameter, ...] = (
    *COMMON,
    Argument("reservation", "RESERVATION", "What `sfactl reserve` printed"),
    usage.INPUT,
    usage.OUTPUT,
    usage.CACHED,
    usage.CACHE_WRITE,
    usage.TURNS,
    usage.MESSAGES,
    usage.COST,
)


def main(
    *,
    reservation: str,
    input_tokens: str | None = None,
    output_tokens: str | None = None,
    cached_tokens: str | None = None,
    cache_write_tokens: str | None = None,
    turns: str | None = None,
    messages: str | None = None,
    cost: str | None = None,
    socket: str | None = None,
    json: bool = False,
) -> int:
    """Settles a reservation."""
    request = Settle(
        id=0,
        reservation=reservation,
        input_tokens=usage.needed("--input-tokens", input_tokens),
        output_tokens=usage.needed("--output-tokens", output_tokens),
        cached_tokens=usage.count("--cached-tokens", cached_tokens) or 0,
        cache_write_tokens=usage.count("--cache-write-tokens", cache_write_tokens) or 0,
        turns=usage.count("--turns", turns),
        messages=usage.count("--messages", messages),
        cost_usd=usage.usd("--cost", cost),
    )
    with connect(socket) as client:
        request.id = client.next_id()
        found = client.call(request, RunReply).run
    if json:
        output.print_json(found)
    return Exit.DONE
