"""`stop`: stop runs and everything below them."""

from __future__ import annotations

from signal import valid_signals

from ...core import events as e
from ...protocol.messages import Stop
from ..call import Call, answers
from ..checks import check_signal
from ..choosing import check_choice, sweeps, swept
from ..errors import bad_request


@answers(Stop)
def stop(call: Call, request: Stop) -> None:
    check_signal(request.signal, valid_signals())
    check_choice(request)
    if not (request.runs or sweeps(request)):
        raise bad_request("say what to stop: runs, a name, labels, or everything")
    named = [call.resolve(handle).id for handle in request.runs]
    runs = tuple(dict.fromkeys([*named, *swept(call, request, "stop")]))
    call.ask(lambda token, now: e.StopRequested(now, token, call.peer, runs, request.signal, request.grace))
