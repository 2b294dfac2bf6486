from sfad.protocol.requests.base import RunReply
from sfad.protocol.requests.use import Report

from .. import output
from ..app import app
from ..connecting.connection import call
from ..exits import UsageError
from ..options.shared import Json, Socket
from ..options.spreading import spread
from ..options.usage import Amounts, Model, OwnRun, Purpose


@app.command()
@spread(Amounts)
def report(
    run: OwnRun = None,
    *,
    socket: Socket = None,
    json: Json = False,
    model: Model = None,
    amounts: Amounts,
    role: Purpose = None,
) -> None:
    """Report what a run has used: turns, messages, tokens, cost.

    For an agent, inside its run: adds what it has used since its last report. Amounts count
    against the limits of the run; tokens and cost also against those of all runs above it. RUN
    may be a run below this one. Prints nothing; --json prints the run.

    Exit codes: 0 it is counted, even if a limit is exceeded; 1 the run has ended; 2 no amount
    is given, or this process is in no run and none is named; 66 no such run; 77 not permitted.
    """
    if not (told := amounts.given()):
        raise UsageError(
            "nothing to report: give at least one amount, "
            "as in --turns 1 or --input-tokens 1200 --output-tokens 300"
        )
    request = Report(id=0, run=run, model=model, role=role, **told)
    found = call(socket, request, RunReply).run
    if json:
        output.print_json(found)
