"""`info`: one run, with its live processes and memory."""

from datetime import timedelta

import trio
from msgspec import Raw
from msgspec.structs import replace

from ...core.run import Run
from ...host.clock import wall_clock
from ...loop.runtime import Runtime
from ...protocol.messages import Info, pack
from ...protocol.types import QueueState, RunId, RunInfo, Status
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
        info = replace(info_of(live, trio.current_time(), footprint), queue=_queue(runtime, live.run))
    made, refused = runtime.calls.count(run)
    if made or refused or info.by_gateway:
        last = runtime.calls.last_refusal(run) if refused else None
        info = replace(info, calls=made, calls_refused=refused, last_refusal=last)
    (info,) = catalogue.with_totals([info])
    return info


def _queue(runtime: Runtime, run: Run) -> QueueState | None:
    place = runtime.machine.slots.place_of(run.id)
    if place is None:
        return None
    holding = [root for root in runtime.machine.tree.roots() if root.status is not Status.QUEUED]
    if place.key != "quotas.trees":
        holding = [root for root in holding if root.user == run.user]
    if place.key not in {"quotas.trees", "quotas.trees_per_user"}:
        holding = [root for root in holding if root.asked.group == run.asked.group]
    first = min((root.deadline for root in holding if root.deadline is not None), default=None)
    free_by = wall_clock() + timedelta(seconds=first - trio.current_time()) if first is not None else None
    return QueueState(**place._asdict(), free_by=free_by)
