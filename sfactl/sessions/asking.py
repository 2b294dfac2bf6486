"""The tools for a language model that delegates to other agents, for `sfactl session` and `sfactl
mcp`.

Each function opens a connection of its own, so several threads may call them at once; a call that
waits can be abandoned by its thread. Each text that a run or another agent had a part in has been
made safe for a language model.

A refusal raises `SessionRefused`, and everything else that goes wrong `Quit`, both with the
sentence for the caller.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from sfad.features.session.messages import (
    SessionRights,
    SessionRules,
    StartSession,
)
from sfad.protocol.encoding import to_json
from sfad.protocol.kinds import KINDS
from sfad.protocol.limits import format_amount
from sfad.protocol.limits_object import parse_limits
from sfad.protocol.requests.base import Done, Reply, RunReply
from sfad.protocol.requests.following import Wait
from sfad.protocol.requests.listing import Info, List, RunList
from sfad.protocol.requests.records import Result, ResultText, Transcript, TranscriptText
from sfad.protocol.requests.starting import Refused
from sfad.protocol.requests.steering import Send, Stop, Stopped
from sfad.protocol.texts.sanitise import sanitise
from sfad.protocol.types import Checks, Limit, LimitKind, LimitState, Lowered, Refusal, RunInfo

from .. import environment, exits, output
from ..connecting.connection import Client, connect
from ..connecting.start_daemon import connect_or_start
from ..exits import Quit, UsageError, understood
from ..options import limits
from ..options.spawn import own_worktree

LATE = 30.0
"""Seconds that the answer to a wait may be late. A daemon that stands still must not hold a model's
call without end."""
LISTED = 20
"""Sessions that have ended in a list."""


class SessionRefused(Quit):
    """The guard, or a quota of sessions, does not let the session start. `run`: the id under which
    that is recorded."""

    def __init__(self, refused: Refusal, run: str | None) -> None:
        super().__init__(exits.of_refusal(refused), safe(refused.message))
        self.refused = refused
        self.run = run


class SessionView(Struct, frozen=True, kw_only=True):
    """A session as a model is told of it. Unknown is `None`."""

    run_id: str
    name: str
    status: str
    ended: bool
    reason: str | None = None
    exit_code: int | None = None
    elapsed_s: float | None = None
    turns: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None
    partial: bool = False
    """Tokens and cost may still grow."""
    at_most: bool = False
    """A part of them is an upper bound."""
    parent_id: str | None = None
    channel: str
    created_at: str
    ended_at: str | None = None
    limits: list[str] = []
    """A line each."""
    lowered: list[str] = []
    """Limits that are lower than what was asked for, a sentence each. Only of a session that has
    just been started."""
    result: str | None = None
    """The final answer, in a block that marks it as data. Only from `delegate` and `info`, of a
    session that has ended."""
    advice: str | None = None
    """What the caller can do next, in a shell."""
    exit: int = 0
    """What `sfactl` exits with: how the session ended."""


def safe(text: str) -> str:
    """Return text that an agent had a part in: no control or invisible characters, and markup
    escaped."""
    return sanitise(text.encode("utf-8", "replace"))


def order(
    task: str,
    *,
    timeout: float | None = None,
    limits: Mapping[str, Any] | Sequence[Limit] = (),
    cwd: str | None = None,
    worktree: str | None = None,
    check: Sequence[str] = (),
    **more: Any,
) -> StartSession:
    """Return the request for a session. `timeout`: in seconds; `limits`: those, or the object that
    `--limits` takes; `worktree`: the branch of a worktree of its own, `-` for the default; `check`:
    commands; `more`: other fields of the request. Raise `UsageError`."""
    if isinstance(limits, Mapping):
        written = understood("", parse_limits, to_json(limits), "limits")
        limits, more = written.limits, {"on_limit": written.on_limit} | more
    return StartSession(
        id=0,
        task=task,
        cwd=environment.directory(cwd),
        env=environment.variables({}),
        umask=environment.umask(),
        limits=_limits(timeout, limits),
        worktree=None if worktree is None else own_worktree(worktree),
        check=Checks(commands=list(check)) if check else None,
        claim=environment.claim(),
        key=os.urandom(16).hex(),
        **more,
    )


def rules(socket: str | None = None) -> SessionRules:
    """Return what this process may do with sessions: `refused` is `None` for a main agent."""
    with connect_or_start(socket) as client:
        return client.call(SessionRights(id=0), SessionRules)


def delegate(
    order: StartSession,
    *,
    socket: str | None = None,
    wait: float | None = None,
    started: Callable[[SessionView], object] = lambda _: None,
) -> SessionView:
    """Start a session and wait for its result: for `wait` seconds, by default and at most
    `sessions.sync_timeout_seconds`. Where it has not ended by then, `advice` says how to wait on.
    `started` is called once it has started."""
    with connect_or_start(socket) as client:
        longest = client.call(SessionRights(id=0), SessionRules).sync_timeout_s
        new = _start(client, order)
        started(_shown(new.run, new.lowered))
        run = _ended(client, new.run.id, longest if wait is None else min(wait, longest))
        return _with_result(client, run, new.lowered)


def spawn(order: StartSession, *, socket: str | None = None) -> SessionView:
    """Start a session in the background."""
    with connect_or_start(socket) as client:
        started = _start(client, order)
        return _shown(started.run, started.lowered, advice=_advice(started.run))


def list_sessions(*, socket: str | None = None, rows: int = LISTED) -> list[SessionView]:
    """Return the live sessions and the newest `rows` that have ended, oldest first: of a run those
    below it, else the user's."""
    found: list[RunInfo] = []
    with connect(socket) as client:
        before: str | None = None
        while True:
            page = client.call(List(id=0, sessions=True, rows=rows, before=before), RunList)
            found += page.runs
            before = page.next
            if before is None or sum(1 for run in found if run.status.terminal) >= rows:
                break
    ended = [run for run in found if run.status.terminal]
    kept = {run.id for run in sorted(ended, key=lambda run: run.id)[-rows:]} if rows else set()
    chosen = [
        run
        for run in found
        if not run.status.rejected and (not run.status.terminal or run.id in kept)
    ]
    return [_shown(run) for run in sorted(chosen, key=lambda run: run.id)]


