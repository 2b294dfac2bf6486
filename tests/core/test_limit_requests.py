"""Limits of live runs that are changed, as transcripts."""

from __future__ import annotations

import pytest

from sfad.core import commands as c
from sfad.core import events as e
from sfad.core.context import MAX_EVENTS, WINDOW
from sfad.core.state.run import Run
from sfad.protocol.types import ErrorCode, Status
from tests.core.policies import policy

from .transcript import ANN, Transcript, inside


def code(t: Transcript) -> ErrorCode:
    """Return the message of the last answer."""
    answer = t.answers[max(t.answers)]
    assert isinstance(answer, c.ErrorAnswer)
    return answer.code


def test_a_limit_goes_up_and_down_and_says_who_changed_it() -> None:
    t = Transcript()
    a = t.start("a", limits="turns=10:pause")
    t >> t.limit(a, "turns=50") << "rebound a1" << "reply 2 Changed a1 running"
    t >> t.limit(a, "turns=5:warn tokens=1000") << "rebound a1" << "reply 3 Changed a1 running"
    assert t.said == [
        "turns 10 → 50, by user ann",
        "turns 50 → 5, by user ann",
        "tokens 1000, by user ann",
    ]
    assert t.held(a, "turns").limit.source == "--limit by user ann"
    assert t.held(a, "turns").action == "warn"
    assert t.held(a, "tokens").action == "terminate"


def test_a_lowered_limit_that_is_exceeded_breaches_at_once() -> None:
    t = Transcript()
    a = t.start("a", limits="turns=10")
    (t >> t.used(a, turns=7)).skip()
    t >> t.limit(a, "turns=7") << "rebound a1" << "reply 2 Changed a1 running"
    (
        t
        >> t.limit(a, "turns=6")
        << "rebound a1"
        << "terminate a1 SIGTERM"
        << "arm a1 grace +5"
        << "reply 3 Changed a1 stopping"
    )
    assert t.said[-1] == "over a1 turns 7/6"
    assert "being stopped" in t.failed(t.limit(a, "turns=9"))
    assert code(t) is ErrorCode.WRONG_STATE


def test_what_descendants_have_used_counts() -> None:
    t = Transcript()
    a, b = t.chain("a", "b")
    (t >> t.used(b, input_tokens=900, output_tokens=0)).skip()
    (
        t
        >> t.limit(a, "tokens=800:pause")
        << "rebound a1"
        << "freeze a1"
        << "arm a1 pause_max +86400"
        << "reply 3 Changed a1 paused"
    )


def test_time_moves_the_deadline() -> None:
    t = Transcript()
    a = t.start("a", limits="time=100")
    t.later(30)
    (
        t
        >> t.limit(a, "time=200")
        << "rebound a1"
        << "arm a1 deadline +130"
        << "reply 2 Changed a1 running"
    )
    assert t.run(a).deadline == 200
    (
        t
        >> t.limit(a, "time=20:warn")
        << "rebound a1"
        << "arm a1 deadline +3570"
        << "reply 3 Changed a1 running"
    )
    assert t.said[-1] == "over a1 time 30/20"
    (
        t
        >> t.limit(a, "time=25:terminate")
        << "rebound a1"
        << "terminate a1 SIGTERM"
        << "arm a1 grace +5"
    )
    t << "reply 4 Changed a1 stopping"


def test_time_reaches_as_far_as_the_config_says_now() -> None:
    t = Transcript()
    a = t.start("a", limits="time=100")
    assert "outside its range" in t.failed(t.limit(a, "time=7200"))
    assert code(t) is ErrorCode.BAD_REQUEST
    (t >> e.Reconfigured(t.at, policy(max_time=10_000))).skip()
    (t >> t.limit(a, "time=7200")).skip()
    run = t.run(a)
    assert run.deadline == 7200
    assert Run(run.birth, run, None).max_time == 10_000


def test_a_paused_run_and_one_that_waits() -> None:
    t = Transcript(trees_per_user=1)
    a = t.start("a", limits="time=100")
    t.later(30)
    (t >> t.pause(a)).skip()
    t >> t.limit(a, "time=60") << "rebound a1" << "reply 3 Changed a1 paused"
    assert t.run(a).paused
    (t >> t.spawn("b")).skip()
    (t >> t.committed("a2")).skip()
    t >> t.limit("a2", "time=60 turns=3") << "rebound a2" << "reply 5 Changed a2 queued"
    (
        t
        >> t.limit(a, "time=29")
        << "rebound a1"
        << "terminate a1 SIGTERM"
        << "arm a1 grace +5"
        << "reply 6 Changed a1 stopping"
    )
    assert t.run("a2").status is Status.QUEUED


