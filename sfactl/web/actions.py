"""What a page may change, with the rights of this process's user. Each answer has a sentence about what came of it."""

from collections.abc import Awaitable, Callable
from typing import Any

from sfad.protocol import messages as m
from sfad.protocol.kinds import KINDS
from sfad.protocol.types import ErrorCode, Limit, RunInfo

from .. import continuing, limits, output, spawn_options
from ..connection import DaemonError
from ..exits import StartRefused, UsageError
from ..limits import describe
from . import views
from .daemon import ask

SOURCE = "sfactl web"
"""Where limits come from that are set here."""

Body = dict[str, Any]
Act = Callable[[str | None, str, Body], Awaitable[Body]]
"""Takes the daemon's socket, the run, and the fields of the request. Raises `Quit`, `OSError`."""


async def _stop(socket: str | None, run: str, _body: Body) -> Body:
    stopped = await ask(socket, m.Stop(id=0, runs=[run]), m.Stopped)
    if stopped.survivors:
        return {"said": output.survivors(stopped.survivors), "bad": True}
    if run in stopped.ended:
        return {"said": f"{run} had ended before"}
    others = len(stopped.stopped) - 1
    return {"said": f"{run} is stopped{f', and {others} below it' if others > 0 else ''}"}


async def _pause(socket: str | None, run: str, _body: Body) -> Body:
    reply = await ask(socket, m.Pause(id=0, run=run), m.RunReply)
    warning = output.pause_warning(reply.run)
    return _changed(reply.run, f"; {warning}" if warning else "")


async def _resume(socket: str | None, run: str, _body: Body) -> Body:
    """Resume a run. The limit that has paused it gets more room: without, it would only warn from now on."""
    room = await _room(socket, run)
    return _changed((await ask(socket, m.Resume(id=0, run=run, limits=room), m.RunReply)).run, room=room)


async def _approve(socket: str | None, run: str, _body: Body) -> Body:
    room = await _room(socket, run)
    return _changed((await ask(socket, m.Approve(id=0, run=run, limits=room), m.RunReply)).run, room=room)


async def _deny(socket: str | None, run: str, _body: Body) -> Body:
    return _changed((await ask(socket, m.Deny(id=0, run=run), m.RunReply)).run)


async def _room(socket: str | None, run: str) -> list[Limit]:
    """Return twice the limit that has paused a run, or as much as the config and the runs above it allow. Nothing if no limit
    has."""
    info = (await ask(socket, m.Info(id=0, run=run), m.RunReply)).run
    kind = info.reason.limit_kind if info.reason is not None else None
    state = next((state for state in info.limits if state.kind == kind), None)
    if state is None:
        return []
    used = state.used or 0.0
    wanted = state.threshold if used < state.threshold else max(2 * state.threshold, 1.25 * used)
    if state.bound is not None:
        wanted = min(wanted, state.bound)
    most = await _most(socket, KINDS[state.kind].most)
    return [Limit(kind=state.kind, threshold=wanted if most is None else min(wanted, most), source=SOURCE)]


async def _most(socket: str | None, key: str) -> float | None:
    """Return a value of `[limits]` in the config; `None` if there is none, or this user may not know it."""
    try:
        settings = (await ask(socket, m.Config(id=0), m.ConfigReply)).settings
    except DaemonError as error:
        if error.error is not ErrorCode.NOT_PERMITTED:
            raise
        return None
    found = next((each.value for each in settings if each.key == f"limits.{key}"), None)
    return float(found) if isinstance(found, int | float) else None


async def _limit(socket: str | None, run: str, body: Body) -> Body:
    given = body.get("limits")
    if not isinstance(given, dict) or not given:
        raise UsageError("type a new value for at least one limit")
    texts = [f"{kind}={value}" for kind, value in given.items() if isinstance(value, str)]
    wanted = limits.of_flags(texts, SOURCE)
    return _changed((await ask(socket, m.ChangeLimits(id=0, run=run, limits=wanted), m.RunReply)).run, room=wanted)


async def _send(socket: str | None, run: str, body: Body) -> Body:
    line = _text(body, "message").encode()
    if not line.strip():
        raise UsageError("type a message")
    await ask(socket, m.Send(id=0, run=run, data=line.removesuffix(b"\n") + b"\n"), m.Done)
    return {"said": f"sent to {run}"}


async def _continue(socket: str | None, run: str, body: Body) -> Body:
    """Continue the session of an ended run in a new one, as `sfactl continue RUN [TASK]` does."""
    options = spawn_options.SpawnOptions(command=[], limit=_text(body, "limits").replace(",", " ").split())
    return await _spawned(socket, continuing.message(run, _text(body, "task").strip() or None, options), f"{run} continues as ")


def _changed(run: RunInfo, more: str = "", room: list[Limit] | None = None) -> Body:
    kinds = {limit.kind for limit in room or ()}
    now = ", ".join(describe(state).partition(";")[0] for state in run.limits if state.kind in kinds)
    return {"said": f"{run.id} is {views.word(run)}{f': {now}' if now else ''}{more}"}


async def start(socket: str | None, body: Body) -> Body:
    """Start a run of a registered agent, as `sfactl spawn AGENT TASK` does."""
    agent, task = _text(body, "agent"), _text(body, "task")
    if not agent or not task.strip():
        raise UsageError("choose an agent, and say what its task is")
    wanted = spawn_options.SpawnOptions(
        command=[task],
        agent=agent,
        name=_text(body, "name") or None,
        cwd=_text(body, "directory") or None,
        limit=_text(body, "limits").replace(",", " ").split(),
    )
    spawn_options.check(wanted)
    return await _spawned(socket, spawn_options.message(wanted))


async def _spawned(socket: str | None, request: m.Spawn, said: str = "") -> Body:
    reply = await ask(socket, request, m.Reply)
    if isinstance(reply, m.Refused):
        raise StartRefused(reply.refused.kind, 1, output.plain(reply.refused.message))
    assert isinstance(reply, m.RunReply)  # `ask` raises for an error, and a Spawn has no other reply
    why = output.failure(reply.run)
    return {"said": why or f"{said}{reply.run.id}, which is {views.word(reply.run)}", "run": reply.run.id, "bad": why is not None}


def _text(body: Body, field: str) -> str:
    value = body.get(field, "")
    if not isinstance(value, str):
        raise UsageError(f"{field}: not a text")
    return value


ON_RUNS: dict[str, Act] = {
    "stop": _stop, "pause": _pause, "resume": _resume, "approve": _approve, "deny": _deny, "limit": _limit, "send": _send,
    "continue": _continue,
}  # fmt: skip
"""What a page may do with a run, by the last word of the path."""
