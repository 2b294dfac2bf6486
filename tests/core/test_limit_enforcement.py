"""The answer to a breach, on a run and on its ancestors, as transcripts."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from sfad.core import commands as c
from sfad.core import events as e
from sfad.core.life.attempts import backoff
from sfad.core.limits.violations import MAX_TOOLS_SAID
from sfad.core.state.access import OUTSIDE, VERBS, Peer
from sfad.protocol.types import Action, ErrorCode, LimitKind, Reason, Status

from .transcript import ANN, BOB, Transcript, inside, seconds

DAY = 86400


def ended(t: Transcript, run: str) -> Reason:
    """Why it ended."""
    reason = t.reasons[run]
    assert reason is not None
    return reason


# ---- turns, under each action


def test_turns_that_terminate() -> None:
    t = Transcript(hear=frozenset({"publish", "ended"}))
    a = t.start("a", limits="turns=10")
    t.later(3)
    t >> t.used(a, turns=7)
    assert t.noted == {"a1"}
    t >> t.used(a, turns=8) << "publish limit_nearing a1"
    assert t.noted == {"a1"}
    t >> t.used(a, turns=10)
    assert t.noted == {"a1"}
    t >> t.used(a, turns=10)  # nothing new
    (
        t
        >> t.used(a, turns=11, input_tokens=70, output_tokens=7, cost=0.25)
        << "publish limit_exceeded a1"
    )
    assert t.noted == {"a1"}
    t << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t >> t.used(a, turns=12)
    assert t.noted == {"a1"}
    t.later(1)
    t >> t.exited(a, 0) << "publish run_failed a1" << "release a1" << "ended a1 failed"
    t.quiet()
    assert t.said == ["near a1 turns 8/10", "over a1 turns 11/10"]
    assert ended(t, a) == Reason(
        kind="limit", message="used 11 turns; its turns limit is 10, set by --limit",
        limit_kind="turns", threshold=10, used=11, exceeded_by=1, turns=11, tokens=77,
        cost_usd=0.25, elapsed_s=3.0,
    )  # fmt: skip


def test_turns_that_warn() -> None:
    t = Transcript(hear=frozenset({"publish"}))
    a = t.start("a", limits="turns=10:warn")
    t >> t.used(a, turns=11) << "publish limit_nearing a1" << "publish limit_exceeded a1"
    for turns in (12, 5, 100_000):
        t >> t.used(a, turns=turns)
    t.quiet()
    assert [
        (event.used, event.exceeded_by) for event in t.published if event.limit_kind is not None
    ] == [(11, None), (11, 1)]
    assert t.run(a).status is Status.RUNNING


def test_turns_that_pause_and_continue_with_more_room() -> None:
    t = Transcript(hear=frozenset({"publish", "disarm"}))
    a = t.start("a", limits="turns=10:pause")
    t.later(10)
    t >> t.used(a, turns=11) << "publish limit_nearing a1" << "publish limit_exceeded a1"
    assert t.noted == {"a1"}
    (
        t
        << "disarm a1 deadline"
        << "freeze a1"
        << f"arm a1 pause_max +{DAY}"
        << "publish run_paused a1"
    )
    t >> t.used(a, turns=12)  # what was under way when it froze
    assert t.noted == {"a1"}
    t >> e.Frozen(t.at, a)
    t.later(1000)
    assert (
        t.failed(t.resume(a, room="turns=11"))
        == "run a1 has used 12 turns already: the new limit must be above that"
    )
    (
        t
        >> t.resume(a, room="turns=20")
        << "rebound a1"
        << "disarm a1 pause_max"
        << "thaw a1"
        << "arm a1 deadline +86"
    )
    t << "publish run_resumed a1" << "reply 3 Changed a1 running"
    t >> t.used(a, turns=15)
    assert t.noted == {"a1"}
    t >> t.used(a, turns=16) << "publish limit_nearing a1"
    assert t.noted == {"a1"}
    t >> t.used(a, turns=21) << "publish limit_exceeded a1"
    assert t.noted == {"a1"}
    (
        t
        << "disarm a1 deadline"
        << "freeze a1"
        << f"arm a1 pause_max +{DAY}"
        << "publish run_paused a1"
    )
    t.quiet()
    assert t.said == [
        "near a1 turns 11/10",
        "over a1 turns 11/10",
        "near a1 turns 16/20",
        "over a1 turns 21/20",
    ]


def test_turns_that_pause_and_continue_without_more_room_only_warn_from_then_on() -> None:
    t = Transcript(hear=frozenset({"disarm"}))
    a = t.start("a", limits="turns=10:pause cost=0.5:pause")
    (t >> t.used(a, turns=11)).skip()
    (
        t
        >> t.resume(a)
        << "disarm a1 pause_max"
        << "thaw a1"
        << "arm a1 deadline +96"
        << "reply 2 Changed a1 running"
    )
    assert t.held(a, "turns").action is Action.WARN
    assert t.held(a, "cost").action is Action.PAUSE
    t >> t.used(a, turns=99)
    t.quiet()
    assert t.said == ["near a1 turns 11/10", "over a1 turns 11/10"]


def test_an_increase_that_is_approved() -> None:
    t = Transcript(hear=frozenset({"publish", "disarm"}))
    a = t.start("a", limits="turns=10:request_increase")
    (
        t
        >> t.used(a, turns=11)
        << "publish limit_nearing a1"
        << "publish limit_exceeded a1"
        << "publish increase_requested a1"
    )
    t << "arm a1 approval +600" << "disarm a1 deadline" << "freeze a1" << f"arm a1 pause_max +{DAY}"
    t << "publish run_paused a1"
    t.later(599)
    (
        t
        >> t.approve(a, room="turns=50")
        << "disarm a1 approval"
        << "rebound a1"
        << "publish increase_approved a1"
    )
    (
        t
        << "disarm a1 pause_max"
        << "thaw a1"
        << "arm a1 deadline +96"
        << "publish run_resumed a1"
        << "reply 2 Changed a1 running"
    )
    t.later(1)
    t >> t.fired(a, "approval")
    t.quiet()
    assert (t.held(a, "turns").limit.threshold, t.held(a, "turns").action) == (
        50,
        Action.REQUEST_INCREASE,
    )
    t >> t.used(a, turns=51)
    t.skip()
    assert t.run(a).status is Status.PAUSED


def test_an_increase_that_is_approved_without_a_number_only_warns_from_then_on() -> None:
    t = Transcript(hear=frozenset({"disarm"}))
    a = t.start("a", limits="turns=10:request_increase")
    (t >> t.used(a, turns=11)).skip()
    # the timer must go: nothing would take it away when the run ends
    (
        t
        >> t.approve(a)
        << "disarm a1 approval"
        << "disarm a1 pause_max"
        << "thaw a1"
        << "arm a1 deadline +96"
    )
    t << "reply 2 Changed a1 running"
    t >> t.used(a, turns=99)
    t.quiet()


def test_an_increase_that_is_denied() -> None:
    t = Transcript(hear=frozenset({"publish", "disarm", "ended"}))
    a = t.start("a", limits="turns=10:request_increase")
    (t >> t.used(a, turns=11)).skip()
    (
        t
        >> t.deny(a)
        << "publish increase_denied a1"
        << "disarm a1 pause_max"
        << "disarm a1 approval"
        << "disarm a1 deadline"
    )
    t << "terminate a1 SIGTERM" << "arm a1 grace +5" << "reply 2 Changed a1 stopping"
    (
        t
        >> t.exited(a, 0)
        << "disarm a1 grace"
        << "disarm a1 survey"
        << "publish run_failed a1"
        << "release a1"
    )
    t << "ended a1 failed"
    t.quiet()
    reason = ended(t, a)
    assert (reason.kind, reason.limit_kind, reason.threshold, reason.used, reason.exceeded_by) == (
        "limit",
        "turns",
        10,
        11,
        1,
    )
    assert reason.message.endswith("set by --limit; the increase was denied by user ann")


def test_an_increase_without_a_decision() -> None:
    t = Transcript()
    a = t.start("a", limits="turns=10:request_increase")
    t >> t.used(a, turns=11) << "arm a1 approval +600" << "freeze a1" << f"arm a1 pause_max +{DAY}"
    t.later(600)
    t >> t.fired(a, "approval") << "terminate a1 SIGTERM" << "arm a1 grace +5"
    # too late
    assert t.failed(t.approve(a)) == "run a1 is stopping and does not wait for an approval"
    assert t.failed(t.deny(a)) == "run a1 is stopping and does not wait for an approval"
    (t >> t.exited(a, 0)).skip()
    assert ended(t, a).message.endswith(
        "no increase was approved within 600 s (limits.approval_timeout)"
    )
    assert t.failed(t.approve(a)) == "run a1 has ended"


def test_a_denied_run_whose_containment_never_empties_stays_stopping() -> None:
    t = Transcript()
    a = t.start("a", limits="turns=10:request_increase")
    (t >> t.used(a, turns=11)).skip()
    (t >> t.deny(a)).skip()
    t.later(5)
    t >> t.fired(a, "grace") << "kill a1" << "arm a1 survey +10"
    t >> t.fired(a, "approval")
    t >> t.fired(a, "pause_max")
    assert "does not wait" in t.failed(t.deny(a))
    t.later(10)
    t >> t.fired(a, "survey") << "survey a1" << "arm a1 survey +1"
    (t >> t.surveyed(a, a1=77)).skip()
    assert t.events[-1] == "alert_survivors a1"
    assert t.run(a).status is Status.STOPPING


def test_only_what_waits_for_an_approval_can_be_approved() -> None:
    t = Transcript()
    a = t.start("a", limits="turns=10:pause")
    assert t.failed(t.approve(a)) == "run a1 is running and does not wait for an approval"
    (t >> t.used(a, turns=11)).skip()
    for event in (t.approve(a), t.deny(a)):
        (t >> event).skip()
        answer = t.answers[event.token]
        assert isinstance(answer, c.ErrorAnswer)
        assert answer.message.endswith(
            "does not wait for an approval; it is paused by its turns limit: resume it"
        )


def test_resume_grants_an_increase_too() -> None:
    t = Transcript(hear=frozenset({"disarm"}))
    a = t.start("a", limits="turns=10:request_increase")
    (t >> t.used(a, turns=11)).skip()
    (
        t
        >> t.resume(a, room="turns=12")
        << "disarm a1 approval"
        << "rebound a1"
        << "disarm a1 pause_max"
        << "thaw a1"
    )
    t << "arm a1 deadline +96" << "reply 2 Changed a1 running"
    t.quiet()


def test_of_several_breaches_at_once_the_strongest_action_is_taken() -> None:
    actions = [Action.TERMINATE, Action.REQUEST_INCREASE, Action.PAUSE, Action.WARN]
    for one, other in product(actions, actions):
        t = Transcript()
        run = t.run(t.start("a", limits=f"turns=10:{one} tokens=10:{other}"))
        (t >> t.used(run.id, turns=11, input_tokens=11)).skip()
        strongest = min(one, other, key=actions.index)
        status = {Action.TERMINATE: Status.STOPPING, Action.WARN: Status.RUNNING}.get(
            strongest, Status.PAUSED
        )
        assert run.status is status
        waits = strongest is Action.REQUEST_INCREASE
        assert (run.held_by is not None and run.held_by.action is Action.REQUEST_INCREASE) is waits
        assert len(t.said) == 4


def test_a_second_breach_of_a_held_run() -> None:
    """A use may become known late. One whose action terminates does so; several requests for more
    are one."""
    t = Transcript(hear=frozenset({"disarm"}))
    a = t.start("a", limits="turns=10:pause tokens=10:request_increase cost=1")
    (t >> t.used(a, turns=11)).skip()
    assert "resume it" in t.failed(t.approve(a))
    t >> t.used(a, turns=11, input_tokens=11) << "arm a1 approval +600"
    # the approval is for the limit that was asked about, and for no other that holds the run
    assert "limit of turns: name that as well" in t.failed(t.approve(a, room="tokens=99"))
    (
        t
        >> t.approve(a, room="tokens=99 turns=50")
        << "disarm a1 approval"
        << "rebound a1"
        << "disarm a1 pause_max"
        << "thaw a1"
    )
    t << "arm a1 deadline +96" << "reply 4 Changed a1 running"
    assert (t.held(a, "turns").action, t.held(a, "tokens").action) == (
        Action.PAUSE,
        Action.REQUEST_INCREASE,
    )
    (t >> t.used(a, turns=11, input_tokens=12)).skip()
    t >> t.used(a, turns=11, input_tokens=12, cost=2.0) << "disarm a1 deadline"
    t << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t.quiet()


def test_a_long_pause_terminates() -> None:
    for asked, status in (("turns=10:pause", "failed"), ("", "timeout")):
        t = Transcript(hear=frozenset({"ended"}), pause_max=50.0)
        a = t.start("a", limits=asked)
        if asked:
            t >> t.used(a, turns=11) << "freeze a1" << "arm a1 pause_max +50"
        else:
            t >> t.pause(a) << "freeze a1" << "arm a1 pause_max +50"
            (t >> e.Frozen(t.at, a)).skip()
        t.later(50)
        t >> t.fired(a, "pause_max") << "terminate a1 SIGTERM" << "arm a1 grace +5"
        t >> t.exited(a, 0) << "release a1" << f"ended a1 {status}"
        t.quiet()
        assert ended(t, a).limit_kind == ("turns" if asked else "pause_max")
        assert ended(t, a).message.endswith("it was paused for 50 s (limits.pause_max)")


# ---- time


def test_time_is_near_and_then_over() -> None:
    t = Transcript(hear=frozenset({"publish"}))
    a = t.start("a", timeout=seconds(10))
    t.later(8)
    t >> t.fired(a, "deadline") << "publish limit_nearing a1" << "arm a1 deadline +2"
    t.later(2)
    (
        t
        >> t.fired(a, "deadline")
        << "publish limit_exceeded a1"
        << "terminate a1 SIGTERM"
        << "arm a1 grace +5"
    )
    t.quiet()
    assert t.said == ["near a1 time 8/10", "over a1 time 10/10"]


def test_a_command_that_is_not_executed_in_time() -> None:
    """Its clock has not begun: it is the time that the launch may take."""
    t = Transcript()
    (t >> t.spawn("a", timeout=seconds(10))).skip()
    t >> t.committed("a1") << "launch a1"
    t.later(10)
    t >> t.fired("a1", "deadline") << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t.quiet()
    (t >> t.emptied("a1")).skip()
    assert ended(t, "a1").message.startswith(
        "its command was not executed within 10 s: its working directory"
    )
    assert (ended(t, "a1").kind, ended(t, "a1").limit_kind) == ("limit", "time")


def test_a_timer_that_is_early_or_old_says_nothing() -> None:
    t = Transcript()
    a = t.start("a", timeout=seconds(10))
    t.later(7.5)
    t >> t.fired(a, "deadline") << "arm a1 deadline +0.5"
    (t >> t.pause(a)).skip()
    t.later(99)
    t >> t.fired(a, "deadline")
    t.quiet()
    assert not t.said


def test_time_does_not_count_while_paused() -> None:
    t = Transcript()
    a = t.start("a", timeout=seconds(10))
    for _ in range(3):
        t.later(2)
        (t >> t.pause(a)).skip()
        t.later(1000)
        (t >> t.resume(a)).skip()
    t.later(2)
    t >> t.fired(a, "deadline") << "arm a1 deadline +2"
    t.later(2)
    t >> t.fired(a, "deadline") << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t.quiet()


def test_time_that_pauses_and_goes_on_with_more() -> None:
    t = Transcript(hear=frozenset({"publish"}))
    a = t.start("a", limits="time=10:pause")
    t.later(8)
    (t >> t.fired(a, "deadline")).skip()
    t.later(2)
    (
        t
        >> t.fired(a, "deadline")
        << "publish limit_exceeded a1"
        << "freeze a1"
        << f"arm a1 pause_max +{DAY}"
    )
    t << "publish run_paused a1"
    assert (
        t.failed(t.resume(a, room="time=10"))
        == "run a1 has used 10s already: the new limit must be above that"
    )
    (
        t
        >> t.resume(a, room="time=40")
        << "rebound a1"
        << "thaw a1"
        << "arm a1 deadline +22"
        << "publish run_resumed a1"
    )
    t << "reply 3 Changed a1 running"
    t.later(22)
    t >> t.fired(a, "deadline") << "publish limit_nearing a1" << "arm a1 deadline +8"
    t.quiet()
    assert t.held(a, "time").action is Action.PAUSE


@pytest.mark.parametrize("action", ["warn", "pause", "request_increase"])
def test_max_time_terminates_whatever_the_action(action: str) -> None:
    t = Transcript(hear=frozenset({"ended"}), max_time=100.0)
    a = t.start("a", limits=f"time=10:{action}")
    t.later(8)
    t >> t.fired(a, "deadline") << "arm a1 deadline +2"
    t.later(2)
    (t >> t.fired(a, "deadline")).skip()
    if action != "warn":
        (t >> t.resume(a)).skip()
    assert t.run(a).status is Status.RUNNING
    t.later(89)
    t >> t.fired(a, "deadline") << "arm a1 deadline +1"
    t.later(1)
    t >> t.fired(a, "deadline") << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t >> t.exited(a, 0) << "release a1" << "ended a1 timeout"
    t.quiet()
    assert ended(t, a).message == "ran 100.0 s; its time limit is 100 s, set by limits.max_time"


@pytest.mark.parametrize("action", ["warn", "pause", "request_increase"])
def test_max_time_that_is_the_threshold_itself(action: str) -> None:
    t = Transcript(max_time=100.0)
    a = t.start("a", limits=f"time=100:{action}")
    t.later(100)
    t >> t.fired(a, "deadline")
    t.skip()
    assert t.run(a).status is Status.STOPPING
    (t >> t.exited(a, 0)).skip()
    assert ended(t, a).message.endswith("set by limits.max_time")


def test_without_any_time_limit_max_time_terminates() -> None:
    t = Transcript(max_time=100.0, defaults={})
    t >> t.spawn("a") << "admit a1"
    (t >> t.committed("a1")).skip()
    t >> t.launched("a1") << "arm a1 deadline +100" << "reply 1 SpawnDone a1 running"
    t.later(100)
    t >> t.fired("a1", "deadline") << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t.quiet()


def test_max_time_comes_first_where_a_profile_says_more() -> None:
    t = Transcript(max_time=100.0)
    run = t.run(t.start("a", run_type="developer"))
    assert (run.limits[LimitKind.TIME].limit.threshold, run.deadline) == (600, 100)
    t.later(100)
    t >> t.fired("a1", "deadline") << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t.quiet()
    assert t.said == ["over a1 time 100/100"]


def test_a_child_cannot_outlive_its_parents_deadline() -> None:
    t = Transcript(hear=frozenset({"ended"}))
    a = t.start("a", timeout=seconds(30))
    t.later(10)
    b = t.start("b", inside(a), timeout=seconds(3000))
    assert t.run(b).deadline == 30
    t.later(20)
    t >> t.fired(a, "deadline") << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t >> t.exited(a, 0, empty=False)
    t >> t.exited(b, 0, empty=False)
    t >> t.emptied(a) << "release a2" << "ended a2 cancelled" << "release a1" << "ended a1 timeout"
    t.quiet()
    assert (ended(t, b).kind, ended(t, b).by) == ("ancestor", a)


def test_a_parents_clock_runs_while_only_its_child_is_held() -> None:
    t = Transcript()
    a = t.start("a", timeout=seconds(30))
    b = t.start("b", inside(a), limits="turns=10:pause")
    (t >> t.used(b, turns=11)).skip()
    t.later(24)
    t >> t.fired(a, "deadline") << "arm a1 deadline +6"
    t.later(6)
    t >> t.fired(a, "deadline") << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t.quiet()
    assert t.run(b).clock.elapsed(t.at) == 0


# ---- the tree


def test_what_a_child_uses_counts_against_every_ancestor() -> None:
    t = Transcript()
    a, b, d = t.chain("a", "b", "d")
    sibling = t.start("s", inside(a))
    (t >> t.used(d, turns=3, messages=4, input_tokens=10, output_tokens=5, cost=0.25)).skip()
    (t >> t.report(b, input_tokens=100)).skip()
    (t >> t.used(sibling, input_tokens=1000)).skip()
    accounts = {
        name: t.run(run).account for name, run in (("a", a), ("b", b), ("d", d), ("s", sibling))
    }
    assert [accounts[name].used(LimitKind.TOKENS) for name in "abds"] == [1115, 115, 15, 1000]
    assert [accounts[name].used(LimitKind.COST) for name in "abds"] == [250_000_000] * 3 + [None]
    # turns and messages are a run's own
    assert [accounts[name].used(LimitKind.TURNS) for name in "abds"] == [None, None, 3, None]
    assert [accounts[name].used(LimitKind.MESSAGES) for name in "abds"] == [None, None, 4, None]
    # the use of an ended run still counts
    (t >> t.exited(d)).skip()
    assert accounts["a"].used(LimitKind.TOKENS) == 1115
    # a source may take back what was a placeholder
    (t >> t.used(sibling, input_tokens=900)).skip()
    assert accounts["a"].used(LimitKind.TOKENS) == 1015


def test_the_outermost_breach_is_the_one_that_is_reported() -> None:
    t = Transcript(hear=frozenset({"ended"}))
    a = t.start("a", limits="tokens=100")
    b = t.start("b", inside(a), limits="tokens=50")
    d = t.start("d", inside(b), limits="tokens=20")
    t >> t.used(d, input_tokens=101) << "terminate a1 SIGTERM" << "arm a1 grace +5"
    assert t.said == ["near a1 tokens 101/100", "over a1 tokens 101/100"]
    (
        t
        >> t.emptied(a)
        << "release a3"
        << "ended a3 cancelled"
        << "release a2"
        << "ended a2 cancelled"
    )
    t << "release a1" << "ended a1 failed"
    t.quiet()
    assert (
        ended(t, a).message
        == "used 101 tokens with its descendants; its tokens limit is 100, set by --limit"
    )


def test_a_breach_of_an_inner_limit_ends_only_the_inner_run() -> None:
    t = Transcript()
    a = t.start("a", limits="tokens=100")
    b = t.start("b", inside(a), limits="tokens=50")
    d = t.start("d", inside(b), limits="tokens=20")
    t >> t.used(d, input_tokens=60) << "terminate a2 SIGTERM" << "arm a2 grace +5"
    assert t.said == ["near a2 tokens 60/50", "over a2 tokens 60/50"]
    # a run that is being stopped may still use something: the root still counts it
    t >> t.used(d, input_tokens=85)
    t >> t.used(d, input_tokens=110) << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t.quiet()


def test_a_breach_that_pauses_an_ancestor_freezes_all_below_it() -> None:
    t = Transcript()
    a = t.start("a", limits="tokens=100:request_increase", timeout=seconds(100))
    b = t.start("b", inside(a), timeout=seconds(100))
    t.later(5)
    (
        t
        >> t.used(b, input_tokens=101)
        << "arm a1 approval +600"
        << "freeze a1"
        << f"arm a1 pause_max +{DAY}"
    )
    assert [t.run(run).status for run in (a, b)] == [Status.PAUSED, Status.PAUSED]
    t.later(100)
    (
        t
        >> t.approve(a, room="tokens=200")
        << "rebound a1"
        << "thaw a1"
        << "arm a1 deadline +75"
        << "arm a2 deadline +75"
    )
    t << "reply 3 Changed a1 running"
    t.quiet()


def test_room_is_never_more_than_an_ancestor_has() -> None:
    t = Transcript()
    a = t.start("a", limits="tokens=100 turns=20")
    b = t.start("b", inside(a), limits="tokens=50:pause turns=10:pause")
    (t >> t.used(b, input_tokens=51)).skip()
    words = t.failed(t.resume(b, room="tokens=101"))
    assert (
        words
        == "tokens = 101 is more than its ancestor a1 ('a') has: 100; give that one more room first"
    )
    assert "more than its ancestor" in t.failed(t.resume(b, room="turns=21"))
    assert t.run(b).status is Status.PAUSED
    assert t.held(b, "tokens").limit.threshold == 50, "nothing of it was done"
    (t >> t.resume(b, room="tokens=100 turns=20 time=3000")).skip()
    assert t.run(b).status is Status.RUNNING
    assert t.run(b).deadline == t.run(a).deadline, "more time is no more than the ancestor's"


# ---- between and around attempts


def test_limits_span_attempts() -> None:
    t = Transcript(hear=frozenset({"ended"}))
    a = t.start("a", limits="turns=10", attempts=5)
    (t >> t.used(a, turns=8)).skip()
    (t >> t.exited(a, 1)).skip()
    (t >> t.emptied(a)).skip()
    (t >> t.fired(a, "retry")).skip()
    (t >> t.launched(a)).skip()
    t >> t.used(a, turns=11) << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t >> t.exited(a, 1) << "release a1" << "ended a1 failed"
    t.quiet()
    assert t.said == ["near a1 turns 8/10", "over a1 turns 11/10"]


@pytest.mark.parametrize("cleared", [False, True])
def test_a_breach_ends_a_run_between_attempts(cleared: bool) -> None:
    """The last lines of an attempt are read when it is over."""
    t = Transcript(hear=frozenset({"ended"}))
    a = t.start("a", limits="turns=10", attempts=5)
    (t >> t.exited(a, 1)).skip()
    if cleared:
        (t >> t.emptied(a)).skip()
        t >> t.used(a, turns=11) << "terminate a1 SIGTERM" << "arm a1 grace +5"
    else:
        t >> t.used(a, turns=11)  # the ladder that clears it goes on, and ends it
    assert t.run(a).status is Status.STOPPING
    t >> t.fired(a, "retry")
    t >> t.emptied(a) << "release a1" << "ended a1 failed"
    t.quiet()


def test_a_breach_ends_a_run_that_is_starting() -> None:
    t = Transcript(hear=frozenset({"ended"}))
    (t >> t.spawn("a", limits="turns=10")).skip()
    (t >> t.committed("a1")).skip()
    t >> t.used("a1", turns=11) << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t >> t.launched("a1")
    (
        t
        >> t.exited("a1", None, signal=15)
        << "release a1"
        << "ended a1 failed"
        << "reply 1 SpawnDone a1 failed"
    )
    t.quiet()


def test_a_breach_ends_a_run_that_was_never_launched() -> None:
    """A person may report for it."""
    for committed in (False, True):
        t = Transcript(hear=frozenset({"ended"}), trees=1)
        t.start("other")
        (t >> t.spawn("a", limits="turns=10:request_increase tokens=9")).skip()
        if committed:
            (t >> t.committed("a2")).skip()
        t >> t.report("a2", turns=11) << "arm a2 approval +600" << "reply 3 Changed a2 queued"
        (t >> t.report("a2", input_tokens=10)).skip()
        assert t.events[-1] == "run_failed a2"
        assert ended(t, "a2").limit_kind == "tokens"
        (t >> t.committed("a2")).skip()
        assert t.machine.tree.get("a2") is None


def test_a_breach_by_pause_between_attempts_holds_the_next() -> None:
    t = Transcript()
    a = t.start("a", limits="turns=10:request_increase", attempts=5)
    (t >> t.exited(a, 1)).skip()
    t >> t.used(a, turns=11) << "arm a1 approval +600"
    t >> t.emptied(a) << f"arm a1 retry +{backoff(a, 1, first=1.0, cap=60.0):g}"
    t.later(2)
    t >> t.fired(a, "retry") << "launch a1"
    t >> t.launched(a) << "freeze a1" << f"arm a1 pause_max +{DAY}"
    assert t.run(a).status is Status.PAUSED
    (
        t
        >> t.approve(a, room="turns=20")
        << "rebound a1"
        << "thaw a1"
        << "arm a1 deadline +96"
        << "reply 2 Changed a1 running"
    )
    t.quiet()


def test_what_holds_a_run_is_decided_before_its_next_attempt() -> None:
    t = Transcript()
    a = t.start("a", limits="turns=10:request_increase", attempts=5)
    (t >> t.exited(a, 1)).skip()
    (t >> t.emptied(a)).skip()
    (t >> t.used(a, turns=11)).skip()
    t >> t.approve(a) << "reply 2 Changed a1 retrying"
    (t >> t.fired(a, "retry")).skip()
    t >> t.launched(a) << "arm a1 deadline +96"
    t.quiet()


def test_a_held_run_that_is_killed_is_held_again_in_its_next_attempt() -> None:
    t = Transcript()
    a = t.start("a", limits="turns=10:request_increase", attempts=2)
    (t >> t.used(a, turns=11)).skip()
    t.later(100)
    (t >> t.exited(a, None, signal=9)).skip()
    (t >> t.emptied(a)).skip()
    (t >> t.fired(a, "retry")).skip()
    t >> t.launched(a) << "freeze a1" << f"arm a1 pause_max +{DAY}"
    t.later(500)
    t >> t.fired(a, "approval") << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t.quiet()


def test_a_run_that_is_held_before_it_is_launched_into_a_frozen_tree_stays_held() -> None:
    """Its ancestor's resume is not its own."""
    t = Transcript(hear=frozenset({"publish"}))
    a = t.start("a")
    (t >> t.spawn("b", inside(a), limits="turns=10:pause")).skip()
    (t >> t.committed("a2")).skip()
    (t >> t.report("a2", turns=11)).skip()
    (t >> t.pause(a)).skip()
    (
        t
        >> t.launched("a2")
        << "freeze a1"
        << "publish run_started a2"
        << "freeze a2"
        << f"arm a2 pause_max +{DAY}"
    )
    t << "publish run_paused a2" << "reply 2 SpawnDone a2 paused"
    (t >> t.resume(a)).skip()
    assert t.run("a2").status is Status.PAUSED
    (
        t
        >> t.resume("a2", room="turns=20")
        << "rebound a2"
        << "thaw a2"
        << "arm a2 deadline +96"
        << "publish run_resumed a2"
    )
    t << "reply 6 Changed a2 running"
    t.quiet()


