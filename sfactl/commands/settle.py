"""Replace a reservation with what was used.

For a call that was not made, or is not billed, give 0 and 0. Prints nothing; --json prints the run.

Exit codes: 0 it is settled; 1 no such reservation is open: it was settled, or its run has ended; 2 a value is missing; 77 not
permitted.
"""

from sfad.protocol.requests.base import RunReply
from sfad.protocol.requests.use import Settle

from .. import output, usage_options
from ..connection import call
from ..exits import ExitCode
from ..options import COMMON, Argument, Parameter

PARAMETERS: tuple[Parameter, ...] = (
    *COMMON,
    Argument("reservation", "RESERVATION", "What `sfactl reserve` printed"),
    *usage_options.AMOUNTS,
)


def main(*, reservation: str, socket: str | None = None, json: bool = False, **amounts: str) -> int:
    request = Settle(id=0, reservation=reservation, **usage_options.read(amounts, usage_options.INPUT, usage_options.OUTPUT))
    found = call(socket, request, RunReply).run
    if json:
        output.print_json(found)
    return ExitCode.DONE
