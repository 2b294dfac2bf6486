from sfad.protocol.requests.use import Reserve, Reserved

from .. import output
from ..app import app
from ..connecting.connection import call
from ..exits import ExitCode, Quit, UsageError
from ..options.shared import Json, Socket
from ..options.usage import InputTokens, MaxOutputTokens, Model, OwnRun, Purpose, needed


@app.command()
def reserve(
    run: OwnRun = None,
    socket: Socket = None,
    json: Json = False,
    model: Model = None,
    input_tokens: InputTokens = None,
    max_output_tokens: MaxOutputTokens = None,
    role: Purpose = None,
) -> None:
    """Reserve what a call to a model may use, before the call.

    For an agent. If the run may use this much, prints the reservation's id. The estimate then
    counts against the run, all runs above it, its user and its teams, until `sfactl settle`
    says what was used. A reservation that is never settled is charged in full at the end of the
    run. A refusal charges nothing; it is a breach of the limit that it names, and that limit's
    action follows.

    With --json: {"reserved": {"reservation", "run", "cost_usd"}} or {"refused": {…}} on stdout.

    Exit codes: 0 reserved; 1 refused, with the reason on stderr; 2 a value is missing, or this
    process is in no run and none is named; 66 no such run; 77 not permitted.
    """
    if not model:
        raise UsageError("--model is missing: the estimate needs its prices")
    request = Reserve(
        id=0,
        run=run,
        model=model,
        role=role,
        input_tokens=needed(input_tokens, "--input-tokens"),
        max_output_tokens=needed(max_output_tokens, "--max-output-tokens"),
    )
    found = call(socket, request, Reserved)
    if found.refused is not None:
        if json:
            output.print_json({"refused": found.refused})
        raise Quit(
            ExitCode.REFUSED, "" if json else f"refused: {output.plain(found.refused.message)}"
        )
    reserved = {"reservation": found.reservation, "run": found.run, "cost_usd": found.cost_usd}
    output.answer(json, {"reserved": reserved}, found.reservation or "")
    if found.cost_usd is None:
        output.note(
            "sfactl: this model has no known price, so tokens are reserved, but no money; set "
            '[prices."MODEL"] in the config'
        )
