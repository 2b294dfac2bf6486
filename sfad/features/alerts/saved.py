"""Alerts as they are saved in the spool."""

from datetime import datetime

import msgspec
from msgspec import Struct, structs

from ...durable.snapshots import Changes, RetryingStore
from ...durable.spool import this_boot
from .feature import NAME
from .measures import OfRun, RaisedAlert, SavedAlerts


class _Saved(Struct, frozen=True, array_like=True):
    boot: bytes
    time: datetime
    at: float
    """The same moment on the core's clock, which begins again at each boot."""
    alerts: SavedAlerts


def changes(alerts: SavedAlerts, time: datetime, at: float) -> Changes:
    """Return what to save of them."""
    return {NAME: msgspec.msgpack.encode(_Saved(this_boot(), time, at, alerts))}


def earlier(store: RetryingStore, time: datetime, at: float) -> SavedAlerts | None:
    """Return what was saved, with times on the core's clock as it is now. What cannot be read is
    raised again."""
    saved = store.decoded(NAME, _Saved)
    if saved is None or saved.boot == this_boot():
        return saved.alerts if saved is not None else None
    return _later(saved.alerts, at - saved.at - max(0.0, (time - saved.time).total_seconds()))


def _later(alerts: SavedAlerts, shift: float) -> SavedAlerts:
    return SavedAlerts(
        windows={
            key: tuple((at + shift, amount) for at, amount in parts)
            for key, parts in alerts.windows.items()
        },
        raised=_all_later(alerts.raised, shift),
        runs={
            run: OfRun(_all_later(known.raised, shift), known.counted)
            for run, known in alerts.runs.items()
        },
    )


def _all_later(alerts: dict[str, RaisedAlert], shift: float) -> dict[str, RaisedAlert]:
    return {key: _alert_later(alert, shift) for key, alert in alerts.items()}


def _alert_later(alert: RaisedAlert, shift: float) -> RaisedAlert:
    over = alert.over_since + shift if alert.over_since is not None else None
    return structs.replace(alert, at=alert.at + shift, over_since=over)
