"""Alerts that are raised, as they are shown."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta

from ..core.alert import RaisedAlert
from ..core.run import Run
from ..core.shared_alerts import Key
from ..host.clock import wall_clock
from ..protocol.types import AlertState, RunId

MOST = 500
"""Alerts that one answer has, the oldest: each is about 300 bytes."""


def alerts_of(run: Run, now: float) -> list[AlertState]:
    return [_shown(what, alert, now, run=run.id) for what, alert in run.alerts.items()]


def all_alerts(runs: Iterable[Run], shared: Mapping[Key, RaisedAlert], now: float) -> list[AlertState]:
    """Return the alerts about these runs, and `shared` ones, the oldest first. `now`: on the core's clock."""
    return sorted([*_shared(shared, now), *(state for run in runs for state in alerts_of(run, now))], key=_since)[:MOST]


def _shared(shared: Mapping[Key, RaisedAlert], now: float) -> Iterator[AlertState]:
    for (what, user), alert in shared.items():
        yield _shown(what, alert, now, user=user or None)


def _since(state: AlertState) -> float:
    return state.since.timestamp()


def _shown(what: str, alert: RaisedAlert, now: float, *, run: RunId | None = None, user: str | None = None) -> AlertState:
    return AlertState(
        type=str(what),
        scope="run" if run is not None else "user" if user is not None else "daemon",
        value=alert.measure.value,
        threshold=alert.measure.threshold,
        message=alert.message,
        since=wall_clock() - timedelta(seconds=max(0.0, now - alert.at)),
        window_s=alert.measure.window,
        run_id=run,
        user=user,
    )
