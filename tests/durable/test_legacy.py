"""Runs that release 0.1.0 has saved, read by this one: in each phase they mean the same."""

from __future__ import annotations

import msgspec
import pytest

from sfad.core.account import OpenReservation
from sfad.core.ladder import Ladder, Rung
from sfad.core.money import NANOS
from sfad.core.run import Attempt, Ending, LimitHold, Paused, ProcessExit, Run
from sfad.durable.accounts import to_saved
from sfad.durable.snapshots import Origin, progress_from
from sfad.protocol.types import ENDED, LimitKind, Status

from .records import RECORDS


def loaded(name: str) -> Run:
    """The run of a record; its parent is not looked for."""
    origin, progress = (bytes.fromhex(part) for part in RECORDS[name])
    return Run(msgspec.msgpack.decode(origin, type=Origin).birth, progress_from(progress).state, None)


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_saved_again_in_the_new_shape(name: str) -> None:
    progress = progress_from(bytes.fromhex(RECORDS[name][1]))
    again = msgspec.msgpack.encode(progress, enc_hook=to_saved)
    assert msgspec.msgpack.encode(progress_from(again), enc_hook=to_saved) == again
    state = progress.state
    assert state.status not in ENDED
    assert (state.latest == Attempt(0)) == (state.status in {Status.ACCEPTED, Status.QUEUED})
    assert (state.paused is not None) == (state.status is Status.PAUSED)
    assert (state.ending is not None) == (state.ladder is not None) or state.clearing


def test_before_the_start() -> None:
    accepted, queued = loaded("accepted"), loaded("queued")
    assert (accepted.status, accepted.committed, accepted.admit_token) == (Status.ACCEPTED, False, 1)
    assert (queued.status, queued.committed, queued.asked.priority) == (Status.QUEUED, True, 3)
    assert accepted.asked.attempts == 2
    starting, parent = loaded("starting_below"), loaded("parent")
    assert (starting.latest, starting.birth.parent) == (Attempt(1), "a1")
    assert (parent.admitted, parent.pid) == (1, 77)


def test_running() -> None:
    run = loaded("running")
    assert (run.latest.number, run.latest.pid, run.latest.exit) == (1, 77, None)
    assert (run.latest.finished, run.latest.failed) == (True, "no")
    assert run.latest.trouble is not None
    assert run.latest.trouble.sentence == "the API answered 529 three times: overloaded"
    assert (run.clock.since, run.started_at, run.tied_to) == (100.0, 100.0, 3)
    assert (run.limits[LimitKind.TURNS].near, run.limits[LimitKind.MEMORY].over) == (True, True)
    assert run.account.sources["stream"].cost == NANOS // 4
    assert "spawn" not in run.birth.permissions.verbs
    assert run.max_time == 3600.0


def test_paused() -> None:
    assert loaded("paused").paused == Paused(86505.0)
    assert loaded("suspended").paused == Paused(86505.0, suspended=True)
    paused = loaded("out_of_money").paused
    assert paused is not None
    assert paused.by_hand
    assert paused.no_money is not None
    assert paused.no_money.kind == "budget"
    assert loaded("paused").clock.counted == 5.0


def test_stopping() -> None:
    asked = Ladder(15, 100.0, 130.0, 10.0, Rung.INTERRUPTED, interrupted=frozenset({"a1"}), polite_ends_at=101.0)
    signalled = Ladder(2, 100.0, 130.0, 10.0)
    killed = Ladder(2, 100.0, 130.0, 10.0, Rung.KILLED, killed_at=130.0)
    overdue = Ladder(2, 100.0, 130.0, 10.0, Rung.KILLED, killed_at=130.0, overdue=True)
    for rung, ladder in (("asked", asked), ("signalled", signalled), ("killed", killed), ("overdue", overdue)):
        run = loaded(f"stopping_{rung}")
        assert run.ladder == ladder
        assert isinstance(run.ending, Ending)
        assert run.ending.outcome is Status.CANCELLED
        assert run.ending.reason is not None
        assert run.ending.reason.kind == "stop"


def test_between_two_attempts() -> None:
    clearing, waiting = loaded("retrying_clearing"), loaded("retrying_waiting")
    assert clearing.clearing
    assert clearing.retry_at is None
    assert not waiting.clearing
    assert waiting.retry_at is not None
    assert 103 < waiting.retry_at < 104.1
    assert clearing.latest.exit == waiting.latest.exit == ProcessExit(3, None)


@pytest.mark.parametrize(("name", "until"), [("held_increase", 702.0), ("held_pause", 86502.0)])
def test_held_by_a_limit(name: str, until: float) -> None:
    run = loaded(name)
    assert isinstance(run.breach, LimitHold)
    assert (run.breach.kind, run.breach.until, run.breach.reason.used) == (LimitKind.TURNS, until, 12)
    assert run.held_by is run.limits[LimitKind.TURNS]
    assert run.paused is not None


def test_reservations() -> None:
    account = loaded("reserving").account
    periods = (("user", "ann", "today"),)
    planned = OpenReservation("m", 3, 0, NANOS // 2, "planning", periods)
    assert account.reservations == {"a1-1": planned, "a1-2": OpenReservation("m", 4, 0, NANOS // 4, None, periods)}
    assert account.reserved == {"tokens": 7, "cost": 3 * NANOS // 4, "planning_cost": NANOS // 2}
