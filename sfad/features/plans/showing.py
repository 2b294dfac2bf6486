"""How subscriptions are shown: what is known of each window, and which runs wait for its reset."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from ...core.state.access import Scope
from ...host.probe import user_name
from ...protocol.requests.windows import SubscriptionInfo, WindowInfo
from .barrier import Subscriptions
from .windows import Window


def accounts_of(
    subscriptions: Subscriptions, scope: Scope, now: float
) -> Iterator[SubscriptionInfo]:
    """Yield the accounts that a caller may know of: those that runs of its user have used, or
    inside a run, its own tree. The one that was heard of last comes first. `now`: Unix time."""
    for found in sorted(subscriptions.known.values(), key=lambda each: -each.heard_at):
        held = [
            run.id
            for run in subscriptions.held_by(found)
            if scope.knows(run.birth.uid, run.lineage_ids)
        ]
        if scope.uid is None or scope.uid in found.uids:
            policy = subscriptions.policy_of(found)
            yield SubscriptionInfo(
                account=found.account,
                provider=found.provider,
                user=user_name(found.uid) if found.uid is not None else None,
                plan_type=found.plan_type,
                status=found.status,
                action=policy.action,
                heard_at=_moment(found.heard_at),
                windows=[
                    _window_shown(window, policy.kept, now) for window in found.windows.values()
                ],
                on_credits=found.on_credits,
                credits=found.credits,
                banked_resets=found.banked_resets,
                held=sorted(held),
            )


def _window_shown(window: Window, kept: Callable[[bool], float], now: float) -> WindowInfo:
    empty_at = window.empty_at(now)
    return WindowInfo(
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
