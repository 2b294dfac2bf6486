from datetime import UTC, datetime

from sfad.protocol.checks import checked, on_one_line
from sfad.protocol.kinds import KINDS
from sfad.protocol.limits import format_excess, format_limit
from sfad.protocol.requests.base import RunReply
from sfad.protocol.requests.listing import Info
from sfad.protocol.texts.units import counted
from sfad.protocol.types import LimitState, Reason, RunInfo, Status

from .. import output
from ..app import OverFleet, app
from ..connecting.connection import Client
from ..connecting.history import connect
from ..options.limits import share
from ..options.selection import RunSelection
from ..options.spreading import spread
from ..showing.lines import line_of
from ..showing.waiting import left_behind, troubles, unlanded_json


@app.command(cls=OverFleet)
@spread(RunSelection)
def why(chosen: RunSelection) -> int:
    """Say why runs ended, were refused or wait, or what limits them.

    Prints a sentence for each run: which rule refused it, which limit or signal ended it, what
    it waits for, until when, and what helps, or which limits it has while it runs.
    """
    return chosen.each("info", lambda client, run: _show(client, run, chosen.json), connect)


def _show(client: Client, name: str, json: bool) -> None:
    run = client.call(Info(id=0, run=name), RunReply).run
    why = sentence(run)
    line = line_of(client, run)
    if json:
        more = {} if line is None else {"line": output.content(line)}
        output.print_json(
            {"id": run.id, "status": run.status, "why": why, "reason": run.reason}
            | more
            | unlanded_json(run)
        )
    else:
        print(
            "\n".join(
                filter(
                    None,
                    (
                        why,
                        f"line: {line.words}" if line is not None else None,
                        output.offer(run),
                        *(f"{run.id}: {words}" for words in left_behind(run)),
                    ),
                )
            )
        )


def sentence(run: RunInfo, now: datetime | None = None) -> str:
    """Return why the run is as it is, what is wrong first."""
    now = now or datetime.now(UTC)
    used = output.bounded_use(run.usage)
    more = _stopped(run) + _could_not(run) + _refused_calls(run) + _unadmitted(run)
    return _sentence(run, now) + more + (f"; it used {used}" if used else "")


def _stopped(run: RunInfo) -> str:
    found = run.stopped_children
    return "" if found is None else f"; the daemon {output.plain(found.message)}"


def _could_not(run: RunInfo) -> str:
    if run.api_trouble is None or not run.status.terminal:
        return ""
    return f"; it could not reach its model: {output.plain(run.api_trouble.sentence)}"


def _refused_calls(run: RunInfo) -> str:
    if not run.calls_refused:
        return ""
    calls = counted(run.calls_refused, "call of its model was", "calls of its model were")
    last = ""
    if run.last_refusal is not None:
        last = (
            f"{', the last one' if run.calls_refused > 1 else ''}: "
            f"{output.plain(run.last_refusal).rstrip('.')}"
        )
    return f"; {calls} refused{last} (sfactl calls {run.id} --refused)"


def _unadmitted(run: RunInfo) -> str:
    if not run.unadmitted:
        return ""
    programs = counted(run.unadmitted, "agent program was", "agent programs were")
    counts, it = (
        ("counts as a descendant", "it")
        if run.unadmitted == 1
        else ("count as descendants", "them")
    )
    return (
        f"; {programs} started within it without asking the daemon (guard.unadmitted), and "
        f"{counts}; to have {it} ask: sfactl shim install PROGRAM, or start {it} with sfactl run"
    )