def test_a_breach_under_a_frozen_ancestor() -> None:
    t = Transcript()
    a = t.start("a")
    b = t.start("b", inside(a), limits="turns=10:pause tokens=10")
    (t >> t.pause(a)).skip()
    t >> t.used(b, turns=11) << "freeze a2" << f"arm a2 pause_max +{DAY}"
    (t >> t.resume(a)).skip()
    assert [t.run(run).status for run in (a, b)] == [Status.RUNNING, Status.PAUSED]
    (t >> t.pause(a)).skip()
    # no frozen process can use a grace
    t >> t.used(b, turns=11, input_tokens=11) << "terminate a2 SIGTERM" << "arm a2 grace +0"
    t.quiet()


def test_a_stop_and_a_breach_at_the_same_moment() -> None:
    """The first decides; the second changes nothing."""
    t = Transcript()
    a = t.start("a", limits="turns=10:request_increase")
    t >> t.stop(a) << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t >> t.used(a, turns=11)
    t >> t.exited(a) << "release a1" << "reply 2 StopDone a1"
    assert ended(t, a).kind == "stop"
    assert not t.said
    b = t.start("b", limits="turns=10")
    t >> t.used(b, turns=11) << f"terminate {b} SIGTERM" << f"arm {b} grace +5"
    t >> t.stop(b, grace=0) << f"arm {b} grace +0"
    t >> t.exited(b) << f"release {b}" << "reply 4 StopDone a2"
    t.quiet()
    assert ended(t, b).kind == "limit"


