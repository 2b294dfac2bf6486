"""What a page may change, with the rights of this process's user. Each answer has a sentence about
what came of it."""

from collections.abc import Awaitable, Callable
from math import ceil
from typing import Any

from sfad.protocol import messages as m
from sfad.protocol.kinds import KINDS
from sfad.protocol.types import ErrorCode, Limit, RunInfo

from .. import output
from ..connecting.connection import DaemonError
from ..exits import StartRefused, UsageError
from ..options import limits
from ..options import spawn as spawn_options
from ..options.limits import describe
from . import views
from .source import Source, in_thread

SOURCE = "sfactl web"
"""Where limits come from that are set here."""

Body = dict[str, Any]
Act = Callable[[Source, str, Body], Awaitable[Body]]
"""Takes the source, the run, and the fields of the request. Raises `Quit`, `OSError`."""


async def _stop(source: Source, run: str, _body: Body) -> Body:
    stopped = await source.ask(m.Stop(id=0, runs=[run]), m.Stopped)
    if stopped.survivors:
        return {"said": output.survivors(stopped.survivors), "bad": True}
    if run in stopped.ended:
        return {"said": f"{run} had ended before"}
    others = len(stopped.stopped) - 1
    return {"said": f"{run} is stopped{f', and {others} below it' if others > 0 else ''}"}


async def _pause(source: Source, run: str, _body: Body) -> Body:
    reply = await source.ask(m.Pause(id=0, run=run), m.RunReply)
    warning = output.pause_warning(reply.run)
    return _changed(reply.run, f"; {warning}" if warning else "")


async def _resume(source: Source, run: str, _body: Body) -> Body:
    """Resume a run. The limit that has paused it gets more room: without, it would only warn from
    now on."""
    room = await _room(source, run)
    return _changed(
        (await source.ask(m.Resume(id=0, run=run, limits=room), m.RunReply)).run, room=room
    )


async def _approve(source: Source, run: str, body: Body) -> Body:
    if "call" in body:
        return await _answer(source, run, body, allow=True)
    room = await _room(source, run)
    return _changed(
        (await source.ask(m.Approve(id=0, run=run, limits=room), m.RunReply)).run, room=room
    )


async def _deny(source: Source, run: str, body: Body) -> Body:
    if "call" in body:
        return await _answer(source, run, body, allow=False)
    return _changed((await source.ask(m.Deny(id=0, run=run), m.RunReply)).run)


async def _answer(source: Source, run: str, body: Body, *, allow: bool) -> Body:
    """Answer an agent that asks for the call of a tool which the page has shown."""
    from sfad.features.approvals.messages import AnswerApproval  # of a feature: it may not be there

    call, message = _text(body, "call"), _text(body, "message")
    wanted = AnswerApproval(id=0, run=run, call=call, allow=allow, message=message)
    await source.ask(wanted, m.Done)
    return {"said": f"{call} of {run} is {'allowed' if allow else 'denied'}"}


async def _room(source: Source, run: str) -> list[Limit]:
    """Return twice the limit that has paused a run, or as much as the config and the runs above it
    allow. Nothing if no limit has."""
    info = (await source.ask(m.Info(id=0, run=run), m.RunReply)).run
    kind = output.holding_limit(info)
    state = next((state for state in info.limits if state.kind == kind), None)
    if state is None:
        return []
    used, spec = state.used or 0.0, KINDS[state.kind]
    wanted = state.threshold if used < state.threshold else max(2 * state.threshold, 1.25 * used)
    if spec.whole:
        wanted = float(ceil(wanted))
    if state.bound is not None:
        wanted = min(wanted, state.bound)
    most = await _most(source, spec.most)
    return [
        Limit(
            kind=state.kind, threshold=wanted if most is None else min(wanted, most), source=SOURCE
        )
    ]


async def _most(source: Source, key: str) -> float | None:
    """Return a value of `[limits]` in the config; `None` if there is none, or this user may not
    know it."""
    try:
        settings = (await source.ask(m.Config(id=0), m.ConfigReply)).settings
    except DaemonError as error:
        if error.error is not ErrorCode.NOT_PERMITTED:
            raise
        return None
    found = next((each.value for each in settings if each.key == f"limits.{key}"), None)
    return float(found) if isinstance(found, int | float) else None


