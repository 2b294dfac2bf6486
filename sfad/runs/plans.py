"""How subscriptions are shown: what is known of each window, and which runs wait for its reset."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from ..core.limits.plans import Plans
from ..core.state.access import Scope
from ..core.state.plans import Window
from ..protocol.requests.plans import PlanAccount, PlanWindow


def accounts_of(plans: Plans, scope: Scope, now: float) -> Iterator[PlanAccount]:
    """Yield the accounts that a caller may know of: those that runs of its user have used, or inside a run, its own tree. The one
    that was heard of last comes first. `now`: Unix time."""
    for found in sorted(plans.known.values(), key=lambda each: -each.heard_at):
        held = [run.id for run in plans.held_by(found) if scope.knows(run.birth.uid, run.lineage_ids)]
        if scope.uid is None or scope.uid in found.uids:
            policy = plans.policy_of(found)
            yield PlanAccount(
                account=found.account,
                provider=found.provider,
                plan_type=found.plan_type,
                status=found.status,
                action=policy.action,
                heard_at=_moment(found.heard_at),
                windows=[_shown(window, policy.kept, now) for window in found.windows.values()],
                held=sorted(held),
            )


def _shown(window: Window, kept: Callable[[bool], float], now: float) -> PlanWindow:
    empty_at = window.empty_at(now)
    return PlanWindow(
        window=window.name,
        used_ratio=window.used,
        resets_at=_moment(window.resets_at) if window.resets_at is not None else None,
        heard_at=_moment(window.heard_at),
        keep_ratio=kept(window.of_week),
        rejected=window.rejected,
        empty_at=_moment(empty_at) if empty_at is not None else None,
    )


def _moment(unix_time: float) -> datetime:
    return datetime.fromtimestamp(unix_time, UTC)