def test_draining_while_frozen_and_waiting() -> None:
    t = Transcript(hear=frozenset({"disarm"}))
    a = t.start("a", limits="turns=10:request_increase")
    b = t.start("b", inside(a), limits="turns=5:pause")
    (t >> t.used(b, turns=6)).skip()
    (t >> t.used(a, turns=11)).skip()
    t >> e.DrainRequested(t.at) << "disarm a2 pause_max" << "disarm a2 deadline"
    t << "disarm a1 pause_max" << "disarm a1 approval" << "disarm a1 deadline"
    t << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t >> t.emptied(a)
    t.skip()
    assert not len(t.machine.tree)


def test_an_ended_ancestor_takes_the_approval_of_a_child_along() -> None:
    t = Transcript(hear=frozenset({"disarm"}))
    a = t.start("a")
    b = t.start("b", inside(a), limits="turns=10:request_increase")
    (t >> t.used(b, turns=11)).skip()
    (
        t
        >> t.exited(a, 0, empty=False)
        << "disarm a2 pause_max"
        << "disarm a2 approval"
        << "disarm a2 deadline"
    )
    t.skip()
    assert "does not wait" in t.failed(t.approve(b))


# ---- what the kernel counts


@pytest.mark.parametrize("kind", ["memory", "pids"])
def test_levels(kind: str) -> None:
    threshold = 10_000_000
    t = Transcript(hear=frozenset({"ended"}))
    a = t.start("a", limits=f"{kind}={threshold}")
    b = t.start("b", inside(a))
    t >> t.level(a, kind, 7_999_999)
    t >> t.level(a, kind, 8_000_000)
    t >> t.level(a, kind, 1)
    t >> t.level(a, kind, threshold)
    t >> t.level(b, kind, 99_000_000)  # it has no limit of its own
    t >> t.level(a, kind, threshold + 1) << "terminate a1 SIGTERM" << "arm a1 grace +5"
    (t >> t.exited(a, 0, empty=False)).skip()
    t >> t.emptied(a) << "release a2" << "ended a2 cancelled" << "release a1" << "ended a1 failed"
    t.quiet()
    assert [line.split()[:3] for line in t.said] == [["near", "a1", kind], ["over", "a1", kind]]
    assert ended(t, a).limit_kind == kind


