"""The words that leave the core as text: names of timers and signals, kinds of reasons; the types
of events are the protocol's."""

from signal import Signals

from ...protocol.event_types import EventType as EventType
from ...protocol.types import Word


class Timer(Word):
    """What a run's timer is for. A run has at most one of each."""

    DEADLINE = "deadline"
    """Its clock reaches its time limit, or the share of it that is published; before its launch:
    the launch takes too long."""
    RESULT = "result"
    """Its agent printed its final result and has not exited."""
    RETRY = "retry"
    POLITE = "polite"
    """Main processes were interrupted; now every process is signalled."""
    GRACE = "grace"
    """Every process was signalled; now SIGKILL follows."""
    SURVEY = "survey"
    """Processes are still alive after SIGKILL; they are looked at."""
    APPROVAL = "approval"
    """No increase of a limit was approved in time."""
    PAUSE_MAX = "pause_max"
    """The run was not resumed in time."""
    RECONNECT = "reconnect"
    """Its client did not come back after the daemon's restart."""
    CALLS = "calls"
    """A model call has waited for others for as long as it may."""
    AT = "at"
    """The time may have come at which it is to start (`--at`)."""
    LEASE = "lease"
    """The other node of its grant was not heard of for too long."""


class ReasonKind(Word):
    """`Reason.kind`, where it is not the rule that refused."""

    EXIT = "exit"
    SIGNAL = "signal"
    AGENT = "agent"
    RESULT = "result"
    LIMIT = "limit"
    BUDGET = "budget"
    PLAN = "plan"
    STOP = "stop"
    ANCESTOR = "ancestor"
    AFTER = "after"
    CLIENT = "client"
    DAEMON = "daemon"
    LEDGER = "ledger"
    SUSPENDED = "suspended"
    INTERRUPT = "interrupt"
    LEASE = "lease"
    CHECK = "check"
    SETUP = "setup"


BY_AGENT = frozenset({ReasonKind.EXIT, ReasonKind.SIGNAL, ReasonKind.AGENT, ReasonKind.RESULT})
"""The reasons of a run that ended by its agent's own doing."""

BY_BOUND = frozenset({ReasonKind.LIMIT, ReasonKind.BUDGET})
"""The reasons of a run that has used too much."""


def signal_name(number: int) -> str:
    """`SIGTERM`, or `signal 77`."""
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"
