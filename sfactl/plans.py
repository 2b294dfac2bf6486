"""How the windows of subscriptions are told: the fullest one, and when it resets."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sfad.protocol.requests.plans import PlanAccount, PlanWindow


def moment(when: datetime, now: datetime) -> str:
    """Return a time in the user's zone: `14:00`, with the date if it is over a day away."""
    local = when.astimezone()
    return (
        f"{local:%H:%M}"
        if abs((when - now).total_seconds()) <= 86400
        else f"{local:%Y-%m-%d %H:%M}"
    )


def fullest(accounts: Sequence[PlanAccount]) -> tuple[PlanAccount, PlanWindow] | None:
    """Return the window of which most is used."""
    known = [
        (account, window)
        for account in accounts
        for window in account.windows
        if window.used_ratio is not None
    ]
    return max(known, key=lambda each: each[1].used_ratio or 0.0, default=None)
