"""Alerts that are about no single run, as they are saved in the spool. Those about a run are in its snapshot."""

from datetime import datetime

import msgspec
from msgspec import Struct, structs

from ..core.alert import RaisedAlert
from ..core.shared_alerts import SavedAlerts
from .earlier import this_boot
from .retrying import RetryingStore

KEY = "alerts"


class _Saved(Struct, frozen=True, array_like=True):
    boot: bytes
    time: datetime
    at: float
    """The same moment on the core's clock, which begins again at each boot."""
    alerts: SavedAlerts


class AlertSpool:
    def __init__(self, store: RetryingStore) -> None:
        self._store = store

    def save(self, alerts: SavedAlerts, time: datetime, at: float) -> None:
        self._store.write_soon({KEY: msgspec.msgpack.encode(_Saved(this_boot(), time, at, alerts))})

    def earlier(self, time: datetime, at: float) -> SavedAlerts:
        """Return what was saved, with times on the core's clock as it is now. What cannot be read is raised again."""
        saved = self._store.decoded(KEY, _Saved)
        if saved is None:
            return SavedAlerts()
        if saved.boot == this_boot():
            return saved.alerts
        return _later(saved.alerts, at - saved.at - max(0.0, (time - saved.time).total_seconds()))


def _later(alerts: SavedAlerts, shift: float) -> SavedAlerts:
    windows = {key: tuple((at + shift, amount) for at, amount in parts) for key, parts in alerts.windows.items()}
    return SavedAlerts(windows, {key: _alert_later(alert, shift) for key, alert in alerts.raised.items()})


def _alert_later(alert: RaisedAlert, shift: float) -> RaisedAlert:
    over = alert.over_since + shift if alert.over_since is not None else None
    return structs.replace(alert, at=alert.at + shift, over_since=over)
