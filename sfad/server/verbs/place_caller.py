"""`place_caller`: find the run of a process that calls a model through the gateway."""

import os

from ...protocol.messages import CallerPlaced, PlaceCaller, UpstreamInfo
from ...protocol.types import ErrorCode
from ..call import Call, answers


@answers(PlaceCaller)
def place_caller(call: Call, request: PlaceCaller) -> None:
    runtime, gateway = call.runtime, call.peer.gateway_of
    run = runtime.gateways.run_of(request.token) if request.token is not None else None
    if run is None and request.cgroup is not None:
        run = runtime.launcher.run_of_cgroup(request.cgroup)
    live = call.runtime.catalogue.live.get(run) if run is not None else None
    if live is not None and request.uid not in {None, 0, os.geteuid(), live.uid}:
        live = None  # a run's calls are its user's: who has read its token may not make them
    if live is not None and gateway not in {None, live.uid}:
        call.fail(ErrorCode.NOT_PERMITTED, "this is another user's gateway: the addresses of your run's own are in its environment")
        return
    if live is None:
        message = "the calling process is in no run of this daemon: start the agent with 'sfactl run' or 'sfactl spawn'"
        call.fail(ErrorCode.NOT_PERMITTED, message)
        return
    if not live.spawn.gateway:
        # it would spend the operator's key without the checks that its limits count on
        message = f"run {live.run.id} was started without the gateway, so it may not call it: start the tree with --gateway"
        call.fail(ErrorCode.NOT_PERMITTED, message)
        return
    root = call.runtime.catalogue.live[live.run.root.id]
    upstreams = {name: UpstreamInfo(url=each.url, api=each.api) for name, each in root.setups.upstreams.items()}
    keyed_only = runtime.gateways.leads_keyed_only(gateway, live.uid)
    # a file that another user names could stand for any authority
    trusts = not keyed_only and root.uid == live.uid
    call.reply(
        CallerPlaced(
            id=request.id,
            run=live.run.id,
            upstreams=upstreams,
            certificates=root.setups.certificates if trusts else [],
            egress=live.spawn.isolation.egress if live.spawn.isolation is not None and not keyed_only else [],
            keyed_only=keyed_only,
            token=runtime.gateways.passage(gateway, live.run.id),
        )
    )