def test_what_the_kernel_refused_is_above_the_limit() -> None:
    """At the limit it lets nothing through, so nothing above it is ever seen."""
    t = Transcript()
    a = t.start("a", limits="pids=10")
    t >> t.level(a, "pids", 10)
    t >> t.level(a, "pids", 10, refused=True) << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t.quiet()
    assert t.said == ["near a1 pids 10/10", "over a1 pids 11/10"]


def test_a_paused_run_keeps_its_memory_and_a_running_one_may_have_less() -> None:
    t = Transcript()
    a = t.start("a", limits="memory=10000000:pause")
    (t >> t.level(a, "memory", 11_000_000)).skip()
    assert t.run(a).status is Status.PAUSED
    assert "the new limit must be above that" in t.failed(t.resume(a, room="memory=10500000"))
    (
        t
        >> t.resume(a, room="memory=12000000")
        << "rebound a1"
        << "thaw a1"
        << "arm a1 deadline +96"
        << "reply 3 Changed a1 running"
    )
    t >> t.level(a, "memory", 5_000_000)
    t >> t.level(a, "memory", 12_600_000) << "freeze a1" << f"arm a1 pause_max +{DAY}"
    t.quiet()


def test_a_level_says_nothing_of_what_is_metered() -> None:
    t = Transcript()
    a = t.start("a")
    t >> t.level(a, "pids", 3)
    assert t.run(a).account.used(LimitKind.PIDS) == 3
    for kind in set(LimitKind) - {LimitKind.PIDS}:
        assert t.run(a).account.used(kind) is None, "unknown is never 0"


