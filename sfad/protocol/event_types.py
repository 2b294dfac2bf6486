"""The types of events, for patterns that users write: in `on` of a hook, and for `sfactl events --type`."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

EVENT_TYPES = (
    "run_accepted", "run_queued", "run_rejected", "run_started", "run_progress", "run_paused", "run_resumed", "run_completed",
    "run_failed", "run_timeout", "run_cancelled", "run_lost", "run_repeating", "limit_nearing", "limit_exceeded", "limit_changed",
    "limits_widened", "increase_requested", "increase_approved", "increase_denied", "unadmitted", "alert_survivors", "alert_cost",
    "alert_budget", "alert_terminations", "alert_limit", "alert_repeating", "alert_unreachable", "alert_disk_full", "meter_gap",
    "meter_silent", "meter_unpriced", "gateway_bypassed", "egress_refused", "gateway_ended", "hook_failed", "daemon_recovered",
    "daemon_reexecuting", "daemon_reexecuted", "daemon_ledger_failing", "daemon_ledger_replaced", "daemon_state_dir_lost",
    "daemon_state_dir_back", "daemon_state_damaged", "daemon_socket_renewed",
)  # fmt: skip

HOOK_TYPES = tuple(each for each in EVENT_TYPES if not each.startswith("hook_"))
"""Those that start hooks: a hook that is started when one fails could fail for ever."""


def unknown_pattern(patterns: Iterable[str], types: Iterable[str] = EVENT_TYPES) -> str | None:
    """Return the first pattern that matches none of the types, or `None`."""
    return next((each for each in patterns if not any(fnmatchcase(known, each) for known in types)), None)
