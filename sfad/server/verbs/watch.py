"""`watch`, and `spawn` with `watch`: push the events of a run and its descendants from now on."""

from ...protocol.messages import Done, EventPush, Watch
from ...protocol.types import Event, RunId, RunInfo
from ..call import Call, answers_about_run
from ..checks import unavailable
from ..connection import Pending

MAX_EACH = 64
"""Watches of one connection."""


@answers_about_run(Watch)
def watch(call: Call, _request: Watch, run: RunInfo) -> None:
    demand_watch(call)
    push(call, run.id)
    call.reply(Done(id=call.id))


def demand_watch(call: Call) -> None:
    open_here = sum(isinstance(pending.request, Watch) for pending in call.connection.pending.values())
    if open_here >= MAX_EACH:
        raise unavailable(
            f"this connection has {open_here} open watches, at most {MAX_EACH} are allowed; watch a run that is above others",
        )
    call.demand(call.services.bounds.watches, 1)


def push(call: Call, run: RunId) -> None:
    """Push the events of the run and its descendants from now on, until the run is over or the connection is closed."""
    connection, watches = call.connection, call.services.bounds.watches

    def send(event: Event) -> None:
        connection.send(EventPush(id=call.id, event=event))

    forget = call.runtime.subscribers.watch(run, send)
    if call.runtime.catalogue.over(run):
        forget()
        return

    def over(_info: RunInfo | None = None) -> None:
        if connection.pending.pop(call.id, None) is None:
            return
        forget()
        unwait()
        watches.add(connection.groups, -1)

    unwait = call.runtime.subscribers.on_end(run, over)
    watches.add(connection.groups, 1)
    connection.pending[call.id] = Pending(Watch(id=call.id, run=run), over)
