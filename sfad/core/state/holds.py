"""Why a live run waits: its holds. They are derived from what is known of the run, and kept
nowhere; docs/states.md has the table of their kinds."""

from collections.abc import Callable, Iterator
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from ...protocol.holds import HOLDS
from ...protocol.kinds import KINDS
from ...protocol.limits import format_excess
from ...protocol.texts.units import counted
from ...protocol.types import Action, Blocked, Hold, LimitKind, Status
from .quotas import QuotaUse, Slots
from .run import Run

MORE = (
    "it continues when the budget is renewed, or an operator raises it in [budgets] of the config"
)
"""What ends the pause of a tree whose budget has run out."""

Moment = Callable[[float], datetime]
"""Returns the date of a time on the core's clock."""


class CallsWait(Struct, frozen=True):
    """Model calls of a run that wait for their turn. Times are those of the core's clock."""

    calls: int
    """How many wait. The rest is about the oldest."""
    since: float
    until: float | None
    why: str


PHASES = frozenset(
    {Status.ACCEPTED, Status.STARTING, Status.STOPPING, *(each for each in Status if each.terminal)}
)
"""Where a run is whatever holds it."""


def holds_of(
    run: Run, slots: Slots, calls: CallsWait | None, now: float, moment: Moment
) -> tuple[Hold, ...]:
    """Return what holds a live run at `now`, what it can be rid of first: what blocks its start,
    pauses of its own, those of runs above it, and its calls that wait."""
    if run.status in PHASES and run.status is not Status.STARTING:
        return ()
    found = [*_start(run, slots, now, moment), *_pauses(run, moment), *_above(run, moment)]
    if run.asks:
        found.append(_asks(run, moment))
    if calls is not None:
        found.append(_calls(run, calls, moment))
    return tuple(found)


def _hold(
    kind: str, blocks: Blocked, words: str, moment: Moment, since: float | None = None,
    until: float | None = None, command: str | None = None, limit_kind: LimitKind | None = None,
) -> Hold:  # fmt: skip
    spec = HOLDS[kind]
    return Hold(
        kind=kind,
        blocks=blocks,
        words=words,
        ends=spec.ends,
        since=None if since is None else moment(since),
        until=None if until is None else moment(until),
        clock_stops=spec.clock_stops,
        command=command,
        limit_kind=limit_kind,
    )


# ---- What blocks the start of a run, or of its next attempt


def _start(run: Run, slots: Slots, now: float, moment: Moment) -> Iterator[Hold]:
    remote, since = run.remote, run.queued_at
    if (found := _first(run, slots)) is not None:
        kind, words = found
        away = remote.heard_at if kind == "lease" and remote is not None else since
        hold = _hold(kind, "start", words, moment, away)
        times = [after.at for after in run.awaits if after.at is not None]
        yield hold if kind != "at" else replace(hold, until=max(times))
    if run.status is Status.RETRYING and run.latest.next_stage is not None:
        words = "what was executed before in it is being stopped" if run.clearing else "it is next"
        yield _hold("stage", "start", words, moment)
    elif run.status is Status.RETRYING:
        yield _retry(run, now, moment)
    if run.status is Status.QUEUED and not run.committed:
        yield _hold("record", "start", "its admission is being recorded", moment, since)


def _first(run: Run, slots: Slots) -> tuple[str, str] | None:
    """Return what a run waits for first: the kind of hold, and the words."""
    remote = run.remote
    if run.awaits:
        runs = [after for after in run.awaits if after.at is None]
        ends = (f"{after.run} has {'completed' if after.ok else 'ended'}" for after in runs)
        times = [f"it is {after.words}" for after in run.awaits if after.at is not None]
        kind = "after" if runs else "at"
        return kind, f"it starts when {' and '.join((*ends, *times))}"
    if (full := slots.full_for_root(run.id)) is not None:
        return "group" if full.key.startswith("groups.") else "slot", _slot_words(full, slots)
    if remote is None:
        return None
    if remote.node is None:
        return "placing", remote.waits or "it is being placed"
    if not remote.id and run.status is Status.STARTING:
        why = f": {remote.unreached}" if remote.unreached else ""
        return "lease", f"node {remote.node} has not taken it yet{why}"
    return None


def why_queued(run: Run, slots: Slots) -> str:
    """Return what a queued run waits for, for the event that tells of it."""
    if run.window_hold is not None:
        return run.window_hold.message
    return found[1] if (found := _first(run, slots)) is not None else ""


def _slot_words(full: QuotaUse, slots: Slots) -> str:
    whose = "the daemon has" if full.key == "quotas.trees" else "you have"
    of_group = "of its group, " if full.key.startswith("groups.") else ""
    trees = counted(full.used, "live tree")
    if slots.parts is not None and full.used < full.limit:
        why = slots.trouble or "others have the rest, or come first"
        return f"{of_group}{whose} {trees} here; of all machines {full.key} is {full.limit}: {why}"
    return f"{of_group}{whose} {trees}, and {full.key} is {full.limit}"