def stop(*runs: str, socket: str | None = None, grace: float | None = None) -> Stopped:
    """Stop sessions and everything below them. The answer comes when no process of them is left, or
    lists the survivors."""
    with connect(socket) as client:
        return client.call(Stop(id=0, runs=list(runs), grace=grace, sessions=True), Stopped)


def log(run: str, *, socket: str | None = None, tail: int = 100) -> TranscriptText:
    """Return the newest `tail` lines of a run's events and output."""
    with connect(socket) as client:
        return client.call(Transcript(id=0, run=run, tail=tail), TranscriptText)


def info(run: str, *, socket: str | None = None, wait: float = 0.0) -> SessionView:
    """Return a session, with its result if it has ended. Wait up to `wait` seconds for that."""
    with connect(socket) as client:
        found = (
            _ended(client, run, wait)
            if wait > 0
            else client.call(Info(id=0, run=run), RunReply).run
        )
        return _with_result(client, found)


def send(
    run: str, message: str, *, socket: str | None = None, channel: str | None = None
) -> SessionView | None:
    """Write a line to the stdin of a session. If it has ended, continue it with the message as its
    task, and return the new session. Raise `Quit` if it does not read its stdin, or cannot be
    continued."""
    line = message.encode("utf-8", "surrogateescape").removesuffix(b"\n")
    with connect(socket) as client:
        known = client.call(Info(id=0, run=run), RunReply).run
        if known.status.terminal and known.session:
            new = _start(client, order(message, channel=channel, continues=known.id))
            return _shown(new.run, new.lowered)
        client.call(Send(id=0, run=run, data=line + b"\n"), Done)
        return None


_STATES = {
    "completed": "has completed",
    "failed": "has failed",
    "timeout": "has timed out",
    "cancelled": "was cancelled",
    "lost": "was lost",
}


def headline(session: SessionView) -> str:
    """Return how a session is or how it ended, and why: `a4 (slow) has timed out: …`."""
    state = _STATES.get(session.status, f"is {session.status}")
    return f"{session.run_id} ({session.name}) {state}" + (
        f": {session.reason}" if session.reason else ""
    )


