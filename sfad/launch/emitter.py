"""Events to the loop."""

from collections.abc import Callable

from ..core.events import Event
from .launcher import Emit


class Emitter:
    """Sends events with the current time. `failed` is told if the receiver raises."""

    def __init__(self, emit: Emit, clock: Callable[[], float], failed: Callable[[Exception], object]) -> None:
        self._emit = emit
        self._clock = clock
        self._failed = failed

    def emit(self, kind: Callable[..., Event], *fields: object) -> None:
        """Send an event of that kind, with the current time before its fields."""
        try:
            self._emit(kind(self._clock(), *fields))
        except Exception as error:  # noqa: BLE001 - the receiver has the event, whatever it failed with: do not send it twice
            self._failed(error)