def _retry(run: Run, now: float, moment: Moment) -> Hold:
    latest = run.latest
    of, why = run.asked.retries.attempts, latest.cut_short or "has failed"
    words = f"attempt {latest.number} of {of} {why}; "
    if run.clearing:
        words += "what it has left is being stopped"
    elif latest.next_resumes and run.agent_session is not None:
        words += "the next continues its session"
    else:
        words += "the next begins"
    until = None if run.clearing else run.retry_at
    if until is not None and until <= now and run.paused_in_lineage:
        words, until = f"{words} when no pause holds it", None  # the delay is over
    return _hold("retry", "start", words, moment, latest.failed_at, until)


# ---- What pauses a run: all that keeps it from going on is told, because each must end


def _pauses(run: Run, moment: Moment) -> Iterator[Hold]:
    """Yield the holds of the run itself that block its processes, and the reset of a window, which
    may block its start."""
    paused, window = run.paused, run.window_hold
    if run.limit_hold is not None:
        yield _limit(run, moment)
    since = _since(run)
    if paused is not None and paused.no_money is not None:
        words = f"{paused.no_money.message}; {MORE}"
        yield _hold("budget", "processes", words, moment, since, command="sfactl reload")
    if window is not None and (paused is not None or run.status is Status.QUEUED):
        yield _hold(
            "plan", "start" if run.status is Status.QUEUED else "processes", window.message,
            moment, window.since, window.goes_on_at or window.resets_at, "sfactl plans",
        )  # fmt: skip
    if paused is None:
        if run.remote is not None and run.status is Status.PAUSED and not run.paused_in_lineage:
            yield _of_node(run, moment)
        return
    others = run.limit_hold is not None or run.resumes_itself
    resume = f"sfactl resume {run.id}"
    until = None if run.resumes_itself and not paused.by_hand else paused.until
    if paused.suspended:
        words = "suspended at its terminal"
        yield _hold("suspended", "processes", words, moment, since, until, resume)
    elif paused.by_giver:
        grant = run.asked.grant
        words = f"by node {grant.giver}, which has granted it" if grant else "by its giver"
        yield _hold("giver", "processes", words, moment, since)
    elif paused.by_hand or not others:
        yield _hold("person", "processes", "by hand", moment, since, until, resume)


def _since(run: Run) -> float | None:
    """Return since when a run is paused, if that is for one reason; `None` if there are several,
    because which of them came first is not known."""
    paused = run.paused
    if paused is None or paused.by_hand:
        return None
    holds = (run.limit_hold, run.window_hold, paused.no_money, paused.suspended or None)
    return paused.since if len([each for each in holds if each is not None]) < 2 else None


def _limit(run: Run, moment: Moment) -> Hold:
    hold = run.limit_hold
    assert hold is not None
    kind, reason = hold.kind, hold.reason
    words = reason.message + format_excess(reason, tree=KINDS[kind].scope == "tree")
    active = run.held_by
    asks = active is not None and active.action is Action.REQUEST_INCREASE
    room = f"[--limit {kind}=N]"
    command = f"sfactl resume {run.id} {room}"
    if asks:
        command = f"sfactl approve {run.id} {room}, or sfactl deny {run.id}"
    return _hold(
        "approval" if asks else "limit", "processes", words, moment, hold.since,
        None if run.held_until_reset and not asks else hold.until, command, kind,
    )  # fmt: skip


def _of_node(run: Run, moment: Moment) -> Hold:
    assert run.remote is not None
    words = f"paused on node {run.remote.node}"
    there = f"sfactl resume {run.remote.node}/{run.remote.id}"
    return _hold("node", "processes", words, moment, command=there)


def _above(run: Run, moment: Moment) -> Iterator[Hold]:
    """Yield a hold for each run above that is paused itself."""
    if run.parent is None or not run.parent.paused_in_lineage:
        return
    waits = run.status in {Status.QUEUED, Status.RETRYING}
    for above in reversed(run.ancestors):
        if above.paused is not None:
            cause = "; ".join(each.words for each in _pauses(above, moment))
            words = f"run {above.id} ('{above.name}') above it is paused: {cause}"
            blocks: Blocked = "start" if waits else "processes"
            yield _hold(
                "ancestor", blocks, words, moment, above.paused.since,
                command=f"sfactl why {above.id}",
            )  # fmt: skip


def _asks(run: Run, moment: Moment) -> Hold:
    command = f"sfactl approve {run.id} CALL, or sfactl deny {run.id} CALL"
    return _hold("tool", "call", run.asks, moment, run.asked_at, command=command)


def _calls(run: Run, calls: CallsWait, moment: Moment) -> Hold:
    words = f"{counted(calls.calls, 'model call waits', 'model calls wait')}: {calls.why}"
    return _hold("call", "call", words, moment, calls.since, calls.until, f"sfactl calls {run.id}")
