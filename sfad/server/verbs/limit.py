"""`limit`: change the limits of a live run."""

from ...core import events as e
from ...protocol.messages import ChangeLimits
from ...protocol.types import RunInfo
from ..call import Call, answers_about_run
from ..checks import bad_request, check_limits


@answers_about_run(ChangeLimits)
def limit(call: Call, request: ChangeLimits, run: RunInfo) -> None:
    if not request.limits:
        raise bad_request("say which limits: KIND=VALUE")
    call.ask(e.LimitRequested, run.id, check_limits(request.limits))
