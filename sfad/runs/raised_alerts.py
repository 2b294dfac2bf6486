"""Alerts that are raised, as they are shown."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Literal

from ..core.alert import RaisedAlert
from ..core.run import Run
from ..core.shared_alerts import Key, subject_of
from ..host.clock import wall_clock
from ..protocol.types import AlertState, RunId

MOST = 500
"""Alerts that one answer has, the oldest: each is about 300 bytes."""


def alerts_of(run: Run, now: float) -> list[AlertState]:
    return [_shown(what, alert, now, "run", run=run.id) for what, alert in run.alerts.items()]


def all_alerts(runs: Iterable[Run], shared: Mapping[Key, RaisedAlert], now: float) -> list[AlertState]:
    """Return the alerts about these runs, and `shared` ones, the oldest first. `now`: on the core's clock."""
    return sorted([*_shared(shared, now), *(state for run in runs for state in alerts_of(run, now))], key=_since)[:MOST]


def _shared(shared: Mapping[Key, RaisedAlert], now: float) -> Iterator[AlertState]:
    for key, alert in shared.items():
        scope, name = subject_of(key)
        yield _shown(key[0], alert, now, scope, user=name if scope == "user" else None, team=name if scope == "team" else None)


def _since(state: AlertState) -> float:
    return state.since.timestamp()


def _shown(
    what: str, alert: RaisedAlert, now: float, scope: Literal["run", "user", "team", "daemon"], *,
    run: RunId | None = None, user: str | None = None, team: str | None = None,
) -> AlertState:  # fmt: skip
    return AlertState(
        type=str(what),
        scope=scope,
        value=alert.measure.value,
        threshold=alert.measure.threshold,
        message=alert.message,
        since=wall_clock() - timedelta(seconds=max(0.0, now - alert.at)),
        window_s=alert.measure.window,
        run_id=run,
        user=user,
        team=team,
    )
