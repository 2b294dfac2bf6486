from typing import Annotated

from sfad.protocol.requests.base import RunReply
from sfad.protocol.requests.use import Report

from .. import output
from ..app import app
from ..connecting.connection import call
from ..exits import UsageError
from ..options.shared import Json, Socket, Value, flag
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
    waiting: Annotated[
        str | None,
        Value("TEXT").option("Say that it waits for a person, and what for; - reads stdin"),
    ] = None,
    going_on: Annotated[bool, flag("Say that it does not wait any more")] = False,
) -> None:
    """Report what a run has used: turns, messages, tokens, cost; or that it waits for a person.

    For an agent, inside its run: adds what it has used since its last report. Amounts count
    against the limits of the run; tokens and cost also against those of all runs above it. RUN
    may be a run below this one. Prints nothing; --json prints the run.

    --waiting is for hooks of agent programs: of the JSON that these give, the message counts. It
    is over with --going-on, or when something is typed into the run's terminal.

    Exit codes: 0 it is counted, even if a limit is exceeded; 1 the run has ended; 2 no amount
    is given, or this process is in no run and none is named; 66 no such run; 77 not permitted.
    """
    told = amounts.given()
    if waiting is not None or going_on:
        if told or model or role or (waiting is not None and going_on):
            raise UsageError("--waiting and --going-on stand alone: report amounts separately")
        from ..terminals.saying import say_waiting  # few reports say so

        say_waiting(run, waiting, socket, json=json)
        return
    if not told:
        raise UsageError(
            "nothing to report: give at least one amount, "
            "as in --turns 1 or --input-tokens 1200 --output-tokens 300"
        )
    request = Report(id=0, run=run, model=model, role=role, **told)
    found = call(socket, request, RunReply).run
    if json:
        output.print_json(found)