@pytest.mark.parametrize("action", ["pause", "request_increase"])
def test_a_held_run_with_more_room_continues(action: str) -> None:
    t = Transcript()
    a = t.start("a", limits=f"turns=10:{action} tokens=100:pause")
    (t >> t.used(a, turns=11, input_tokens=101)).skip()
    (t >> t.limit(a, "turns=10")).skip()
    assert t.run(a).held_by is t.held(a, "turns"), "the limit was not raised"
    (t >> t.limit(a, "turns=20")).skip()
    assert t.run(a).held_by is t.held(a, "tokens"), "the other limit holds it"
    assert t.run(a).status is Status.PAUSED
    (t >> t.limit(a, "tokens=200")).skip()
    assert t.run(a).status is Status.RUNNING
    assert t.run(a).held_by is None


def test_a_pause_by_hand_stays() -> None:
    t = Transcript()
    a = t.start("a", limits="turns=10")
    (t >> t.pause(a)).skip()
    (t >> t.limit(a, "turns=20")).skip()
    assert t.run(a).status is Status.PAUSED


def test_never_more_than_an_ancestor_has() -> None:
    t = Transcript()
    a, b = t.chain("a", "b", limits="turns=20 cost=2")
    words = t.failed(t.limit(b, "cost=3"))
    assert words == (
        "cost = 3 USD is more than its ancestor a1 ('a') has: 2 USD; give that one more room first"
    )
    assert "ancestor" in t.failed(t.limit(b, "turns=21"))
    (t >> t.limit(a, "turns=30")).skip()
    (t >> t.limit(b, "turns=21")).skip()


def test_a_run_may_only_lower_and_only_below_itself() -> None:
    t = Transcript()
    a, b = t.chain("a", "b", limits="turns=20:pause")
    other = t.start("other", ANN)
    for change in ("turns=21", "turns=20:warn", "time=100000"):
        words = t.failed(t.limit(b, change, inside(a)))
        assert words.startswith("run a1 may only lower limits")
        assert code(t) is ErrorCode.NOT_PERMITTED
    for foreign, peer in ((other, inside(a)), (a, inside(b))):
        assert "not in the subtree" in t.failed(t.limit(foreign, "turns=1", peer))
    (t >> t.limit(b, "turns=5:terminate tokens=10", inside(a))).skip()
    assert t.held(b, "turns").limit.source == "--limit by run a1"
    assert "turns 20 → 5, by run a1" in t.said


def test_a_bad_limit_changes_nothing() -> None:
    t = Transcript()
    a = t.start("a", limits="turns=20")
    assert "outside its range" in t.failed(t.limit(a, "turns=30 cost=0"))
    assert t.held(a, "turns").limit.threshold == 20
    assert "has ended" in t.failed(t.limit("zz", "turns=3"))


def test_the_same_value_is_no_event_and_keeps_who_set_it() -> None:
    t = Transcript()
    a = t.start("a", limits="turns=10:pause")
    source = t.held(a, "turns").limit.source
    for same in ("turns=10", "turns=10:pause"):
        (t >> t.limit(a, same)).skip()
    assert t.said == []
    assert t.held(a, "turns").limit.source == source


def test_what_a_run_does_in_a_loop_becomes_ten_events_a_minute_and_what_the_operator_does_all() -> (
    None
):
    t = Transcript()
    a = t.start("a", limits="turns=100")
    for turns in range(90, 70, -1):
        (t >> t.limit(a, f"turns={turns}", inside(a))).skip()
    assert len(t.said) == MAX_EVENTS
    assert t.held(a, "turns").limit.threshold == 71
    t.later(WINDOW)
    (t >> t.limit(a, "turns=70", inside(a))).skip()
    assert t.said[-1] == "turns 71 → 70, by run a1"
    t.said.clear()
    for turns in range(60, 40, -1):
        (t >> t.limit(a, f"turns={turns}")).skip()
    assert len(t.said) == 20
