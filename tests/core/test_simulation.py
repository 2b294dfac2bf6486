"""Ten thousand runs through one machine: the sums must come out, and nothing may be left behind."""

from __future__ import annotations

import pytest

from sfad.core.state.request import Stage

from .load import Load, calls_of

RUNS = 10_000


STAGES = (Stage("setup", "a", before=True), Stage("check", "b", seconds=1.0), Stage("check", "c"))


@pytest.mark.rest("at scale")
@pytest.mark.parametrize("stages", [(), STAGES], ids=["plain", "checked"])
def test_ten_thousand_runs(stages: tuple[Stage, ...]) -> None:
    load = Load(stages=stages)
    load.until(RUNS)
    machine = load.machine
    # every request was answered: admitted or refused, and nothing else
    assert load.replies["SpawnDone"] + load.replies["SpawnRefused"] == load.asked == RUNS
    assert machine.admitted == load.replies["SpawnDone"] == sum(load.ended.values())
    assert machine.refused == load.replies["SpawnRefused"]
    # it was a day worth simulating
    ends = {"completed", "failed", "cancelled", "timeout"}
    # what follows at once takes turns from what takes time
    assert set(load.ended) == (ends - {"timeout"} if stages else ends)
    assert min(load.ended.values()) > RUNS / 1000
    assert load.replies["SpawnRefused"] > RUNS / 20
    assert load.launches > load.releases > RUNS / 3, "some were retried"
    assert load.kills > RUNS / 1000
    assert load.replies["StopDone"] > RUNS / 1000
    # what was launched was released, and nothing is kept of anything
    assert not len(machine.tree)
    assert not load.mains
    assert not load.timers
    assert machine.slots.count == machine.slots.queued == 0
    assert not machine.tickets()
    assert all(caller.startswith("user ") for caller in machine.refused_callers)


CALLS = 56
"""Calls of the core's functions for an event, at most. There were 91 when each value was computed
again for each event."""


def test_calls_for_an_event() -> None:
    """The core's share of a run's CPU."""
    load = Load()
    calls = calls_of(lambda: load.until(1000))
    assert calls / load.events < CALLS