def described(session: SessionView) -> Iterator[str]:
    """Yield what is known of a session, a line each, and its result."""
    yield headline(session)
    if session.elapsed_s is not None:
        yield f"time     {output.seconds(session.elapsed_s)}"
    bound = output.bound(session)
    figures = {"turns": session.turns, "tokens": session.tokens, "USD": session.cost_usd}
    for name, value in figures.items():
        if value is not None:
            yield f"{name:<8} {bound if name in {'tokens', 'USD'} else ''}{value:.15g}"
    yield from (f"limit    {line}" for line in session.limits)
    yield from (f"lowered  {line}" for line in session.lowered)
    if session.advice is not None:
        yield session.advice
    if session.result is not None:
        yield session.result.removesuffix("\n")


def _start(client: Client, order: StartSession) -> RunReply:
    reply = client.call(order, Reply)
    if isinstance(reply, Refused):
        raise SessionRefused(reply.refused, reply.run)
    # `call` raises for an error, and a StartSession has no other reply
    assert isinstance(reply, RunReply)
    return reply


def _limits(timeout: float | None, asked: Sequence[Limit]) -> list[Limit]:
    if timeout is not None:
        asked = [*asked, Limit(kind=LimitKind.TIME, threshold=timeout, source="timeout")]
    return limits.once(asked)


_TOLD = frozenset(
    {LimitKind.TIME, *(kind for kind, spec in KINDS.items() if spec.counted_by == "meter")}
)
"""Limits that a model can do something about."""


def _limit(state: LimitState) -> str:
    used = "" if state.used is None else f"{format_amount(state.kind, state.used, unit=False)} of "
    unknown = (
        ", NOT ENFORCEABLE: nothing tells what is used" if state.enforced_by == "nothing" else ""
    )
    return (
        f"{state.kind}: {used}{format_amount(state.kind, state.threshold)} "
        f"({state.source}){unknown}"
    )


def _ended(client: Client, run: str, wait: float) -> RunInfo:
    """Return the run as soon as it has ended, or as it is after `wait` seconds."""
    if not 0 <= wait < _LONGEST:
        raise UsageError(f"{wait:g} seconds to wait: give 0 to {_LONGEST:g}")
    client.be_patient(wait + LATE)
    return client.call(Wait(id=0, run=run, timeout=wait), RunReply).run


_LONGEST = 86400.0


def _with_result(client: Client, run: RunInfo, lowered: Sequence[Lowered] = ()) -> SessionView:
    if not run.status.terminal or run.started_at is None:
        return _shown(run, lowered, advice=_advice(run))
    try:
        text = client.call(Result(id=0, run=run.id), ResultText).text
    except Quit as error:
        return _shown(run, lowered, advice=f"it has no result: {safe(error.message)}")
    return _shown(run, lowered, result=text)


def _advice(run: RunInfo) -> str:
    if run.status.terminal:
        return "it never ran, so it has no result"
    return f"to wait for its end, without polling: sfactl session info {run.id} --wait 60"


def _shown(
    run: RunInfo,
    lowered: Sequence[Lowered] = (),
    *,
    result: str | None = None,
    advice: str | None = None,
) -> SessionView:
    usage, whole = run.usage, run.in_all
    return SessionView(
        run_id=run.id,
        name=run.name,
        status=run.status.value,
        ended=run.status.terminal,
        reason=safe("; ".join(hold.words for hold in run.holds) or output.why_ended(run)) or None,
        exit_code=run.exit_code,
        elapsed_s=usage.elapsed_s,
        turns=usage.turns,
        tokens=whole.tokens,
        cost_usd=whole.cost_usd,
        partial=whole.partial,
        at_most=whole.at_most,
        parent_id=run.parent_id,
        channel=safe(run.channel),
        created_at=run.created_at.isoformat(timespec="seconds"),
        ended_at=run.ended_at.isoformat(timespec="seconds") if run.ended_at is not None else None,
        limits=[safe(_limit(state)) for state in run.limits if state.kind in _TOLD],
        lowered=[safe(each.message) for each in lowered],
        result=result,
        advice=advice,
        exit=exits.of_run(run) if run.status.terminal else exits.ExitCode.DONE,
    )
