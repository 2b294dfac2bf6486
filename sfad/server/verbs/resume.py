"""`resume`: thaw a paused run."""

from ...core import events as e
from ...protocol.messages import Resume
from ...protocol.types import RunInfo
from ..call import Call, answers_about_run
from ..checks import check_limits


@answers_about_run(Resume)
def resume(call: Call, request: Resume, run: RunInfo) -> None:
    call.ask(e.ResumeRequested, run.id, check_limits(request.limits), request.suspended)
