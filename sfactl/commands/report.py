"""Report what a run has used: turns, messages, tokens, cost.

For an agent, inside its run: adds what it has used since its last report. Amounts count against the limits of the run; tokens and
cost also against those of all runs above it. RUN may be a run below this one. Prints nothing; --json prints the run.

Exit codes: 0 it is counted, even if a limit is exceeded; 1 the run has ended; 2 no amount is given, or this process is in no run
and none is named; 66 no such run; 77 not permitted.
"""

from sfad.protocol.requests.base import RunReply
from sfad.protocol.requests.use import Report

from .. import output, usage_options
from ..connection import call
from ..exits import ExitCode, UsageError
from ..options import COMMON, Parameter

PARAMETERS: tuple[Parameter, ...] = (*COMMON, usage_options.RUN, usage_options.MODEL, *usage_options.AMOUNTS, usage_options.ROLE)


def main(
    *,
    run: str | None = None,
    model: str | None = None,
    role: str | None = None,
    socket: str | None = None,
    json: bool = False,
    **amounts: str,
) -> int:
    if not amounts:
        raise UsageError("nothing to report: give at least one amount, as in --turns 1 or --input-tokens 1200 --output-tokens 300")
    request = Report(id=0, run=run, model=model, role=usage_options.role(role), **usage_options.read(amounts))
    found = call(socket, request, RunReply).run
    if json:
        output.print_json(found)
    return ExitCode.DONE
