"""`stop`: stop runs and everything below them."""

from signal import valid_signals

from ...core import events as e
from ...protocol.messages import Stop
from ...protocol.types import ErrorCode
from ..call import Call, answers
from ..checks import RequestError, bad_request, check_signal
from .select import check_choice, filtered, has_filters


@answers(Stop)
def stop(call: Call, request: Stop) -> None:
    if request.sessions:
        _check_sessions(call, request)
    check_signal(request.signal, valid_signals())
    check_choice(request)
    if not (request.runs or has_filters(request)):
        raise bad_request("say what to stop: runs, a name, labels, or everything")
    named = [call.resolve(handle).id for handle in request.runs]
    for run in named:
        call.runtime.hooking.ends.cancel(run)
    runs = tuple(dict.fromkeys([*named, *filtered(call, request, "stop")]))
    call.ask(e.StopRequested, runs, request.signal, request.grace)


def _check_sessions(call: Call, request: Stop) -> None:
    refused = call.runtime.machine.refuse_sessions(call.peer)
    if refused is not None:
        raise RequestError(ErrorCode.NOT_PERMITTED, refused)
    if not request.runs or has_filters(request):
        raise bad_request("to stop sessions, name each in `runs`")
    for handle in request.runs:
        run = call.resolve(handle)
        if not run.session:
            raise bad_request(f"run {run.id} ('{run.name}') is not a session; stop it with: sfactl stop {run.id}")
