"""What a daemon finds of an earlier one: saved runs, what there is of them now, and stop requests that wait.

A run is saved as its `Birth`, once, and its `State`, after each change. `State` is the run's own part, not a copy: it is encoded
before the next event is handled. Times are those of the core's clock, which starts again after a reboot (`rebased`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from msgspec.structs import replace as replaced

from ..protocol.types import RunId, Survivor
from .alert import RaisedAlert
from .run import Birth, Clock, Run, State, Token


def rebased(birth: Birth, state: State, at: float) -> tuple[Birth, State]:
    """Return both for a clock that has started again since, at `at`: what was to happen later happens now. How long the run had
    been running when the machine went down is not known."""
    ladder = state.ladder
    if ladder is not None:
        ladder = replaced(ladder, began_at=at, grace_ends_at=at, killed_at=None if ladder.killed_at is None else at)
    return replaced(birth, created_at=at), replace(
        state,
        clock=Clock(counted=state.clock.counted),
        ladder=ladder,
        retry_at=at if state.retry_at is not None else None,
        started_at=at if state.started_at is not None else None,
        paused=replaced(state.paused, until=None) if state.paused is not None else None,
        breach=replaced(state.breach, until=None) if state.breach is not None else None,
        alerts={what: _rebased_alert(alert, at) for what, alert in state.alerts.items()},
    )


def _rebased_alert(alert: RaisedAlert, at: float) -> RaisedAlert:
    return replaced(alert, at=at, over_since=at if alert.over_since is not None else None)


@dataclass(frozen=True, slots=True)
class Remembered:
    """A live run of an earlier daemon, and what there is of it now."""

    run: Run
    """As it was last saved, but for its main process (`Run.adopt`)."""
    empty: bool = True
    """No process is alive in its containment, child runs included."""
    starting: bool = False
    """Its launch is in flight, and will be reported."""
    startable: bool = False
    """What it takes to start it is there: command, environment, descriptors."""
    begun: bool = True
    """The main process of its latest attempt was saved, or may have been, and that is lost. Otherwise that has executed nothing."""


@dataclass(slots=True)
class Ticket:
    """A stop request that waits for its runs."""

    token: Token
    began_at: float
    pending: set[RunId]
    stopped: list[RunId] = field(default_factory=list)
    survivors: list[Survivor] = field(default_factory=list)
    ended: tuple[RunId, ...] = ()
    """Those of `stopped` that had ended before the request."""

    def stop_waiting_for(self, run: RunId, survivors: Iterable[Survivor] = ()) -> None:
        """It has ended, or has survivors; a process may have been told before, of its child run."""
        self.pending.discard(run)
        found = {survivor.pid: survivor for survivor in survivors}
        self.survivors = list({**{each.pid: each for each in self.survivors}, **found}.values())
        if not found:
            self.stopped.append(run)
