"""One alert: raised when its value crosses the threshold, cleared when the value has stayed below it for `HOLD`.

Without the hold, a run whose use goes up and down around a threshold would raise an alert, and wake an operator, each time.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

HOLD = 60.0
"""Seconds that a value must stay below the threshold until the alert is cleared."""

Change = Literal["raised", "cleared"]


class Measure(Struct, frozen=True):
    """What an alert watches, as it is now."""

    value: float
    threshold: float
    above: bool
    window: float | None = None


class RaisedAlert(Struct):
    measure: Measure
    """When it was raised."""
    at: float
    message: str = ""
    over_since: float | None = None
    """Since when the value has been below the threshold."""

    @property
    def due(self) -> float | None:
        """When it is cleared if nothing changes."""
        return self.over_since + HOLD if self.over_since is not None else None


def changed(raised: RaisedAlert | None, now: Measure | None, at: float) -> tuple[RaisedAlert | None, Change | None]:
    """Return the alert after a look at its value, `None` where it is not raised, and what has changed. `now`: `None` if nothing is
    left to watch, as with a limit that was taken away."""
    above = now is not None and now.above
    if raised is None:
        return (RaisedAlert(now, at), "raised") if now is not None and above else (None, None)
    if above:
        raised.over_since = None
        return raised, None
    if raised.over_since is None:
        raised.over_since = at
    if at >= raised.over_since + HOLD:
        return None, "cleared"
    return raised, None
