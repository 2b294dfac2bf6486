"""What the launcher reports, on its way to the loop."""

from __future__ import annotations

from collections.abc import Callable

from ..core.events import Event


class Reports:
    """Keeps the launcher's reports until the core knows the runs that they are about, then passes each on at once."""

    def __init__(self) -> None:
        self._waiting: list[Event] = []
        self._deliver: Callable[[Event], None] = self._waiting.append

    def put(self, event: Event) -> None:
        """Report an event."""
        self._deliver(event)

    def pass_on(self, deliver: Callable[[Event], None]) -> None:
        """Pass on what was reported until now, and whatever is reported from now on."""
        self._deliver = deliver
        for event in self._waiting:
            deliver(event)
        self._waiting.clear()