# ---- tools


@pytest.mark.parametrize(
    ("allowed", "blocked", "called", "words"),
    [
        ((), ("Bash",), "Bash", "which --block-tool forbids"),
        ((), ("Bash",), "Read", None),
        (("Read",), (), "Bash", "which --allow-tool does not name"),
        (("Read",), (), "Read", None),
        (("Read", "Bash"), ("Bash",), "Bash", "which --block-tool forbids"),
        (("Bash(git:*)",), (), "Bash", None),
        ((), ("Bash(rm:*)",), "Bash", None),
        ((), (), "Bash", None),
        (("Read",), (), "", "which --allow-tool does not name"),
    ],
)
def test_tools(
    allowed: tuple[str, ...], blocked: tuple[str, ...], called: str, words: str | None
) -> None:
    t = Transcript()
    a = t.start("a", allowed_tools=allowed, blocked_tools=blocked)
    t >> e.ToolsCalled(t.at, a, ("Read", called) if not allowed or "Read" in allowed else (called,))
    if words is None:
        t.quiet()
        return
    t << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t.quiet()
    assert t.said == ["over a1 tool 1/0"]
    t >> e.ToolsCalled(t.at, a, (called,))
    (t >> t.exited(a, 0)).skip()
    assert (ended(t, a).limit_kind, ended(t, a).message) == (
        "tool",
        f"its agent called the tool '{called}', {words}",
    )


