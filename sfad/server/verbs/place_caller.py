"""`place_caller`: find the run of a process that calls a model through the gateway."""

import os

from ...protocol.messages import CallerPlaced, PlaceCaller, UpstreamInfo
from ...protocol.types import ErrorCode
from ..call import Call, answers


@answers(PlaceCaller)
def place_caller(call: Call, request: PlaceCaller) -> None:
    runtime = call.runtime
    run = runtime.gateway.run_of(request.token) if request.token is not None else None
    if run is None and request.cgroup is not None:
        run = runtime.launcher.run_of_cgroup(request.cgroup)
    live = call.runtime.catalogue.live.get(run) if run is not None else None
    if live is not None and request.uid not in {None, 0, os.geteuid(), live.uid}:
        live = None  # a run's calls are its user's: who has read its token may not make them
    if live is None:
        message = "the calling process is in no run of this daemon: start the agent with 'sfactl run' or 'sfactl spawn'"
        call.fail(ErrorCode.NOT_PERMITTED, message)
        return
    if not live.spawn.gateway:
        # it would spend the operator's key without the checks that its limits count on
        message = f"run {live.run.id} was started without the gateway, so it may not call it: start the tree with --gateway"
        call.fail(ErrorCode.NOT_PERMITTED, message)
        return
    setups = call.runtime.catalogue.live[live.run.root.id].setups
    upstreams = {name: UpstreamInfo(url=each.url, api=each.api) for name, each in setups.upstreams.items()}
    egress = live.spawn.isolation.egress if live.spawn.isolation is not None else []
    call.reply(CallerPlaced(id=request.id, run=live.run.id, upstreams=upstreams, certificates=setups.certificates, egress=egress))
