"""How a live run is shown: to clients, and in its row of the ledger."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Literal

from msgspec.structs import replace

from ..core.life.stages import activity, checks_of
from ..core.machine import Machine
from ..core.state.account import Use
from ..core.state.limits import ActiveLimit
from ..core.state.money import to_usd
from ..core.state.quotas import QueuePlace
from ..core.state.run import Run
from ..features.listed import FEATURES
from ..host.clock import wall_clock
from ..processes.launcher import Footprint
from ..protocol.kinds import COSTS, COUNTS, KINDS, ROLES
from ..protocol.known import BY_REPORT
from ..protocol.types import (
    Action,
    ApiSilence,
    ApiTrouble,
    Hold,
    Limit,
    LimitKind,
    LimitState,
    RunInfo,
    Source,
    Status,
    Usage,
)
from .live import Live, SignsOfLife

# ---- How a live run is shown: to clients, and in its row of the ledger


SHOWN = [
    (name, each.shows)
    for each in FEATURES.values()
    if each.shows is not None
    for name in each.decides
]
"""What shows what features have decided, by its name in `Parts`."""

NOTES = [pair for each in FEATURES.values() for pair in each.notes.items()]

Enforcer = Literal["clock", "gateway", "ready", "meter", "kernel", "watching", "nothing"]


def info_of(
    live: Live,
    now: float,
    footprint: Footprint | None = None,
    holds: tuple[Hold, ...] = (),
    signs: SignsOfLife | None = None,
) -> RunInfo:
    """Return the run as it is shown at `now`, on the core's clock. `footprint`: its processes and
    memory then; `holds`: why it waits, as clients are told; `signs`: when it was heard of."""
    run, asked, latest = live.run, live.run.asked, live.run.latest
    fixed = live.fixed
    if fixed is None or live.fixed_of is not asked:
        fixed = _fixed(live)
        live.fix(fixed, asked)
    ended, exit_, sources = run.status.terminal, latest.exit, run.account.sources
    counts = run.clock.since is not None
    spent = run.clock.elapsed(now)
    elapsed = round(spent, 3) if run.started_at is not None else None
    more, status = {} if ended else dict(live.shown), run.status
    for name, shows in SHOWN:
        if (decided := getattr(live.parts, name)) is not None:
            more |= shows(decided, live)
    # of most runs, nothing of this is told
    if footprint is not None:
        more["processes"], more["memory_bytes"] = footprint.processes, footprint.memory_bytes
    if signs is not None and signs.heard is not None:
        more["last_heard_at"] = wall_clock() - timedelta(seconds=now - signs.heard)
        more["stopped"] = signs.is_stopped and run.status is Status.RUNNING
    if asked.stages or run.remote is not None:
        if (doing := activity(run)) is not None:
            more["activity"], status = doing, _status(run)
        more["checks"] = checks_of(run)
    if sources:
        more["usage_by_source"] = {
            source: _usage(source, use, elapsed) for source, use in sources.items()
        }
    if run.seen.unadmitted:
        more["unadmitted"] = run.seen.unadmitted
    if latest.trouble is not None or latest.failing is not None:
        more["api_trouble"] = _trouble(run)
    if run.account.reservations:
        more["api_silence"] = _silence(run, now)
    for noted, notes in NOTES:
        if getattr(run, noted):
            more |= notes(run, now)
    if run.stopped_children is not None:
        more["stopped_children"] = run.stopped_children
    if live.stdin is not None:
        more["stdin"] = True
    if not ended:
        if run.streak is not None:
            more["repeating"] = run.repeating
        if run.cut is not None:
            more["cut"] = f"{run.cut.message}; {run.after_cut}"
        if live.parts.direct is not None:
            more["direct"] = live.parts.direct
        if run.status is Status.QUEUED:
            more["after"] = tuple(run.awaits)
    return replace(
        fixed,
        status=status,
        pid=latest.pid,
        exit_code=exit_.code if exit_ is not None else None,
        signal=exit_.signal if exit_ is not None else None,
        reason=run.shown_reason,
        attempts=latest.number,
        limits=_limits(live, spent),
        usage=usage_of(live, elapsed) if sources else Usage(elapsed_s=elapsed),
        descendants=run.admitted,
        deadline=_deadline(run, now) if counts and not ended else None,
        milestone=live.milestone,
        started_at=live.started_at,
        ended_at=live.ended_at,
        meter=live.program.name if live.program is not None else None,
        session_id=live.session_id,
        model=live.model or asked.shown.model,
        provider=live.provider or asked.shown.provider,
        holds=holds,
        **more,
    )


def _fixed(live: Live) -> RunInfo:
    """Return what is the same of a run from its admission to its end, as long as nothing else is
    asked for it. A struct with so many fields is copied in a third of the time that it takes to
    make."""
    run, asked, grant = live.run, live.run.asked, live.run.root.asked.grant
    return RunInfo(
        id=run.id,
        name=run.name,
        kind=run.birth.kind,
        type=asked.identity.run_type,
        status=run.status,
        parent_id=run.parent.id if run.parent is not None else None,
        root_id=run.lineage_ids[0],
        depth=len(run.ancestors) if grant is None else len(grant.names) + len(run.ancestors),
        chain=list(run.chain) if grant is None else [*grant.names, *run.chain],
        argv=list(asked.shown.argv),
        cwd=asked.shown.cwd,
        user=run.user,
        channel=run.birth.channel,
        attempts=0,
        usage=Usage(),
        descendants=0,
        created_at=live.created_at,
        labels=asked.identity.labels,
        session=asked.session is not None,
        group=asked.queueing.group,
        continues=asked.continues,
        task=asked.shown.task,
        allowed_tools=asked.terms.allowed_tools,
        blocked_tools=asked.terms.blocked_tools,
    )


def _status(run: Run) -> Status:
    """Return the status of a run with a stage that is executed, or about to be."""
    return Status.RUNNING if run.status in {Status.STARTING, Status.RETRYING} else run.status


def holds_at(machine: Machine, run: Run, now: float) -> tuple[Hold, ...]:
    """Return why a live run waits, at `now`, on the core's clock."""
    return machine.holds(run, now, lambda at: wall_clock() + timedelta(seconds=at - now))