def test_tools_that_are_only_warned_about_once_each_and_not_without_end() -> None:
    t = Transcript()
    a = t.start("a", allowed_tools=("Read",), on_limit=Action.WARN)
    t >> e.ToolsCalled(t.at, a, ("Bash", "Read", "Bash", "Web"))
    t >> e.ToolsCalled(t.at, a, ("Bash",))
    assert len(t.said) == 2
    t >> e.ToolsCalled(t.at, a, tuple(f"tool-{n}" for n in range(1000)))
    t.quiet()
    assert len(t.said) == MAX_TOOLS_SAID
    assert len(t.run(a).tools_said) == MAX_TOOLS_SAID
    assert t.run(a).status is Status.RUNNING


# ---- who may


def test_only_a_caller_outside_resumes_what_a_limit_holds() -> None:
    t = Transcript()
    a = t.start("a")
    b = t.start("b", inside(a), limits="turns=10:request_increase")
    d = t.start("d", inside(a), limits="turns=10:pause")
    f = t.start("f", inside(a))
    (t >> t.used(b, turns=11)).skip()
    (t >> t.used(d, turns=11)).skip()
    (t >> t.pause(f, peer=inside(a))).skip()
    for peer in (inside(a), inside(b), Peer(0, "root", run=a)):
        for event in (t.approve(b, peer), t.deny(b, peer)):
            assert t.machine.why_refused(peer, "approve") is not None
            verb = "approve" if isinstance(event, e.ApproveRequested) else "deny"
            words = f"run {peer.run} may not '{verb}': only a caller outside any run may"
            (t >> event).skip()
            assert t.answers[event.token] == c.ErrorAnswer(ErrorCode.NOT_PERMITTED, words)
    words = f"run {a} may not give run {{}} more room: only from outside any run"
    assert t.failed(t.resume(d, inside(a))) == words.format(d)
    assert t.failed(t.resume(d, inside(a), room="turns=50")) == words.format(d)
    assert t.failed(t.resume(b, inside(a))) == words.format(b)
    assert t.failed(t.resume(f, inside(a), room="turns=50")) == words.format(f), (
        "it was given so much"
    )
    # what it paused itself it may resume
    (t >> t.resume(f, inside(a))).skip()
    assert t.run(f).status is Status.RUNNING
    assert [t.run(run).status for run in (b, d)] == [Status.PAUSED, Status.PAUSED]
    assert not VERBS & OUTSIDE


