"""Continues, at the daemon's start, the trees that the end of the daemon or the machine has ended
(`service.continue_lost`)."""

import os

import trio

from ...core import commands as c
from ...core.state.access import Peer
from ...core.state.policy import Invalid
from ...core.state.vocabulary import ReasonKind
from ...protocol.messages import Continuation, Spawn
from ...protocol.types import RunId, RunInfo
from ...runs.live import ContinuedWith
from ...runs.showing import recalled, to_recall
from ..loop.pending_requests import PendingSpawn
from ..loop.runtime import Runtime
from ..loop.worktrees import WorktreeImpossible, again
from .asker import EXPECTED
from .continuing import (
    continued,
    find_agent_session,
    resumable_program,
    wanted_agent_session,
    with_agent_session,
)
from .unattended import completed_for


def continued_with(
    runtime: Runtime, asked: Spawn, decided: Spawn, pending: PendingSpawn, peer: Peer
) -> ContinuedWith | None:
    """Return what a run is continued with if the daemon or the machine ends it; `None` if it will
    not be. `asked`: the request; `decided`: what the daemon has made of it. A run below another is
    left to that one, which knows of its end."""
    if not runtime.config.service.continue_lost or peer.run is not None or decided.stdio != "files":
        return None
    if (
        not decided.resume_argv
        and resumable_program([os.fsdecode(word) for word in decided.argv]) is None
    ):
        return None
    return ContinuedWith(asked.env, asked.umask, peer.uid, peer.user, pending.user)


async def continue_lost(runtime: Runtime) -> None:
    """Continue the trees that ended so, each once, and forget what was kept for others that have
    ended."""
    kept, limiter = runtime.spool.continued_with, trio.CapacityLimiter(1)
    for run in kept.runs():
        if run in runtime.catalogue.live:
            continue
        info, found = runtime.catalogue.info(run), kept.read(run)
        if (
            info is not None
            and found is not None
            and runtime.config.service.continue_lost
            and _is_lost(info)
        ):
            try:
                await _continue(runtime, info, found, limiter)
            except (Invalid, WorktreeImpossible, *EXPECTED) as error:
                _tell(runtime, run, str(error))
        kept.forget(run)


def _is_lost(info: RunInfo) -> bool:
    return (
        info.reason is not None
        and info.reason.kind == ReasonKind.DAEMON
        and info.continued_by is None
    )


async def _continue(
    runtime: Runtime, info: RunInfo, found: ContinuedWith, limiter: trio.CapacityLimiter
) -> None:
    request, uid = runtime.catalogue.request(info.id), found.uid
    started_with = recalled(request) if request is not None else None
    if started_with is None:
        raise Invalid("what it was started with is not kept")
    asked = Spawn(
        id=0,
        argv=[],
        cwd=b"/",
        env=found.env,
        umask=found.umask,
        key=os.urandom(16).hex(),
        continues=Continuation(run=info.id),
    )
    spawn = continued(asked, again(started_with, info, runtime.agents), info)
    spawn = with_agent_session(
        spawn, await find_agent_session(wanted_agent_session(spawn, info, uid), info, limiter)
    )
    peer = Peer(uid=uid, user=found.user, owner=uid in (0, os.geteuid()))
    in_worktree = spawn
    if spawn.worktree is not None:
        in_worktree = await runtime.worktrees.in_worktree(spawn, info, None, uid, found.credentials)
    decided = await completed_for(runtime, in_worktree, peer, None)

    def answer(said: c.Answer) -> None:
        if isinstance(said, c.SpawnRefused):
            _tell(runtime, info.id, said.refusal.message)
        elif isinstance(said, c.ErrorAnswer):
            _tell(runtime, info.id, said.message)

    pending = PendingSpawn(
        decided.spawn, decided.setups, [], lambda _run: None, decided.program, caller=None,
        user=found.credentials, for_recall=to_recall(spawn, decided.spawn, None), sender=peer.who,
    )  # fmt: skip
    pending.continued_with = continued_with(runtime, spawn, decided.spawn, pending, peer)
    runtime.requests.spawn(peer, decided.asked, pending, answer)


def _tell(runtime: Runtime, run: RunId, why: str) -> None:
    runtime.log.warning(f"run {run} is lost and was not continued: {why}")
