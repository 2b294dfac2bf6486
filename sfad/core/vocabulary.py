"""The words that leave the core as text: names of timers and signals, kinds of reasons, types of events."""

from signal import Signals

from ..protocol.types import Word


class Timer(Word):
    """What a run's timer is for. A run has at most one of each."""

    DEADLINE = "deadline"
    """Its clock reaches its time limit, or the share of it that is published; before its launch: the launch takes too long."""
    RESULT = "result"
    """Its agent printed its final result and has not exited."""
    RETRY = "retry"
    POLITE = "polite"
    """Main processes were interrupted; now every process is signalled."""
    GRACE = "grace"
    """Every process was signalled; now SIGKILL follows."""
    KILL = "kill"
    """SIGKILL is repeated."""
    SURVEY = "survey"
    """Processes are still alive after SIGKILL; they are looked at."""
    APPROVAL = "approval"
    """No increase of a limit was approved in time."""
    PAUSE_MAX = "pause_max"
    """The run was not resumed in time."""
    RECONNECT = "reconnect"
    """Its client did not come back after the daemon's restart."""
    CALLS = "calls"
    """A call of a model has waited for others for as long as it may."""
    ALERT = "alert"
    """An alert of the run may have to be raised or cleared."""


class ReasonKind(Word):
    """`Reason.kind`, where it is not the rule that refused."""

    EXIT = "exit"
    SIGNAL = "signal"
    AGENT = "agent"
    RESULT = "result"
    LIMIT = "limit"
    BUDGET = "budget"
    STOP = "stop"
    ANCESTOR = "ancestor"
    AFTER = "after"
    CLIENT = "client"
    DAEMON = "daemon"
    LEDGER = "ledger"
    SUSPENDED = "suspended"
    INTERRUPT = "interrupt"


class EventType(Word):
    """`Event.type` of what happens to a run."""

    RUN_ACCEPTED = "run_accepted"
    RUN_QUEUED = "run_queued"
    RUN_REJECTED = "run_rejected"
    RUN_STARTED = "run_started"
    RUN_PROGRESS = "run_progress"
    RUN_PAUSED = "run_paused"
    RUN_RESUMED = "run_resumed"
    RUN_COMPLETED = "run_completed"
    RUN_FAILED = "run_failed"
    RUN_TIMEOUT = "run_timeout"
    RUN_CANCELLED = "run_cancelled"
    RUN_LOST = "run_lost"
    LIMIT_NEARING = "limit_nearing"
    LIMIT_EXCEEDED = "limit_exceeded"
    LIMIT_CHANGED = "limit_changed"
    LIMITS_WIDENED = "limits_widened"
    INCREASE_REQUESTED = "increase_requested"
    INCREASE_APPROVED = "increase_approved"
    INCREASE_DENIED = "increase_denied"
    UNADMITTED = "unadmitted"
    GATEWAY_BYPASSED = "gateway_bypassed"
    EGRESS_REFUSED = "egress_refused"
    RUN_REPEATING = "run_repeating"
    ALERT_SURVIVORS = "alert_survivors"
    ALERT_COST = "alert_cost"
    ALERT_BUDGET = "alert_budget"
    ALERT_TERMINATIONS = "alert_terminations"
    ALERT_LIMIT = "alert_limit"
    ALERT_REPEATING = "alert_repeating"
    ALERT_UNREACHABLE = "alert_unreachable"


def signal_name(number: int) -> str:
    """`SIGTERM`, or `signal 77`."""
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"
