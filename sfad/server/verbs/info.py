"""`info`: one run, with its live processes and memory."""

import trio
from msgspec import Raw
from msgspec.structs import replace

from ...loop.runtime import Runtime
from ...protocol.messages import Info, pack
from ...protocol.types import RunId, RunInfo
from ...runs.showing import info_of
from ..call import Call, answers
from ..encoded import RunRow


@answers(Info)
def info(call: Call, request: Info) -> None:
    run = call.find(request.run)
    row = call.services.looks.of(run, lambda: Raw(pack(_look(call.runtime, run))))
    call.reply(RunRow(id=call.id, run=row))


def _look(runtime: Runtime, run: RunId) -> RunInfo:
    catalogue, live = runtime.catalogue, runtime.catalogue.live.get(run)
    if live is None:
        info = catalogue.info(run)
        assert info is not None
    else:
        footprint = runtime.launcher.footprints([run]).get(run) if live.run.attempt else None
        info = info_of(live, trio.current_time(), footprint)
    made, refused = runtime.calls.count(run)
    if made or refused or info.by_gateway:
        info = replace(info, calls=made, calls_refused=refused)
    (info,) = catalogue.with_totals([info])
    return info
