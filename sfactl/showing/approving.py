"""`approve RUN CALL` and `deny RUN CALL`: answers an agent that asks for a call of a tool."""

from sfad.features.approvals.messages import AnswerApproval
from sfad.protocol.requests.base import Done

from .. import output
from ..connecting.connection import call
from ..exits import ExitCode
from ..options.selection import RunSelection


def answer(chosen: RunSelection, *, allow: bool, message: str = "") -> int:
    """`chosen`: one run and one call."""
    run, name = chosen.runs
    request = AnswerApproval(id=0, run=run, call=name, allow=allow, message=message)
    call(chosen.socket, request, Done)
    if chosen.json:
        output.print_json({"run": run, "call": name, "allowed": allow})
    else:
        print(f"{name} of {run} is {'allowed' if allow else 'denied'}")
    return ExitCode.DONE
