import os
import time
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

from msgspec.structs import replace

from sfad.protocol.requests.base import RunReply
from sfad.protocol.requests.listing import Info, List
from sfad.protocol.requests.starting import Recall, Recalled
from sfad.protocol.types import Limit, RunInfo, Status

from .. import exits, output
from ..app import app
from ..connecting.start_daemon import connect_or_start
from ..options import limits
from ..options import spawn as spawn_options
from ..options.shared import TYPE, MaybeRun, Value, flag, moment
from ..options.spawn import SpawnOptions
from ..options.spreading import spread
from ..showing.pages import every
from . import spawn

_OF_SPAWN = frozenset({
    "socket", "json", "wait", "keep", "text", "raw", "quiet", "verbose", "timeout", "on_limit",
    "limits", "attempts", "resume", "retry_delay", "grace", "env", "label", "detach", "no_queue",
    "priority", "after", "at", "group", "on_end", "status_file", "gateway", "no_gateway", "check",
    "check_timeout", "no_check",
})  # fmt: skip
"""Options of `spawn` that change what the new run has."""

REST = "rest"
"""What RUN has left of its limits, as a value of `--limit`."""
SINCE = 24 * 3600.0
"""Seconds that `--lost` looks back without `--since`."""


class Since(NamedTuple):
    text: str
    time: float
    """Unix seconds."""


def _since(text: str) -> Since:
    return Since(text, moment(text))


def _limit(text: str) -> Limit | str:
    return REST if text == REST else limits.of_flag(text)


@app.command("continue")
@spread(SpawnOptions, only=_OF_SPAWN)
def continue_(
    wanted: SpawnOptions,
    type_: Annotated[
        str | None,
        TYPE.option(
            "Kind of work: developer, qa, planner, … have a profile of limits",
            "--type",
            "--profile",
        ),
    ] = None,
    limit: Annotated[
        list[Any],
        Value("KIND=N", _limit, words="kind of limit").option(
            "A limit, and its action: turns=50, cost=2.50:warn, tokens=200k:pause, memory=2G, …"
        ),
    ] = [],
    run: MaybeRun = None,
    task: Annotated[
        str | None,
        Value("TASK").argument(
            "What the agent is told first (default: why it ended, and to go on)"
        ),
    ] = None,
    lost: Annotated[
        bool, flag("Continue all runs that a crash, a reboot or a stop of the daemon ended")
    ] = False,
    since: Annotated[
        Since | None,
        Value("TIME", _since).option("With --lost: only runs created since then (default: 24h)"),
    ] = None,
    fresh: Annotated[bool, flag("Make its worktree again from its branch if it is gone")] = False,
) -> int:
    """Continue the session of an ended agent in a new run.

    The new run has the agent program, directory, name, labels and options of RUN, and continues
    its session: the agent knows all that was said and done. It is told TASK, or why RUN ended
    and to go on. Where RUN used a terminal, it continues in this one. It gets the environment
    of this shell. Continues in the background, or as `sfactl run` does with --wait.

    A run is continued once; continue the new run next. Limits count anew: give others with
    --limit and --timeout, or what RUN has left with --limit rest. A run whose session is not
    there any more, or whose program sfad does not know, is refused with the reason.

    A run whose worktree is gone is refused: --fresh makes the worktree again, with what is in
    its branch or what `sfactl prune` has kept of it, and tells the agent.

    --lost continues all runs that a crash, a reboot or a stop of the daemon ended. What cannot
    be continued is told, one by one.
    """
    rest = REST in limit
    wanted = replace(wanted, type=type_, limit=[each for each in limit if isinstance(each, Limit)])
    # what is written wrongly is told before the daemon is asked for anything
    spawn_options.continuation("", None, wanted)
    if lost:
        if run is not None:
            raise exits.UsageError("--lost means all lost runs: leave out RUN and TASK")
        return _continue_lost(since or Since("24h", time.time() - SINCE), rest, wanted, fresh)
    if run is None:
        raise exits.UsageError("say which run, as in: sfactl continue a4; or --lost")
    if since is not None:
        raise exits.UsageError("--since needs --lost")
    return _continue(run, task, rest, wanted, fresh)


def _continue(run: str, task: str | None, rest: bool, wanted: SpawnOptions, fresh: bool) -> int:
    with connect_or_start(wanted.socket) as client:
        found = client.call(Recall(id=0, run=run), Recalled)
        if fresh:
            _tell_of_worktree(client.call(Info(id=0, run=run), RunReply).run)
    at_terminal = os.isatty(0) and os.isatty(1)
    if found.request.stdio == "inherit" and at_terminal:
        wanted = replace(wanted, stdio="inherit", wait=True)
    elif found.request.terminal is not None:
        wanted = replace(wanted, terminal=True, wait=at_terminal)
    elif found.request.agent is not None and not (wanted.raw or wanted.json):
        wanted = replace(wanted, text=wanted.wait)
    message = spawn_options.continuation(found.run, task, wanted, rest=rest, fresh=fresh)
    return spawn.start(wanted, message)


def _tell_of_worktree(run: RunInfo) -> None:
    if run.worktree is not None and not os.path.isfile(f"{run.worktree}/.git"):
        output.note(
            f"sfactl: the worktree of {run.id} is gone: the new run makes it again on its branch "
            f"'{output.plain(run.branch or '-')}', and tells the agent"
        )


def _continue_lost(since: Since, rest: bool, wanted: SpawnOptions, fresh: bool) -> int:
    if wanted.wait:
        raise exits.UsageError("--lost continues runs in the background: leave out --wait")
    codes: list[int] = []
    covered: set[str] = set()
    for run in _lost(since.time, wanted.socket):
        if run.continued_by is not None:
            covered.add(run.id)
        elif run.parent_id in covered:  # the agent above knows that it has ended
            covered.add(run.id)
            output.note(f"sfactl: {run.id} is left to its parent {run.parent_id}, which continues")
        else:
            codes.append(_told(run.id, rest, wanted, fresh))
            if codes[-1] == exits.ExitCode.DONE:
                covered.add(run.id)
    if not codes:
        output.note(f"no run was lost since {since.text} that is not continued")
    return next((code for code in codes if code), exits.ExitCode.DONE)


def _told(run: str, rest: bool, wanted: SpawnOptions, fresh: bool) -> int:
    try:
        return _continue(run, None, rest, wanted, fresh)
    except exits.Quit as quit_:
        output.note(f"sfactl: {output.harmless(quit_.message)}")
        return quit_.code


def _lost(since: float, socket: str | None) -> Iterator[RunInfo]:
    """Yield this user's runs that the daemon or the machine has ended, and what they had started,
    the oldest first."""
    wanted = List(
        id=0,
        status=[Status.LOST, Status.CANCELLED, Status.FAILED],
        since=since,
        user=output.own_user(),
        limits=False,
    )
    with connect_or_start(socket) as client:
        found = [
            run
            for runs in every(client.call, wanted)
            for run in runs
            if run.reason is not None and run.reason.kind in ("daemon", "ancestor")
        ]
    ended: set[str] = set()
    for run in sorted(found, key=lambda each: each.created_at):
        reason = run.reason
        if reason is None or run.session:
            continue
        if reason.kind == "daemon" or (reason.kind == "ancestor" and run.parent_id in ended):
            ended.add(run.id)
            yield run
