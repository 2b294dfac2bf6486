"""What a page is told of runs, events and budgets: JSON with the words for people that other views
have.

Times are Unix seconds, which a page shows in its reader's zone. Texts of runs have no control
characters.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from sfad.protocol.checks import in_words
from sfad.protocol.kinds import KINDS, METERED_KINDS
from sfad.protocol.limits import format_amount
from sfad.protocol.requests.daemon import DaemonStatus
from sfad.protocol.requests.windows import SubscriptionInfo
from sfad.protocol.texts.units import counted, format_duration
from sfad.protocol.types import (
    AlertState,
    CallInfo,
    Event,
    LimitKind,
    LimitState,
    RunId,
    RunInfo,
    Status,
)

from .. import output
from ..options import limits
from ..options.limits import fullest
from ..output import percent, plain
from ..showing.waiting import asked, of, share
from ..top.table import RunTable, remark

LONGEST = 400
"""Characters of a text of a run in a row."""


def number(text: str) -> int | None:
    """Return a number that a page has sent; `None` for other text, and for one that no count or
    position can have."""
    return int(text) if len(text) <= 18 and text.isdecimal() else None


def now() -> float:
    return datetime.now(UTC).timestamp()


def moment(time: datetime | None) -> float | None:
    return None if time is None else round(time.timestamp(), 3)


def word(run: RunInfo) -> str:
    """Return the state of a run for people."""
    return (
        "waiting for approval"
        if output.waits_for_approval(run)
        else run.activity or run.status.value.replace("_", " ")
    )


def verbs(run: RunInfo) -> list[str]:
    """Return what a person may do with a run now, the answer to what it waits for first."""
    if run.status.terminal:
        ends_here = (
            run.session_id is None
            or run.continued_by is not None
            or run.session
            or run.status.rejected
        )
        land = ["land"] if run.worktree is not None and not run.status.rejected else []
        return land if ends_here else ["continue", *land]
    send = ["send"] if run.stdin else []
    if output.waits_for_approval(run):
        return ["approve", "deny", "limit", "stop", *send]
    if run.status is Status.PAUSED:
        return ["resume", "limit", "stop", *send]
    if run.status is Status.RUNNING:
        answer = ["approve", "deny"] if run.approvals else []
        return [*answer, "stop", "pause", "limit", *send]
    return ["stop"] if run.status is Status.STOPPING else ["stop", "limit"]


def limit(state: LimitState) -> dict[str, Any]:
    part = share(state) if state.used is not None else None
    unknown = ", use unknown" if state.kind in METERED_KINDS else ""
    return {
        "kind": state.kind.value,
        "used": state.used,
        "threshold": state.threshold,
        "part": part,
        "text": of(state)
        if part is not None
        else format_amount(state.kind, state.threshold) + unknown,
        "acts": KINDS[state.kind].acts,
        "action": KINDS[state.kind].instead or state.action.value,
    }


def row(run: RunInfo, table: RunTable, now: datetime) -> dict[str, Any]:
    """Return what a line about a run shows. `table` knows the run."""
    usage, whole = run.usage, run.in_all
    return {
        "id": run.id,
        "name": plain(run.name),
        "status": run.status.value,
        "word": word(run),
        "ended": run.status.terminal,
        "parent": run.parent_id,
        "root": run.root_id,
        "depth": run.depth,
        "user": plain(run.user),
        "type": plain(run.type or ""),
        "labels": {plain(key): plain(value) for key, value in run.labels.items()},
        "created": moment(run.created_at),
        "started": moment(run.started_at),
        "over": moment(run.ended_at),
        "elapsed": usage.elapsed_s,
        "told": round(now.timestamp() - table.elapsed_since(run, monotonic()), 3),
        "ticks": run.started_at is not None and run.status in (Status.RUNNING, Status.STOPPING),
        "cost": whole.cost_usd,
        "mark": output.mark(whole),
        "tokens": whole.tokens,
        "turns": usage.turns,
        "below": run.descendants,
        "processes": run.processes,
        "memory": run.memory_bytes,
        "cpu": run.cpu_cores,
        "limits": []
        if run.status.terminal
        else [limit(state) for state in run.limits if state.used is not None],
        "rank": table.rank(run),
        "why": remark(run, table.limit_share, now)[:LONGEST],
        "verbs": verbs(run),
        "call": asked_call(run),
    }


def asked_call(run: RunInfo) -> dict[str, str] | None:
    """Return the call of a tool that the agent of a run asks for first, unless the run itself waits
    for an answer."""
    first = next(iter(run.approvals), None)
    return (
        None
        if first is None or output.waits_for_approval(run)
        else {"call": first.call, "words": asked(first)}
    )


def alone(run: RunInfo, limit_share: float) -> dict[str, Any]:
    """Return the line of a run that the feed does not know."""
    table = RunTable()
    table.warn_from(limit_share)
    table.update([run], monotonic())
    return row(run, table, datetime.now(UTC))


def details(run: RunInfo, work: str | None) -> dict[str, Any]:
    """Return what only the page of a run shows. `work`: what it has left in its worktree."""
    return {
        "sentence": story(run) if run.status.terminal else "",
        "limits": [limit(state) | {"words": limits.describe(state)} for state in run.limits],
        "kinds": [[kind.value, set_to(run, kind)] for kind in LimitKind],
        "facts": [[name, value] for name, value in [("work", work), *_facts(run)] if value],
    }


def set_to(run: RunInfo, kind: LimitKind) -> str:
    """Return what a limit is now; empty if the run has none of this kind."""
    return next(
        (format_amount(kind, state.threshold) for state in run.limits if state.kind is kind), ""
    )


def story(run: RunInfo) -> str:
    """Return how a run has ended, and why."""
    reason = output.why_ended(run)
    if run.status.rejected:
        return f"refused by the {run.status.value.removeprefix('rejected_')} rule: {reason}"
    after = (
        f" after {output.seconds(run.usage.elapsed_s)}" if run.usage.elapsed_s is not None else ""
    )
    what = "completed" if run.status is Status.COMPLETED else f"ended as {run.status.value}"
    ended = f"{what}{after}"
    used = output.bounded_use(run.usage)
    more = [
        f"it could not reach its model: {plain(run.api_trouble.sentence)}"
        if run.api_trouble is not None
        else "",
        f"{counted(run.calls_refused, 'model call was', 'model calls were')} refused"
        if run.calls_refused
        else "",
        f"it used {used}" if used else "",
    ]
    return "; ".join(filter(None, (": ".join(filter(None, (ended, reason))), *more)))


def _facts(run: RunInfo) -> list[tuple[str, str]]:
    return [
        ("waits", output.why_waits(run)),
        *(("check", plain(in_words(check))) for check in run.checks),
        ("continues", run.continues or ""),
        ("continued by", run.continued_by or ""),
        ("used", "; ".join(limits.by_source(run))),
        ("in all", limits.totals(run)),
        ("plan", "; ".join(map(limits.window_share, run.plans))),
        ("milestone", plain(run.milestone or "")),
        ("last heard", "" if run.last_heard_at is None else f"{output.age(run.last_heard_at)} ago"),
        ("agent", plain(run.type or "")),
        ("user", plain(run.user)),
        ("labels", ", ".join(plain(f"{key}={value}") for key, value in run.labels.items())),
        ("metered by", output.meter(run)),
        ("attempt", str(run.attempts) if run.attempts > 1 else ""),
        ("exit code", "" if run.exit_code is None else str(run.exit_code)),
        ("processes", "" if run.processes is None else str(run.processes)),
        ("memory", "" if run.memory_bytes is None else output.size(run.memory_bytes)),
        ("isolation", run.isolation or ""),
        ("group", plain(run.group or "")),
        ("channel", plain(run.channel)),
        ("chain", plain(" → ".join(run.chain))),
        ("directory", plain(run.cwd)),
        ("worktree", plain(run.worktree or "")),
        ("branch", plain(run.branch or "")),
        ("command", output.command(run)[:4000]),
    ]


def event(one: Event, name: Callable[[RunId], RunId]) -> dict[str, Any]:
    """`name`: returns how pages name a run of the node that tells of it."""
    return {
        "seq": one.number,
        "time": one.time.timestamp() if isinstance(one.time, datetime) else None,
        "type": one.type,
        "severity": one.severity,
        "run": one.run_id and name(one.run_id),
        "name": plain(one.agent_name or ""),
        "message": plain(one.message)[:LONGEST],
        "state": one.state,
    }


def alert(one: AlertState) -> dict[str, Any]:
    return {
        "type": one.type,
        "run": one.run_id,
        "message": plain(one.message),
        "since": moment(one.since),
    }


def call(one: CallInfo) -> dict[str, Any]:
    return {
        "key": f"{one.time.timestamp():.6f}-{one.number}",
        "time": moment(one.time),
        "state": one.state.replace("_", " "),
        "model": plain(one.model or one.path or ""),
        "input": one.input_tokens,
        "cached": one.cached_tokens,
        "output": one.output_tokens,
        "cost": one.cost_usd,
        "mark": output.mark(one),
        "seconds": one.elapsed_s,
        "note": plain(one.refused or one.error or "")[:LONGEST],
    }


def daemon(status: DaemonStatus, table: RunTable, node: str) -> dict[str, Any]:
    """Return what every page shows of the daemon. `node`: whose cost this is, in a fleet."""
    return {
        "cost": status.cost_usd,
        "node": node,
        "window": format_duration(status.window_s),
        "alerts": [alert(one) for one in status.alerts],
        "others": table.of_others,
        "fullest": _fullest(status),
    }


def _fullest(status: DaemonStatus) -> str | None:
    """Return the window of a subscription of which most is used."""
    found = fullest(status.plans)
    return (
        None
        if found is None
        else f"{percent(found[1].used_ratio or 0.0)} of the {plain(found[1].window)} window"
    )


def subscription(account: SubscriptionInfo) -> dict[str, Any]:
    """Return the windows of a subscription."""
    return {
        "name": f"{account.provider} {plain(account.plan_type or '')}".strip(),
        "account": plain(account.account),
        "status": plain(account.status or ""),
        "heard": moment(account.heard_at),
        "action": account.action,
        "held": account.held,
        "windows": [
            {
                "name": plain(each.window),
                "used": each.used_ratio,
                "may": 1 - each.keep_ratio,
                "resets": moment(each.resets_at),
                "refused": each.rejected,
                "empty": moment(each.empty_at),
            }
            for each in account.windows
        ],
    }


def money(status: DaemonStatus) -> dict[str, Any]:
    """Return the windows of subscriptions, budgets and quotas."""
    return {
        "plans": [subscription(each) for each in status.plans],
        "budgets": [
            {
                "who": f"{each.scope} {plain(each.name)}",
                "period": each.period,
                "used": each.used_usd,
                "reserved": each.reserved_usd,
                "of": each.usd,
                "mark": output.mark(each),
                "renews": plain(each.renews),
            }
            for each in status.budgets
        ],
        "quotas": [
            {"key": each.key, "used": each.used, "of": each.limit, "free": each.possible_in_s}
            for each in status.quotas
        ],
    }
