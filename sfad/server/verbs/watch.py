"""`watch`, and `spawn` with `watch`: push the events, or the calls, of a run and its descendants from now on."""

from ...protocol.messages import CallPush, Done, EventPush, Watch
from ...protocol.types import RunId, RunInfo
from ..call import Call, answers_about_run
from ..checks import unavailable
from ..connection import Pending

MAX_EACH = 64
"""Watches of one connection."""


@answers_about_run(Watch)
def watch(call: Call, request: Watch, run: RunInfo) -> None:
    if request.calls:
        call.permit("calls", call.runtime.catalogue.lineage(run.id))
    demand_watch(call)
    push(call, run.id, calls=request.calls)
    call.reply(Done(id=call.id))


def demand_watch(call: Call) -> None:
    open_here = sum(isinstance(pending.request, Watch) for pending in call.connection.pending.values())
    if open_here >= MAX_EACH:
        raise unavailable(
            f"this connection has {open_here} open watches, at most {MAX_EACH} are allowed; watch a run that is above others",
        )
    call.demand(call.services.bounds.watches, 1)


def push(call: Call, run: RunId, *, calls: bool = False) -> None:
    """Push the events, or the `calls`, of the run and its descendants from now on, until the run is over or the connection is
    closed."""
    connection, watches, subscribers = call.connection, call.services.bounds.watches, call.runtime.subscribers

    uid, lineage = call.runtime.catalogue.uid(run), call.runtime.catalogue.lineage(run)

    def send(push: EventPush | CallPush) -> None:
        if call.scope.knows(uid, lineage):  # until a reload takes the peer's rights away
            connection.send(push)

    forget = (
        subscribers.watch_calls(run, lambda info: send(CallPush(id=call.id, call=info)))
        if calls
        else subscribers.watch(run, lambda event: send(EventPush(id=call.id, event=event)))
    )
    if call.runtime.catalogue.over(run):
        forget()
        return

    def over(_info: RunInfo | None = None) -> None:
        if connection.pending.pop(call.id, None) is None:
            return
        forget()
        unwait()
        watches.add(connection.groups, -1)

    unwait = subscribers.on_end(run, over)
    watches.add(connection.groups, 1)
    connection.pending[call.id] = Pending(Watch(id=call.id, run=run, calls=calls), over)
