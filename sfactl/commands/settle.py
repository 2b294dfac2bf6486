from typing import Annotated

from sfad.protocol.requests.base import RunReply
from sfad.protocol.requests.use import Settle

from .. import output
from ..app import app
from ..connecting.connection import call
from ..options.shared import Json, Socket, Value
from ..options.spreading import spread
from ..options.usage import Amounts, needed


@app.command()
@spread(Amounts)
def settle(
    reservation: Annotated[str, Value("RESERVATION").argument("What `sfactl reserve` printed")],
    *,
    socket: Socket = None,
    json: Json = False,
    amounts: Amounts,
) -> None:
    """Replace a reservation with what was used.

    For a call that was not made, or is not billed, give 0 and 0. Prints nothing; --json prints
    the run.

    Exit codes: 0 it is settled; 1 no such reservation is open: it was settled, or its run has
    ended; 2 a value is missing; 77 not permitted.
    """
    needed(amounts.input_tokens, "--input-tokens")
    needed(amounts.output_tokens, "--output-tokens")
    request = Settle(id=0, reservation=reservation, **amounts.given())
    found = call(socket, request, RunReply).run
    if json:
        output.print_json(found)
