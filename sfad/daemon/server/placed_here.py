"""Runs that were to be placed, and whose place is this node: their requests are completed as those of other runs of this daemon."""

import os

import trio
from msgspec.structs import replace

from ...agents import NO_SETUPS, session_files_of
from ...agents.setup_reader import Root
from ...core.state.access import Peer
from ...core.state.policy import Invalid
from ...core.state.request import Asked
from ...hooks.event_hooks import CHANNEL
from ...protocol.known import NO_METER
from ...protocol.messages import Spawn
from ...runs.live import Live
from ..loop.leading import settings_file
from ..loop.runtime import Runtime
from .lookup import RequestError
from .spawning import SpawnContext, asked_of, asks_for_gateway, completed


async def complete(runtime: Runtime, live: Live) -> Asked:
    """Complete the request of a run, and return what it asks of the core. Raise `Invalid`, `OSError`."""
    run, uid, spawn = live.run, live.uid, replace(live.spawn, placing=None)
    above = runtime.catalogue.live.get(run.parent.id) if run.parent is not None else None
    setups = NO_SETUPS
    if above is not None:
        setups = runtime.catalogue.live[above.run.root.id].setups
    elif asks_for_gateway(spawn, by_default=runtime.gateways.enabled):
        setups = await runtime.setups.read(Root.of(uid, spawn.cwd, spawn.env))
    peer = Peer(uid=uid, user=run.user, owner=uid in (0, os.geteuid()), run=live.caller, hook=spawn.channel == CHANNEL)
    context = SpawnContext(
        peer, above, setups, bool(spawn.gateway), runtime.gateways, runtime.isolating, runtime.agents, runtime.catalogue.live,
        runtime.fleet,
    )  # fmt: skip
    try:
        decided = completed(spawn, context)
        if (file := settings_file(decided)) is not None and decided.gateway:
            decided = completed(replace(spawn, direct=await runtime.setups.why_around(uid, file)), context)
    except RequestError as error:
        raise Invalid(str(error)) from None
    if decided.gateway and above is None:
        await _served(runtime, decided, uid, explicit=context.explicit)
    asked, live.program = asked_of(decided, 0, None, setups)
    live.spawn, live.setups = decided, setups if above is None else NO_SETUPS
    live.session_files = None if decided.meter == NO_METER else session_files_of(decided.meter, asked.argv)
    return asked


async def _served(runtime: Runtime, decided: Spawn, uid: int, *, explicit: bool) -> None:
    """Have the gateway started, and wait for it if the run may not start without. Raise `Invalid`."""
    if not (explicit or runtime.gateways.always):
        if decided.direct is None:
            runtime.gateways.demand_soon(uid)
        return
    served, troubles = trio.Event(), list[str]()

    def told(trouble: str | None) -> None:
        troubles.extend([trouble] if trouble is not None else [])
        served.set()

    runtime.gateways.demand(uid, told)
    await served.wait()
    if troubles:
        raise Invalid(f"the gateway cannot be started: {troubles[0]}; the daemon's log says more")
