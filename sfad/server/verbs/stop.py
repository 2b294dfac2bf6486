"""`stop`: stop runs and everything below them."""

from signal import valid_signals

from ...core import events as e
from ...protocol.messages import Stop
from ..call import Call, answers
from ..checks import bad_request, check_signal
from .select import check_choice, filtered, has_filters


@answers(Stop)
def stop(call: Call, request: Stop) -> None:
    check_signal(request.signal, valid_signals())
    check_choice(request)
    if not (request.runs or has_filters(request)):
        raise bad_request("say what to stop: runs, a name, labels, or everything")
    named = [call.resolve(handle).id for handle in request.runs]
    runs = tuple(dict.fromkeys([*named, *filtered(call, request, "stop")]))
    call.ask(e.StopRequested, runs, request.signal, request.grace)
