"""Continue the session of an ended agent in a new run.

The new run has the agent program, directory, name, labels and options of RUN, and continues its session: the agent knows all that
was said and done. It is told TASK, or why RUN ended and to go on. Where RUN used a terminal, it continues in this one. It gets the
environment of this shell. Continues in the background, or as `sfactl run` does with --wait.

A run is continued once; continue the new run next. Limits count anew: give others with --limit and --timeout, or what RUN has left
with --limit rest. A run whose session is not there any more, or whose program sfad does not know, is refused with the reason.

--lost continues all runs that a crash, a reboot or a stop of the daemon ended. What cannot be continued is told, one by one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from sfad.protocol.requests.listing import List, RunList
from sfad.protocol.requests.starting import Recall, Recalled
from sfad.protocol.types import RunInfo, Status

from .. import continuing, exits, output, spawn_options
from ..autostart import connect_or_start
from ..options import COMMON, RUN, Argument, Option, Parameter
from . import spawn

_OF_SPAWN = frozenset({
    "wait", "keep", "text", "raw", "quiet", "verbose", "timeout", "limit", "on_limit", "limits", "type", "attempts", "resume",
    "retry_delay", "grace", "env", "label", "detach", "no_queue", "priority", "after", "group", "on_end", "status_file", "gateway",
    "no_gateway",
})  # fmt: skip
"""Options of `spawn` that change what the new run has."""

PARAMETERS: tuple[Parameter, ...] = (
    *COMMON,
    replace(RUN, required=False),
    Argument("task", "TASK", "What the agent is told first (default: why it ended, and to go on)", required=False),
    Option(("--lost",), "lost", "Continue all runs that a crash, a reboot or a stop of the daemon ended"),
    Option(("--since",), "since", "With --lost: only runs created since then (default: 24h)", "TIME"),
    *(
        replace(option, flags=(*option.flags, "--profile")) if option.target == "type" else option
        for option in spawn_options.PARAMETERS
        if isinstance(option, Option) and option.target in _OF_SPAWN
    ),
)

REST = "rest"


def main(
    *,
    run: str | None = None,
    task: str | None = None,
    lost: bool = False,
    since: str | None = None,
    limit: Sequence[str] = (),
    **given: Any,
) -> int:
    given["limit"] = [text for text in limit if text != REST]
    rest = REST in limit
    wanted = spawn_options.SpawnOptions(command=["-"], **given)
    spawn_options.check(wanted)
    spawn_options.message(wanted)  # what is written wrongly is told before the daemon is asked for anything
    if lost:
        if run is not None:
            raise exits.UsageError("--lost means all lost runs: leave out RUN and TASK")
        return _continue_lost(since or "24h", rest, given)
    if run is None:
        raise exits.UsageError("say which run, as in: sfactl continue a4; or --lost")
    if since is not None:
        raise exits.UsageError("--since needs --lost")
    return _continue(run, task, rest, given)


def _continue(run: str, task: str | None, rest: bool, given: dict[str, Any]) -> int:
    with connect_or_start(given.get("socket")) as client:
        found = client.call(Recall(id=0, run=run), Recalled)
    terminal = found.request.stdio == "inherit" and os.isatty(0) and os.isatty(1)
    if terminal:
        given = given | {"stdio": "inherit", "wait": True}
    elif found.request.agent is not None and not (given.get("raw") or given.get("json")):
        given = given | {"text": given.get("wait", False)}
    wanted = spawn_options.SpawnOptions(command=[], **given)
    return spawn.start(wanted, continuing.message(found.run, task, wanted, rest=rest))


def _continue_lost(since: str, rest: bool, given: dict[str, Any]) -> int:
    from .list import moment

    if given.get("wait"):
        raise exits.UsageError("--lost continues runs in the background: leave out --wait")
    codes: list[int] = []
    covered: set[str] = set()
    for run in _lost(moment(since), given.get("socket")):
        if run.continued_by is not None:
            covered.add(run.id)
        elif run.parent_id in covered:  # the agent above knows that it has ended
            covered.add(run.id)
            output.note(f"sfactl: {run.id} is left to its parent {run.parent_id}, which continues")
        else:
            codes.append(_told(run.id, rest, given))
            if codes[-1] == exits.ExitCode.DONE:
                covered.add(run.id)
    if not codes:
        output.note(f"no run was lost since {since} that is not continued")
    return next((code for code in codes if code), exits.ExitCode.DONE)


def _told(run: str, rest: bool, given: dict[str, Any]) -> int:
    try:
        return _continue(run, None, rest, given)
    except exits.Quit as quit_:
        output.note(f"sfactl: {output.harmless(quit_.message)}")
        return quit_.code


def _lost(since: float, socket: str | None) -> Iterator[RunInfo]:
    """Yield this user's runs that the daemon or the machine has ended, and what they had started, the oldest first."""
    wanted = List(id=0, status=[Status.LOST, Status.CANCELLED, Status.FAILED], since=since, rows=500, user=output.own_user())
    found: list[RunInfo] = []
    with connect_or_start(socket) as client:
        while True:
            page = client.call(wanted, RunList)
            found += page.runs
            if page.next is None:
                break
            wanted = replace(wanted, before=page.next)
    ended: set[str] = set()
    for run in sorted(found, key=lambda each: each.created_at):
        reason = run.reason
        if reason is None or run.session:
            continue
        if reason.kind == "daemon" or (reason.kind == "ancestor" and run.parent_id in ended):
            ended.add(run.id)
            yield run
