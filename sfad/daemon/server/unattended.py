"""Completes requests for which no client waits: of runs whose place is this node after all, and of
lost runs that are continued."""

import os
from typing import NamedTuple

import trio
from msgspec.structs import replace

from ...agents import AgentProgram, session_files_of
from ...agents.setup_reader import NO_SETUPS, Root, TreeSetups
from ...core.state.access import Peer
from ...core.state.policy import Invalid
from ...core.state.request import Asked
from ...hooks.event_hooks import CHANNEL
from ...protocol.known import NO_METER
from ...protocol.messages import Spawn
from ...runs.live import Live
from ..loop.gateway_routing import settings_file
from ..loop.runtime import Runtime
from .lookup import RequestError
from .spawn_steps import apply_steps, asked_of, asks_for_gateway, context_of


class Completed(NamedTuple):
    spawn: Spawn
    setups: TreeSetups
    asked: Asked
    program: AgentProgram | None


async def completed_for(
    runtime: Runtime, request: Spawn, peer: Peer, caller: Live | None
) -> Completed:
    """Return what a request becomes, once the gateway serves if its run may not start without.
    Raise `Invalid`, `OSError`."""
    setups = NO_SETUPS
    if caller is not None:
        setups = runtime.catalogue.live[caller.run.root.id].setups
    elif asks_for_gateway(request, by_default=runtime.gateways.enabled):
        setups = await runtime.setups.read(Root.of(peer.uid, request.cwd, request.env))
    context = context_of(runtime, request, peer, caller, setups, os.getpid())
    try:
        decided = apply_steps(request, context)
        if (file := settings_file(decided)) is not None and decided.gateway:
            decided = apply_steps(
                replace(request, direct=await runtime.setups.why_around(peer.uid, file)), context
            )
    except RequestError as error:
        raise Invalid(str(error)) from None
    if decided.gateway and caller is None:
        await _served(runtime, decided, peer.uid, explicit=context.explicit)
    return Completed(decided, setups, *asked_of(decided, 0, None, setups))


async def complete_here(runtime: Runtime, live: Live) -> Asked:
    """Complete the request of a run that was to be placed, and whose place is this node. Return
    what it asks of the core. Raise `Invalid`, `OSError`."""
    run, uid, request = live.run, live.uid, replace(live.spawn, placing=None)
    caller = runtime.catalogue.live.get(run.parent.id) if run.parent is not None else None
    peer = Peer(
        uid=uid,
        user=run.user,
        owner=uid in (0, os.geteuid()),
        run=live.caller,
        hook=request.channel == CHANNEL,
    )
    found = await completed_for(runtime, request, peer, caller)
    live.program, live.spawn = found.program, found.spawn
    live.setups = found.setups if caller is None else NO_SETUPS
    live.session_files = (
        None
        if found.spawn.meter == NO_METER
        else session_files_of(found.spawn.meter, found.asked.shown.argv)
    )
    return found.asked


async def _served(runtime: Runtime, decided: Spawn, uid: int, *, explicit: bool) -> None:
    """Have the gateway started, and wait for it if the run may not start without. Raise
    `Invalid`."""
    if not (explicit or runtime.gateways.always):
        if decided.direct is None:
            runtime.gateways.start_ahead(uid)
        return
    served, troubles = trio.Event(), list[str]()

    def told(trouble: str | None) -> None:
        troubles.extend([trouble] if trouble is not None else [])
        served.set()

    runtime.gateways.start_for_run(uid, told)
    await served.wait()
    if troubles:
        raise Invalid(f"the gateway cannot be started: {troubles[0]}; the daemon's log says more")
