"""`wait`: reply when a run has ended and the ledger has saved that, or after a time."""

import trio

from ...core.access import unknown_run
from ...core.events import ClientBack
from ...protocol.messages import Wait
from ...protocol.types import ErrorCode, RunInfo
from ..call import Call, answers_about_run
from ..connection import Pending


@answers_about_run(Wait)
def wait(call: Call, request: Wait, run: RunInfo) -> None:
    runtime, connection = call.runtime, call.connection
    if request.tie:
        call.permit("stop", runtime.catalogue.lineage(run.id))  # a tied run is stopped with its client
        runtime.feed(ClientBack(trio.current_time(), run.id, connection.number))
    if runtime.catalogue.over(run.id) or request.timeout == 0:
        call.show(run)
        return
    timer = ("wait", connection.number, call.id)

    def answer(info: RunInfo | None) -> None:
        if connection.pending.pop(call.id, None) is None:
            return  # the connection was closed while waiters were told
        forget()
        runtime.timers.disarm(timer)
        if info is not None and not runtime.catalogue.knows(info.id, call.scope):
            call.fail(ErrorCode.NO_SUCH_RUN, unknown_run(info.id))  # a reload has taken the peer's rights away
        elif info is not None:
            call.show(info)
        else:
            call.end()

    forget = runtime.subscribers.on_end(run.id, answer)
    until = trio.current_time() + max(0.0, request.timeout) if request.timeout is not None else None
    connection.pending[call.id] = Pending(request, lambda: answer(None), until)
    if until is not None:
        runtime.timers.arm(timer, until, lambda: answer(runtime.catalogue.info(run.id)))
