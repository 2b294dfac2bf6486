"""`approve`: grant the increase that a run waits for."""

from ...core import events as e
from ...protocol.messages import Approve
from ...protocol.types import RunInfo
from ..call import Call, answers_about_run
from ..checks import check_limits


@answers_about_run(Approve)
def approve(call: Call, request: Approve, run: RunInfo) -> None:
    call.ask(e.ApproveRequested, run.id, check_limits(request.limits))
