"""The types of events, for patterns that users write, as for `sfactl events --type`."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from .types import Word


class EventType(Word):
    """`Event.type`: each type that the daemon sends."""

    RUN_ACCEPTED = "run_accepted"
    RUN_QUEUED = "run_queued"
    RUN_REJECTED = "run_rejected"
    RUN_STARTED = "run_started"
    RUN_PROGRESS = "run_progress"
    RUN_STOPPING = "run_stopping"
    RUN_PAUSED = "run_paused"
    RUN_RESUMED = "run_resumed"
    RUN_COMPLETED = "run_completed"
    RUN_FAILED = "run_failed"
    RUN_TIMEOUT = "run_timeout"
    RUN_CANCELLED = "run_cancelled"
    RUN_LOST = "run_lost"
    RUN_WAITING = "run_waiting"
    APPROVAL_REQUESTED = "approval_requested"
    APPROVAL_ANSWERED = "approval_answered"
    RUN_REPEATING = "run_repeating"
    LIMIT_NEARING = "limit_nearing"
    LIMIT_EXCEEDED = "limit_exceeded"
    LIMIT_CHANGED = "limit_changed"
    LIMITS_WIDENED = "limits_widened"
    INCREASE_REQUESTED = "increase_requested"
    INCREASE_APPROVED = "increase_approved"
    INCREASE_DENIED = "increase_denied"
    UNADMITTED = "unadmitted"
    SURVIVORS = "alert_survivors"
    ALERT_COST = "alert_cost"
    ALERT_BUDGET = "alert_budget"
    ALERT_TERMINATIONS = "alert_terminations"
    ALERT_LIMIT = "alert_limit"
    ALERT_REPEATING = "alert_repeating"
    ALERT_UNREACHABLE = "alert_unreachable"
    DISK_FULL = "alert_disk_full"
    METER_GAP = "meter_gap"
    METER_SILENT = "meter_silent"
    METER_UNPRICED = "meter_unpriced"
    MODEL_FREE = "model_free"
    PLAN_NEARING = "plan_nearing"
    PLAN_EXHAUSTED = "plan_exhausted"
    PLAN_RESET = "plan_reset"
    PLAN_CREDITS = "plan_credits"
    ALERT_PLAN = "alert_plan"
    GATEWAY_BYPASSED = "gateway_bypassed"
    HANDED_OFF = "handed_off"
    EGRESS_REFUSED = "egress_refused"
    GATEWAY_ENDED = "gateway_ended"
    HOOK_FAILED = "hook_failed"
    DAEMON_RECOVERED = "daemon_recovered"
    DAEMON_REEXECUTING = "daemon_reexecuting"
    DAEMON_REEXECUTED = "daemon_reexecuted"
    DAEMON_LEDGER_FAILING = "daemon_ledger_failing"
    DAEMON_LEDGER_REPLACED = "daemon_ledger_replaced"
    DAEMON_STATE_DIR_LOST = "daemon_state_dir_lost"
    DAEMON_STATE_DIR_BACK = "daemon_state_dir_back"
    DAEMON_STATE_DAMAGED = "daemon_state_damaged"
    DAEMON_SOCKET_RENEWED = "daemon_socket_renewed"


EVENT_TYPES = tuple(EventType)


def unknown_pattern(patterns: Iterable[str], types: Iterable[str] = EVENT_TYPES) -> str | None:
    """Return the first pattern that matches none of the types, or `None`."""
    return next(
        (each for each in patterns if not any(fnmatchcase(known, each) for known in types)), None
    )