def test_a_run_paused_by_hand_and_by_a_limit_is_resumed_as_the_limits() -> None:
    t = Transcript()
    a = t.start("a")
    b = t.start("b", inside(a), limits="turns=10:pause")
    (t >> t.pause(b, peer=inside(a))).skip()
    (t >> t.used(b, turns=11)).skip()
    assert "more room" in t.failed(t.resume(b, inside(a)))


def test_use_is_told_and_reserved_for_the_own_subtree_only() -> None:
    t = Transcript()
    a, b = t.chain("a", "b")
    other = t.start("other", BOB)
    sibling = t.start("s", inside(a))
    name = t.reserved(t.reserve(a, tokens=5))
    for target in (a, sibling, other):
        asked: list[tuple[str, Any]] = [("report", t.report(target, inside(b), turns=1))]
        asked += [("reserve", t.reserve(target, tokens=1, peer=inside(b)))]
        for verb, event in asked:
            (t >> event).skip()
            answer = t.answers[event.token]
            assert isinstance(answer, c.ErrorAnswer)
            assert (
                answer.message
                == f"run {b} may not use '{verb}' on run {target}: it is not in the subtree of {b}"
            )
    assert "may not use 'settle'" in t.failed(t.settle(name, inside(b), turns=1))
    (
        t >> t.settle(t.reserved(t.reserve(b, tokens=5, peer=inside(a))), inside(b), input_tokens=1)
    ).skip()
    (t >> t.report(b, inside(b), turns=1)).skip()
    assert t.run(b).account.used(LimitKind.TURNS) == 1
    stranger = Peer(1001, "bob", owner=False)
    assert "this daemon serves another user" in t.failed(t.report(a, stranger, turns=1))


