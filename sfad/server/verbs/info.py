"""`info`: one run, with its live processes and memory."""

import trio
from msgspec.structs import replace

from ...protocol.messages import Info
from ...protocol.types import RunInfo
from ...runs.showing import info_of
from ..call import Call, answers_about_run


@answers_about_run(Info)
def info(call: Call, _request: Info, run: RunInfo) -> None:
    live = call.runtime.catalogue.live.get(run.id)
    footprint = call.runtime.launcher.footprints([run.id]).get(run.id) if live is not None and live.run.attempt else None
    if live is not None and footprint is not None:
        run = info_of(live, trio.current_time(), footprint)
    made, refused = call.runtime.calls.count(run.id)
    if made or refused or run.by_gateway:
        run = replace(run, calls=made, calls_refused=refused)
    call.show(run)
