"""How alerts that are raised are shown."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Literal

from ...host.clock import wall_clock
from ...protocol.types import AlertState, RunId
from .measures import Key, RaisedAlert, subject_of

MAX_ALERTS = 500
"""Alerts that one answer has, the oldest: each is about 300 bytes."""


def of_run(run: RunId, raised: Mapping[str, RaisedAlert], now: float) -> tuple[AlertState, ...]:
    """`now`: on the core's clock."""
    return tuple(_shown(what, alert, now, "run", run=run) for what, alert in raised.items())


def together(
    of_runs: Iterable[AlertState], shared: Mapping[Key, RaisedAlert], now: float
) -> list[AlertState]:
    """Return the alerts about runs and the `shared` ones, the oldest first."""
    return sorted([*_shared(shared, now), *of_runs], key=_since)[:MAX_ALERTS]


def _shared(shared: Mapping[Key, RaisedAlert], now: float) -> Iterator[AlertState]:
    for key, alert in shared.items():
        scope, name = subject_of(key)
        yield _shown(
            key[0],
            alert,
            now,
            scope,
            user=name if scope == "user" else None,
            team=name if scope == "team" else None,
        )


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
