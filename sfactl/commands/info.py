from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any

from sfad.protocol.checks import in_words
from sfad.protocol.requests.base import RunReply
from sfad.protocol.requests.listing import Info
from sfad.protocol.requests.records import EventPage, Events
from sfad.protocol.texts.units import counted
from sfad.protocol.types import Event, RunInfo, Status

from .. import output
from ..app import OverFleet, app
from ..connecting.connection import Client
from ..connecting.history import connect
from ..options import limits
from ..options.selection import RunSelection
from ..options.shared import flag
from ..options.spreading import spread
from ..showing.lines import Line, line_of
from ..showing.unlike_here import differences
from ..showing.waiting import left_for_git, unlanded, unlanded_json

# ---- What has happened to a run, from the recorded events


PAGE = 1000

_WORDS = {
    "limit_nearing": "near a limit",
    "limit_exceeded": "limit exceeded",
    "run_progress": "progress",
    "run_rejected": "refused",
}


def timeline_of(client: Client, run: RunInfo) -> Iterator[Event]:
    """Yield the events of the run itself, the oldest first. Raises `DaemonError`."""
    after: int | None = 0
    while after is not None:
        page = client.call(Events(id=0, runs=[run.id], after=after, rows=PAGE), EventPage)
        yield from (event for event in page.events if event.run_id == run.id)
        after = page.reached if page.more else None


def moments(run: RunInfo, events: Sequence[Event]) -> Iterator[str]:
    """Yield a line for each event: when it happened, how long after the run was asked for, and
    what."""
    for event in events:
        time = event.time if isinstance(event.time, datetime) else run.created_at
        after = output.seconds(max(0.0, (time - run.created_at).total_seconds()))
        what = output.plain(
            _WORDS.get(event.type, event.type.removeprefix("run_").replace("_", " "))
        )
        said = f": {output.plain(event.message)}" if event.message else ""
        by = (
            f" (by {output.plain(event.by)})"
            if event.by and not event.is_milestone and event.by not in event.message
            else ""
        )
        yield (
            f"{output.local(time)}  "
            f"{f'+{after}':>8}  {'milestone' if event.is_milestone else what}{said}{by}"
        )


# ---- The verb


@app.command(cls=OverFleet)
@spread(RunSelection)
def info(
    chosen: RunSelection,
    timeline: Annotated[bool, flag("Also what has happened to each run, with times")] = False,
) -> int:
    """Show everything that is known of runs, with live processes and memory.

    "unlike here" is what a live run has from the kernel and this shell has not: a run gets
    priority, CPUs, ulimits and namespaces from the daemon.
    """
    return chosen.each(
        "info", lambda client, run: _show(client, run, timeline, chosen.json), connect
    )


def _show(client: Client, name: str, timeline: bool, json: bool) -> None:
    run = client.call(Info(id=0, run=name), RunReply).run
    events = list(timeline_of(client, run)) if timeline else []
    line = line_of(client, run)
    unlike = differences(run)
    if json:
        more: dict[str, Any] = (
            ({"line": output.content(line)} if line is not None else {})
            | ({"timeline": events} if timeline else {})
            | ({"unlike_here": [each._asdict() for each in unlike]} if unlike else {})
        )
        more = {**more, **unlanded_json(run)}
        output.print_json({"id": run.id} | output.content(run) | more if more else run)
    else:
        print("\n".join(f"{name:<12} {value}" for name, value in facts(run, line)))
        for each in unlike:
            print(f"{'unlike here':<12} {output.plain(str(each))}")
    if events and not json:
        print()
        print("\n".join(moments(run, events)))
    if (
        not json
        and not run.status.terminal
        and any(state.enforced_by == "nothing" for state in run.limits)
    ):
        output.note(
            "note: turns, tokens and cost of this run are not known, so their limits are NOT "
            "ENFORCEABLE; time is. They are known if the agent prints JSON events (--meter NAME), "
            "reports its use (sfactl report, with --meter report), or is started with --gateway, "
            "which checks each model call before it is made"
        )


LINES = 10
"""Lines that are shown of a check that has failed; --json has 40."""


