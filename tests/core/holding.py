"""What must be true of the holds of each run, after each event."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from sfad.core.machine import Machine
from sfad.core.state.holds import PHASES, holds_of
from sfad.core.state.run import Run
from sfad.protocol.holds import HOLDS
from sfad.protocol.types import Hold, Status

CLOCKS_STAND = {Status.QUEUED, Status.PAUSED, Status.RETRYING}


def moment(at: float) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=at)


def status_of(run: Run, holds: Iterable[Hold]) -> Status:
    """Return the status that follows from what holds a run. The machine keeps each run's status,
    because its transitions have effects."""
    blocked = {hold.blocks for hold in holds}
    if run.status in PHASES:
        return run.status
    if "start" in blocked:
        return Status.RETRYING if run.attempt else Status.QUEUED
    return Status.PAUSED if "processes" in blocked else Status.RUNNING


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
