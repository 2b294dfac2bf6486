"""Publishes alerts that are raised or cleared, and keeps each run's timer for them."""

from ..protocol import types
from ..protocol.types import RunId, Severity
from . import commands as c
from .alert import Change, Measure
from .context import Context, Facts
from .run import Run
from .shared_alerts import Scope
from .vocabulary import EventType, Timer


class AlertBoard:
    def __init__(self, context: Context) -> None:
        self._ctx = context
        self._dues: dict[RunId, float] = {}
        """When the timer `alert` of a run fires."""

    def tell_of_run(self, what: EventType, change: Change, measure: Measure, message: str, run: Run) -> None:
        self._ctx.publish(what, run, _words(change, message), _severity(change), **_facts(change, measure, "run"))

    def tell_of_all(self, what: EventType, change: Change, measure: Measure, message: str, scope: Scope) -> None:
        """Publish an alert about all runs, or those of a user or a team."""
        severity, facts = _severity(change), _facts(change, measure, scope)
        if what is EventType.ALERT_BUDGET and change == "raised" and measure.threshold < 1:
            severity = "medium"  # a part of it is left
        event = types.Event(type=what, severity=severity, message=_words(change, message), **facts)
        self._ctx.do(c.Publish(event, ()))

    def look_at(self, run: Run, due: float | None) -> None:
        """Have the run looked at again at that time; `None`: when something happens."""
        if due == self._dues.get(run.id):
            return
        if due is not None:
            self._dues[run.id] = due
            self._ctx.arm(run, Timer.ALERT, due)
        else:
            del self._dues[run.id]
            self._ctx.disarm(run, Timer.ALERT)

    def forget(self, run: Run) -> None:
        """Clear the alerts of a run that has ended. It cannot raise them again, so nothing is held."""
        for what, alert in run.alerts.items():
            self.tell_of_run(EventType(what), "cleared", alert.measure, "the run has ended", run)
        run.alerts.clear()
        self.look_at(run, None)


def _facts(change: Change, measure: Measure, scope: str) -> Facts:
    facts = Facts(scope=scope, state=change, value=measure.value, threshold=measure.threshold)
    if measure.window is not None:
        facts["window_s"] = measure.window
    return facts


def _severity(change: Change) -> Severity:
    return "high" if change == "raised" else "low"


def _words(change: Change, message: str) -> str:
    if change == "raised":
        return message
    return f"over: {message}" if message else "over"
