"""How much a run needs a person, and the words that say why."""

from datetime import UTC, datetime

from sfad.protocol.types import RunInfo, Status

from .. import output, trouble
from ..waiting import after_others

WAITS, STUCK, NEARING, ENDED, QUIET = 4, 3, 2, 1, 0
"""It waits for a person; it does not get on; it is near a limit; it ended badly; nothing is wrong."""


def rank(run: RunInfo, limit_share: float) -> int:
    """`limit_share`: the share of a limit from which a run is near it."""
    if run.status is Status.PAUSED and (run.reason is None or run.reason.kind != "suspended"):
        return WAITS
    if run.status.terminal:
        return ENDED if run.status in (Status.FAILED, Status.TIMEOUT, Status.LOST) or run.status.rejected else QUIET
    silent = run.api_silence is not None or run.api_trouble is not None or output.unanswered(run)
    if silent or run.repeating is not None or run.unadmitted:
        return STUCK
    return NEARING if trouble.near(run, limit_share) else QUIET


def reason(run: RunInfo, limit_share: float, now: datetime | None = None) -> str:
    """Return a sentence about a run for the lines below the tree: its trouble, else what it does."""
    now = now or datetime.now(UTC)
    if run.status is Status.PAUSED and (paused := _paused(run, now)):
        return paused
    if not run.status.terminal and (found := list(trouble.troubles(run, now, limit_share))):
        return "; ".join(found)
    if run.unadmitted and not run.status.terminal:
        return f"{run.unadmitted} agent programs were started within it without asking the daemon"
    if run.reason is not None:
        return f"{run.status.value}: {output.plain(run.reason.message)}"
    if run.after:
        return f"{run.status.value}: {after_others(run)}"
    said = output.plain(run.milestone) if run.milestone else output.command(run)
    return f"{run.status.value}: {said}"


def _paused(run: RunInfo, now: datetime) -> str | None:
    """Return which limit paused a run, and the keys that answer; `None` if no limit did."""
    state = next((state for state in run.limits if run.reason is not None and state.kind == run.reason.limit_kind), None)
    if state is None or state.used is None:
        return None
    told = f"{state.kind} {trouble.of(state)}"
    if not output.waits_for_approval(run):
        return f"paused: {told}; r resumes it with more room, s stops it"
    until = f" until {output.clock(run.deadline, now)}, {output.until(run.deadline, now)} left" if run.deadline is not None else ""
    return f"waits for approval{until}: {told}; a approves, d denies"
