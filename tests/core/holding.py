"""What must be true of the holds of each run, after each event."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sfad.core.machine import Machine
from sfad.core.state.holds import PHASES, holds_of, status_of
from sfad.protocol.holds import HOLDS
from sfad.protocol.types import Status

CLOCKS_STAND = {Status.QUEUED, Status.PAUSED, Status.RETRYING}


def moment(at: float) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=at)


def check_holds(machine: Machine, now: float) -> None:
    """The status of each run follows from its holds, and each hold is of a known kind."""
    for run in machine.tree:
        derived = holds_of(run, machine.slots, None, now, moment)
        assert status_of(run, derived) is run.status, (run.id, run.status, derived)
        told = machine.holds(run, now, moment)
        assert tuple(hold for hold in told if hold.kind != "call") == derived
        for hold in told:
            assert hold.blocks in HOLDS[hold.kind].blocks
            assert hold.words
            assert hold.clock_stops is (hold.kind != "call")
        assert run.status not in CLOCKS_STAND or run.clock.since is None
        waits = any(hold.blocks != "call" for hold in derived)
        assert run.status in PHASES or waits is (run.status is not Status.RUNNING)
