"""`watch`: push the events of a run and its descendants from now on."""

from __future__ import annotations

from ...protocol.messages import Done, Watch
from ...protocol.types import RunInfo
from ..call import Call, answers_about_run
from ..watching import demand_watch, push


@answers_about_run(Watch)
def watch(call: Call, _request: Watch, run: RunInfo) -> None:
    demand_watch(call)
    push(call, run.id)
    call.reply(Done(id=call.id))