def facts(run: RunInfo, line: Line | None = None) -> Iterator[tuple[str, str]]:
    """Yield what is known of a run. `line`: the runs that continue each other, this one among
    them."""
    yield "id", run.id
    yield (
        "name",
        f"{output.plain(run.name)} ({run.kind}{', ' + output.plain(run.type) if run.type else ''})",
    )
    yield "status", output.outcome(run)
    if run.reason and not run.holds:
        yield "reason", output.plain(run.reason.message)
    for check in run.checks:
        yield "check", output.plain(in_words(check))
    if run.reason is not None and run.reason.lines:
        yield "its output", f"sfactl logs --check {run.id}, which ends with:"
        yield from (("", output.plain(each)) for each in run.reason.lines[-LINES:])
    if run.stopped_children is not None:
        yield "children", output.plain(run.stopped_children.message)
    if run.status is Status.LOST:
        yield "exit", "not known; sfactl result and sfactl logs show its output"
    for hold in run.holds:
        since = f", since {output.local(hold.since)}" if hold.since is not None else ""
        yield "waits", f"{output.why_held(hold)}{since}"
    if run.group is not None:
        yield "group", output.plain(run.group)
    yield "chain", " → ".join(output.plain(name) for name in run.chain)
    below = counted(run.descendants, "descendant")
    yield "tree", f"root {run.root_id}, parent {run.parent_id or '-'}, depth {run.depth}, {below}"
    if run.unadmitted:
        yield (
            "unadmitted",
            (
                f"{counted(run.unadmitted, 'agent program')} started within it without "
                "asking the daemon"
            ),
        )
    yield "command", output.command(run)
    yield "cwd", output.plain(run.cwd)
    if run.worktree is not None:
        yield "worktree", f"{output.plain(run.worktree)} (sfactl diff {run.id})"
        yield "branch", output.plain(run.branch or "-")
        if (work := unlanded(run)) is not None:
            yield "work", work
    if run.session_id is not None:
        yield "session id", output.plain(run.session_id)
    if run.continues is not None:
        yield "continues", run.continues
    if run.continued_by is not None:
        yield "continued by", run.continued_by
    if line is not None:
        yield "line", line.words
    if run.session:
        yield "session", f"its transcript: sfactl session log {run.id}"
    yield "user", f"{output.plain(run.user)} (channel {output.plain(run.channel)})"
    if run.model is not None:
        by = f" ({output.plain(run.provider)})" if run.provider is not None else ""
        yield "model", f"{output.plain(run.model)}{by}"
    if run.task is not None:
        yield "task", output.plain(run.task)
    for name, tools in (("tools", run.allowed_tools), ("no tools", run.blocked_tools)):
        if tools:
            yield name, output.plain(", ".join(tools))
    if run.direct is not None:
        yield "gateway", f"not used: {output.plain(run.direct)}"
    if run.isolation is not None:
        words = {"on": "on", "net": "net: only the gateway", "offline": "net: no network at all"}[
            run.isolation
        ]
        yield (
            "isolation",
            words
            + (f", and through it {output.plain(', '.join(run.egress))}" if run.egress else ""),
        )
        if (warning := left_for_git(run)) is not None:
            yield "git", warning
    if run.pid is not None:
        yield "pid", str(run.pid)
    if run.processes is not None:
        yield "processes", f"{run.processes}, {output.size(run.memory_bytes)}"
    yield "attempts", str(run.attempts)
    for state in run.limits:
        yield "limit", limits.describe(state)
    for said in limits.by_source(run):
        yield "usage", said
    if run.descendants and (said := limits.totals(run)):
        yield "total", said
    for each in run.plans:
        yield "plan", limits.window_share(each)
    if run.calls is not None:
        refused = (
            f", {run.calls_refused} refused (sfactl calls {run.id} --refused)"
            if run.calls_refused
            else ""
        )
        yield "calls", f"{run.calls}{refused}"
    if (meter := output.meter(run)) != "-":
        yield "meter", meter
    if run.api_trouble:
        yield "model API", output.plain(run.api_trouble.sentence)
    for alert in run.alerts:
        yield (
            "ALERT",
            f"{alert.type} since {output.local(alert.since)}: {output.plain(alert.message)}",
        )
    if run.repeating:
        yield "repeating", output.plain(run.repeating.sentence)
    if run.cut:
        yield "unfinished", output.plain(run.cut)
    yield from _times(run)
    for key, value in run.labels.items():
        yield "label", output.plain(f"{key}={value}")
    if run.milestone:
        yield "milestone", output.plain(run.milestone)


def _times(run: RunInfo) -> Iterator[tuple[str, str]]:
    yield "created", f"{output.local(run.created_at)} ({output.age(run.created_at)} ago)"
    for name, moment in (
        ("started", run.started_at),
        ("ended", run.ended_at),
        ("deadline", run.deadline),
    ):
        if moment:
            yield name, output.local(moment)
    if run.last_heard_at is not None:
        yield (
            "last heard",
            f"{output.local(run.last_heard_at)} ({output.age(run.last_heard_at)} ago)",
        )
    if run.usage.elapsed_s is not None:
        yield "ran", output.seconds(run.usage.elapsed_s)
