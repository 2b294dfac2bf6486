"""`info`: one run, with its live processes and memory."""

import trio

from ...protocol.messages import Info
from ...protocol.types import RunInfo
from ...runs.showing import info_of
from ..call import Call, answers_about_run


@answers_about_run(Info)
def info(call: Call, _request: Info, run: RunInfo) -> None:
    live = call.runtime.catalogue.live.get(run.id)
    load = call.runtime.launcher.loads([run.id]).get(run.id) if live is not None and live.run.attempt else None
    if live is not None and load is not None:
        run = info_of(live, trio.current_time(), load)
    call.show(run)
