"""What decides about model calls before they are made: a feature's half in the core; pure."""

from collections.abc import Collection, Iterable

from ..protocol.types import CallInfo, RunId
from . import events as e
from .state.holds import CallsWait
from .state.run import Run


class Calls:
    """Nothing asks for calls: that of a feature takes its place when its part is loaded."""

    waiting: Collection[object] = ()
    """Calls that are not answered yet. While there are any, `look` is called after each event."""
    counted: Collection[object] = ()
    """Runs of which something is kept. While there are any, `forget` is called."""

    def happened(self, ev: e.OfCalls) -> None:
        """Decide about a call, or take what is told of calls."""

    def look(self, at: float) -> None:
        """Decide again about the calls that wait, because there may be more room now."""

    def forget(self, ended: Iterable[Run]) -> None:
        """Runs have ended."""

    def waiting_of(self, _run: RunId) -> list[CallInfo]:
        """Return the calls of a run that wait, the oldest first."""
        return []

    def wait_of(self, _run: RunId) -> CallsWait | None:
        """Return why calls of a run wait, if it is not the run itself that is held."""
        return None