def with_place(
    holds: Iterable[Hold], place: QueuePlace, free_by: datetime | None
) -> tuple[Hold, ...]:
    """Return what holds a queued run, with its place in the queue. `free_by`: the first deadline of
    the trees that have a slot; `None` if none of them has a deadline now."""
    words = f"; it is number {place.place} of {place.waiting} that wait"
    if free_by is None:
        words += "; no tree that has a slot has a deadline now"
    return tuple(
        replace(hold, words=hold.words + words, until=free_by)
        if hold.kind in {"slot", "group"}
        else hold
        for hold in holds
    )


def _silence(run: Run, now: float) -> ApiSilence | None:
    silences = run.account.silences
    if not silences:
        return None
    longest = min(silences, key=lambda silence: silence.since)
    since = wall_clock() - timedelta(seconds=now - longest.since)
    return ApiSilence(host=longest.host, since=since, calls=len(silences))


def with_account(info: RunInfo, live: Live, cpu: float | None) -> RunInfo:
    """Add the cores that a live run uses, and what its account says of it and its descendants."""
    account, runs = live.run.account, live.run.subtree()
    uses = [best[1] for each in runs if (best := each.account.best) is not None]
    costs, tokens = (
        account.spent(LimitKind.COST),
        account.spent(LimitKind.TOKENS),
    )
    return replace(
        info,
        cpu_cores=None if cpu is None else round(cpu, 2),
        total_cost_usd=to_usd(None if costs is None else int(costs)),
        total_tokens=None if tokens is None else int(tokens),
        total_partial=live.run.partial_below or any(each.account.partial for each in runs),
        total_at_most=bool(account.ended_unsure) or any(use.at_most for use in uses),
    )


def _trouble(run: Run) -> ApiTrouble | None:
    if not run.status.terminal:
        return run.latest.known_trouble
    return run.latest.failing if run.status is Status.COMPLETED else None  # else its reason has it


def usage_of(live: Live, elapsed: float | None = None) -> Usage:
    """Return what the run itself has used, after `elapsed` seconds."""
    account = live.run.account
    best = account.best if account.sources else None
    return Usage(elapsed_s=elapsed) if best is None else _usage(*best, elapsed)