def _sentence(run: RunInfo, now: datetime) -> str:
    ended = f" at {output.clock(run.ended_at, now)}" if run.ended_at is not None else ""
    who = f"{run.id} ({output.plain(run.name)})"
    if run.status.rejected:
        return (
            f"{who} was refused{ended} by the {run.status.value.removeprefix('rejected_')} rule: "
            f"{_message(run.reason)}"
        )
    if run.status is Status.COMPLETED:
        return f"{who} completed{ended}: {_completed(run)}{_warned(run)}"
    if run.status is Status.LOST:
        return (
            f"{who} was lost{ended}: {_message(run.reason)}. Its exit status is not known; "
            f"sfactl logs {run.id} has what it wrote"
        )
    if run.status.terminal:
        ran = (
            f" after {output.seconds(run.usage.elapsed_s)}"
            if ended and run.usage.elapsed_s is not None
            else ""
        )
        return (
            f"{who} ended as {run.status.value}{ended}{ran}: {_message(run.reason)}{_numbers(run)}"
        )
    if run.reason is not None and run.reason.kind == "no_daemon":
        return f"{who} was {run.status.value}: {_message(run.reason)}"
    if run.status is Status.PAUSED:
        since = next((hold.since for hold in run.holds if hold.since is not None), None)
        when = f" since {output.clock(since, now)}" if since is not None else ""
        return f"{who} is paused{when}: {output.why_waits(run, now) or 'no reason is known'}"
    if found := list(troubles(run, now)):
        who = f"{who} {'; it '.join(found)}; it"
    why = _place(run, now)
    if waits := output.why_waits(run, now):
        why += f": {waits}"
    elif run.reason:  # it is being stopped
        why += f": {_message(run.reason)}{_numbers(run)}"
    return f"{who} is {run.status.value}{_beside(run)}{why}; {_bounds(run, now)}"


def _beside(run: RunInfo) -> str:
    """Return what a run executes beside its command."""
    if run.activity is None or run.waiting is not None:  # that is told before
        return ""
    check = next((each for each in run.checks if each.state == "running"), None)
    what = f": {on_one_line(check.command)}" if check is not None else ""
    return f" ({output.plain(run.activity + what)})"


def _place(run: RunInfo, now: datetime) -> str:
    """Return on which node a run executes, and whether that answers."""
    if run.fleet is not None and run.fleet.unreachable_since is not None:
        return (
            f" on node {run.fleet.node}, "
            f"which has not answered since {output.clock(run.fleet.unreachable_since, now)}"
        )
    if run.fleet is not None and run.fleet.node is not None:
        return f" on node {run.fleet.node}"
    return ""


def _message(reason: Reason | None) -> str:
    return output.plain(reason.message) if reason else "no reason was recorded"


def _completed(run: RunInfo) -> str:
    unknown = "; its exit status is not known" if output.exit_unknown(run) else ""
    if run.reason:
        return _message(run.reason) + unknown
    after = output.seconds(run.usage.elapsed_s)
    how = f"ended after {after}{unknown}" if unknown else f"exited with 0 after {after}"
    if run.checks:
        return checked(run.checks)
    return f"its main process {how}"


def _warned(run: RunInfo) -> str:
    """Return the limits that were exceeded and only warned."""
    passed = [
        f"{state.kind} {share(state.kind, state.used, state.threshold)}"
        for state in run.limits
        if state.used is not None and state.used > state.threshold and KINDS[state.kind].acts
    ]
    return f"; exceeded (warn only): {', '.join(passed)}" if passed else ""


def _numbers(run: RunInfo) -> str:
    """Return what the message of a breach leaves out: by how much, and whose use was counted."""
    kind = run.reason.limit_kind if run.reason is not None else None
    state = next((state for state in run.limits if state.kind == kind), None)
    return format_excess(run.reason, tree=state is not None and state.scope == "tree")


def _bounds(run: RunInfo, now: datetime) -> str:
    limits = ", ".join(
        f"{format_limit(state)} (from {output.plain(state.source)}{_whether(state)})"
        for state in run.limits
    )
    left = f", {output.until(run.deadline, now)} left until its deadline" if run.deadline else ""
    return f"it is bounded by {limits or 'no limit of its own'}{left}"


def _whether(state: LimitState) -> str:
    return ", NOT ENFORCEABLE" if state.enforced_by == "nothing" else ""
