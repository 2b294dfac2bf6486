from typing import Annotated

from sfad.protocol.requests.base import RunReply
from sfad.protocol.requests.steering import Deny

from .. import output
from ..app import app
from ..exits import UsageError
from ..options.selection import RunSelection, one_call
from ..options.shared import Value
from ..options.spreading import spread


@app.command()
@spread(RunSelection)
def deny(
    chosen: RunSelection,
    message: Annotated[
        str, Value("TEXT").option("What the agent is told of the call that is denied")
    ] = "",
) -> int:
    """Deny the increase that a run waits for, and stop the run; or a call of a tool.

    RUN CALL, as in a4 call-1, denies one call of a tool that the agent of the run asks for
    (spawn --approvals). The agent goes on, and is told --message.

    The run and everything below it is stopped as if the limit had terminated it. Returns when
    the stop has begun; `sfactl wait RUN` waits for the end. Works only outside any run.

    Exit codes: 0 it is being stopped; 1 it does not wait for approval; 66 no such run; 77 not
    permitted.
    """
    if one_call(chosen):
        from ..showing.approving import answer

        return answer(chosen, allow=False, message=message)
    if message:
        raise UsageError("--message is for a call of a tool: name it, as in a4 call-1")
    return chosen.each(
        "deny",
        lambda client, run: output.changed(
            client.call(Deny(id=0, run=run), RunReply).run, chosen.json
        ),
    )
