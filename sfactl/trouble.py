"""What is wrong with a live run, in words: the worst first."""

from __future__ import annotations

from datetime import datetime

from sfad.protocol.kinds import KINDS
from sfad.protocol.limits import format_amount
from sfad.protocol.types import LimitKind, LimitState, RunInfo

from . import output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


NEAR = 0.8
"""The share of a limit from which it is told, as the default of `limits.nearing` and `alerts.limit_share`."""


def troubles(run: RunInfo, now: datetime, limit_share: float = NEAR) -> Iterator[str]:
    """Yield predicates: `cannot reach its model: the API answered 529 six times`."""
    if run.api_silence is not None:
        since = output.clock(run.api_silence.since, now)
        yield f"has been {output.plain(run.api_silence.sentence(now))}, since {since}"
    if run.api_trouble is not None:
        yield f"cannot reach its model: {output.plain(run.api_trouble.sentence)}"
    if output.unanswered(run):
        yield (
            f"gets no answer: its model has not answered for {output.seconds(run.usage.elapsed_s)}, and {run.meter} does not tell "
            f"whether it tries again (what it prints: sfactl logs {run.id} --stderr)"
        )
    if run.repeating is not None:
        yield f"repeats itself: {output.plain(run.repeating.sentence)}"
    for state in near(run, limit_share):
        yield f"is near its limit: {state.kind} {of(state)}"


def near(run: RunInfo, limit_share: float = NEAR) -> list[LimitState]:
    """Return the limits that act of which `limit_share` or more is used, the nearest first."""
    shares = {state.kind: share(state) for state in run.limits}
    found = [state for state in run.limits if KINDS[state.kind].acts and shares[state.kind] >= limit_share]
    return sorted(found, key=lambda state: -shares[state.kind])


def share(state: LimitState) -> float:
    return state.used / state.threshold if state.used is not None and state.threshold else 0.0


def of(state: LimitState) -> str:
    """Return `4.10 of 5.00 USD (82 %)`. The limit's use is known."""
    used = state.used or 0.0
    words = output.seconds(used) if state.kind is LimitKind.TIME else format_amount(state.kind, used, unit=False)
    return f"{words} of {format_amount(state.kind, state.threshold)} ({output.percent(share(state))})"