@pytest.mark.parametrize("verb", ["report", "reserve", "settle"])
def test_spending_verbs_can_be_denied(verb: str) -> None:
    t = Transcript()
    a = t.start("a", deny=frozenset({verb}))
    name = t.reserved(t.reserve(a, tokens=5))
    event: Any = {
        "report": t.report(a, inside(a), turns=1),
        "reserve": t.reserve(a, tokens=1, peer=inside(a)),
    }.get(verb)
    event = event or t.settle(name, inside(a), turns=1)
    (t >> event).skip()
    answer = t.answers[event.token]
    assert isinstance(answer, c.ErrorAnswer)
    assert "was started without permission" in answer.message


def test_events_about_ended_runs_call_for_nothing() -> None:
    t = Transcript()
    for event in (
        t.used("zz", turns=1),
        t.level("zz", "pids", 1),
        e.ToolsCalled(0, "zz", ("x",)),
        t.said_by_agent("zz"),
    ):
        t >> event
    for timer in ("approval", "pause_max", "deadline", "result"):
        t >> t.fired("zz", timer)
    t.quiet()
    for request in (t.report("zz"), t.reserve("zz"), t.approve("zz"), t.deny("zz"), t.resume("zz")):
        (t >> request).skip()
        assert isinstance(t.answers[request.token], c.ErrorAnswer)
    assert "no reservation 'zz' is open" in t.failed(t.settle("zz"))


def test_unknown_stays_unknown() -> None:
    t = Transcript()
    a = t.start("a", limits="tokens=10 cost=1 turns=1")
    t >> t.used(a)
    t >> t.report(a)
    t.skip()
    account = t.run(a).account
    assert all(account.used(kind) is None for kind in LimitKind)
    (t >> t.used(a, turns=2)).skip()
    (t >> t.exited(a)).skip()
    reason = ended(t, a)
    assert (reason.turns, reason.tokens, reason.cost_usd) == (2, None, None)
    assert ANN.run is None
