"""Continues, at the daemon's start, the trees that the end of the daemon or the machine has ended
(`service.continue_lost`)."""

import os
from functools import partial

import trio

from ...core import commands as c
from ...core.state.access import Peer
from ...core.state.policy import Invalid
from ...core.state.vocabulary import ReasonKind
from ...protocol.messages import Continuation, Spawn
from ...protocol.types import RunId, RunInfo
from ...runs.live import ContinuedWith
from ...start.continuing import continued
from ..loop.pending_requests import PendingSpawn
from ..loop.runtime import Runtime
from .asker import EXPECTED


async def continue_lost(runtime: Runtime) -> None:
    """Continue the trees that ended so, each once, and forget what was kept for others that have
    ended."""
    kept, limiter = runtime.resources.spool.continued_with, trio.CapacityLimiter(1)
    for run in kept.runs():
        if run in runtime.catalogue.live:
            continue
        info, found = runtime.catalogue.info(run), kept.read(run)
        if (
            runtime.in_force.config.service.continue_lost
            and found is not None
            and info is not None
            and info.reason is not None
            and info.reason.kind == ReasonKind.DAEMON
            and info.continued_by is None
        ):
            try:
                await _continue(runtime, info, found, limiter)
            except (Invalid, *EXPECTED) as error:
                _tell(runtime, run, str(error))
        kept.forget(run)


async def _continue(
    runtime: Runtime, info: RunInfo, found: ContinuedWith, limiter: trio.CapacityLimiter
) -> None:
    asked = Spawn(
        id=0,
        argv=[],
        cwd=b"/",
        env=found.env,
        umask=found.umask,
        key=os.urandom(16).hex(),
        continues=Continuation(run=info.id),
    )
    order = continued(asked, runtime.starting.started_with(info), info)
    peer = Peer(found.uid, found.user, owner=found.uid in (0, os.geteuid()))
    around = runtime.starting.around(order, peer, found.credentials, earlier=info, threads=limiter)
    pending = PendingSpawn(await runtime.starting.prepare(around), around)
    runtime.requests.spawn(pending, partial(_answered, runtime, info.id))


def _answered(runtime: Runtime, run: RunId, said: c.Answer) -> None:
    if isinstance(said, c.SpawnRefused):
        _tell(runtime, run, said.refusal.message)
    elif isinstance(said, c.ErrorAnswer):
        _tell(runtime, run, said.message)


def _tell(runtime: Runtime, run: RunId, why: str) -> None:
    runtime.resources.log.warning(f"run {run} is lost and was not continued: {why}")