async def _limit(source: Source, run: str, body: Body) -> Body:
    given = body.get("limits")
    if not isinstance(given, dict) or not given:
        raise UsageError("type a new value for at least one limit")
    texts = [f"{kind}={value}" for kind, value in given.items() if isinstance(value, str)]
    wanted = limits.of_flags(texts, SOURCE)
    return _changed(
        (await source.ask(m.ChangeLimits(id=0, run=run, limits=wanted), m.RunReply)).run,
        room=wanted,
    )


async def _send(source: Source, run: str, body: Body) -> Body:
    line = _text(body, "message").encode()
    if not line.strip():
        raise UsageError("type a message")
    await source.ask(m.Send(id=0, run=run, data=line.removesuffix(b"\n") + b"\n"), m.Done)
    return {"said": f"sent to {run}"}


async def _keys(source: Source, run: str, body: Body) -> Body:
    """Type into the terminal of a run, as `sfactl attach` does."""
    from .terminal import keys  # few runs have one

    await keys(source, run, _text(body, "keys"), _side(body, "rows"), _side(body, "columns"))
    return {"said": f"typed into {run}"}


async def _continue(source: Source, run: str, body: Body) -> Body:
    """Continue the session of an ended run in a new one, as `sfactl continue RUN [TASK]` does."""
    options = spawn_options.SpawnOptions(
        limit=limits.of_flags(_text(body, "limits").replace(",", " ").split())
    )
    return await _spawned(
        source,
        spawn_options.continuation(run, _text(body, "task").strip() or None, options),
        f"{run} continues as ",
    )


async def _land(source: Source, run: str, _body: Body) -> Body:
    """Bring the work of an ended run where that was asked for, as `sfactl land RUN` does there."""
    node, _, on_node = run.rpartition("/")
    if node != source.own:
        raise UsageError(f"its worktree is on node {node}: there, sfactl land {on_node}")

    def work() -> str:
        from ..worktrees import landing  # few runs have a worktree

        with source.connect_here() as client:
            return landing.from_afar(client.call, on_node)

    return {"said": "; ".join(map(output.plain, (await in_thread(work)).splitlines()))}


def _changed(run: RunInfo, more: str = "", room: list[Limit] | None = None) -> Body:
    kinds = {limit.kind for limit in room or ()}
    now = ", ".join(
        describe(state).partition(";")[0] for state in run.limits if state.kind in kinds
    )
    return {"said": f"{run.id} is {views.word(run)}{f': {now}' if now else ''}{more}"}


async def start(source: Source, body: Body) -> Body:
    """Start a run of a registered agent, as `sfactl spawn AGENT TASK` does."""
    agent, task = _text(body, "agent"), _text(body, "task")
    if not agent or not task.strip():
        raise UsageError("choose an agent, and say what its task is")
    wanted = spawn_options.SpawnOptions(
        command=[task],
        agent=agent,
        name=_text(body, "name") or None,
        cwd=_text(body, "directory") or None,
        limit=limits.of_flags(_text(body, "limits").replace(",", " ").split()),
    )
    spawn_options.check(wanted)
    return await _spawned(source, spawn_options.message(wanted))


async def _spawned(source: Source, request: m.Spawn, said: str = "") -> Body:
    reply = await source.ask(request, m.Reply)
    if isinstance(reply, m.Refused):
        raise StartRefused(reply.refused.kind, 1, output.plain(reply.refused.message))
    # `ask` raises for an error, and a Spawn has no other reply
    assert isinstance(reply, m.RunReply)
    why = output.failure(reply.run)
    return {
        "said": why or f"{said}{reply.run.id}, which is {views.word(reply.run)}",
        "run": reply.run.id,
        "bad": why is not None,
    }


def _text(body: Body, field: str) -> str:
    value = body.get(field, "")
    if not isinstance(value, str):
        raise UsageError(f"{field}: not a text")
    return value


def _side(body: Body, field: str) -> int:
    value = body.get(field, 0)
    if not isinstance(value, int) or isinstance(value, bool):
        raise UsageError(f"{field}: not a number")
    return value


ON_RUNS: dict[str, Act] = {
    "stop": _stop, "pause": _pause, "resume": _resume, "approve": _approve, "deny": _deny,
    "limit": _limit, "send": _send, "keys": _keys, "continue": _continue, "land": _land,
}  # fmt: skip
"""What a page may do with a run, by the last word of the path."""
