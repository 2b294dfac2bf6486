"""Prepares runs that were to be placed on a node of the fleet, and whose place is this one."""

import os

from msgspec.structs import replace

from ...agents.setup_reader import NO_SETUPS
from ...core.state.access import Peer
from ...core.state.request import Asked
from ...runs.live import Live
from ...start.steps import CHANNELS
from ..loop.runtime import Runtime


async def prepare_here(runtime: Runtime, live: Live) -> Asked:
    """Prepare a run that the core has admitted already. Return what it asks of the core. Raise
    `Invalid`, `RequestError`, `OSError`."""
    assert live.order is not None
    run, uid = live.run, live.uid
    peer = Peer(
        uid=uid,
        user=run.user,
        owner=uid in (0, os.geteuid()),
        run=live.caller,
        channel=run.birth.channel if run.birth.channel in CHANNELS else None,
    )
    order = replace(live.order, placing=None, ship=live.parts.ship)
    around = runtime.starting.around(order, peer, live.credentials)
    p = await runtime.starting.prepare(around)
    live.take(p.command, p.output, p.parts, p.program, p.asked.shown.argv)
    live.setups = around.setups if around.caller is None else NO_SETUPS
    return p.asked