def _limits(live: Live, spent: float) -> list[LimitState]:
    """`spent`: seconds that its clock has counted."""
    # a short run is shown three times before more than its time is known to be used; making all
    # states each time would be a tenth of the daemon's work in a burst of runs
    run, account = live.run, live.run.account
    known = account.known
    if live.unused is None or known or run.seen.bypassed:
        states = list[LimitState]()
        unused = live.unused = list[LimitState]()
        gated = live.gated and not run.seen.bypassed
        for active in run.limits.values():
            states.append(state := _limit(live, active, spent, known=known, gated=gated))
            if state.kind is not LimitKind.TIME:
                unused.append(state)
        return states
    time = run.limits.get(LimitKind.TIME)
    return (
        [_limit(live, time, spent, known=False, gated=False), *live.unused]
        if time is not None
        else list(live.unused)
    )


def _limit(
    live: Live, active: ActiveLimit, spent: float, *, known: bool, gated: bool
) -> LimitState:
    """`known`: something is known of what the run uses; `gated`: its calls go through the
    gateway."""
    limit, kind = active.limit, active.limit.kind
    above = _tighter(live, active) if live.run.parent is not None else None
    used: float | None = None
    reserved: float = 0
    if kind is LimitKind.TIME:
        used = spent
    elif known:
        used, reserved = live.run.account.used(kind), live.run.account.reserved(kind)
    if used is not None and kind in COSTS:
        used, reserved = to_usd(int(used)), to_usd(int(reserved))
    return LimitState(
        kind=kind,
        threshold=limit.threshold,
        action=limit.action or Action.TERMINATE,
        source=limit.source,
        used=None if used is None else round(used - reserved, 6),
        reserved=round(reserved, 6) or None,
        scope=KINDS[kind].scope,
        enforced_by="clock"
        if kind is LimitKind.TIME
        else _enforcer(live, limit, used, gated=gated),
        bound_by=above.id if above is not None else None,
        bound=above.limits[kind].limit.threshold if above is not None else None,
    )


def _tighter(live: Live, active: ActiveLimit) -> Run | None:
    """Return the ancestor with the lowest limit of this kind for its tree, if that is lower than
    the run's own."""
    kind, found = active.limit.kind, live.run
    if KINDS[kind].scope == "run":
        return None
    for above in live.run.ancestors:
        other = above.limits.get(kind)
        if (
            other is not None
            and other.binds
            and other.limit.threshold < found.limits[kind].limit.threshold
        ):
            found = above
    return found if found is not live.run else None


def _enforcer(live: Live, limit: Limit, used: float | None, *, gated: bool) -> Enforcer:
    kind = limit.kind
    match KINDS[kind].counted_by:
        case "clock":
            return "clock"
        case "meter" if kind in ROLES:
            return "meter" if used is not None or live.output.meter == BY_REPORT else "nothing"
        case "meter":
            if gated and live.run.called:
                return "gateway"
            if used is not None or _may_be_known(live, kind):
                return "meter"
            return "ready" if gated else "nothing"
        case "plan":
            if live.run.has_used_windows():
                return "gateway" if gated else "meter"
            return "ready" if gated else "nothing"
        case "kernel" if limit.action is Action.TERMINATE or not KINDS[kind].acts:
            return live.launcher.enforced_by(kind)
        case _:
            return "watching"  # the kernel would terminate


def _may_be_known(live: Live, kind: LimitKind) -> bool:
    """Return whether a source beside the gateway may still tell its use. The cost of a model
    without a price stays unknown."""
    account = live.run.account
    told = live.program is not None or live.session_files is not None
    if not ((told and not live.meter_silent) or live.output.meter == BY_REPORT or account.metered):
        return False
    unpriced = kind in COSTS and account.known and bool(account.used(LimitKind.TOKENS))
    return not unpriced


def _deadline(run: Run, now: float) -> datetime | None:
    at = run.deadline
    return wall_clock() + timedelta(seconds=at - now) if at is not None else None


def _usage(source: Source, use: Use, elapsed: float | None) -> Usage:
    return Usage(
        **{name: getattr(use, name) for name in COUNTS},
        input_tokens=use.input_tokens,
        output_tokens=use.output_tokens,
        cached_tokens=use.cached_tokens,
        tokens=use.tokens,
        cost_usd=to_usd(use.cost),
        cost_from=use.cost_from,
        unpriced_tokens=use.unpriced_tokens,
        planning_cost_usd=to_usd(use.planning_cost),
        execution_cost_usd=to_usd(use.execution_cost),
        elapsed_s=elapsed,
        source=source,
        partial=use.partial,
        estimated=use.estimated,
        at_most=use.at_most,
    )
