"""What an agent says of itself, as transcripts."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from sfad.core.life.attempts import backoff
from sfad.protocol.types import Status

from .transcript import Transcript, inside

WAIT = backoff("a1", 1, first=1.0, cap=60.0)


def test_an_exit_with_0_of_an_agent_that_said_it_failed_is_a_failure() -> None:
    t = Transcript(hear=frozenset({"ended"}))
    a = t.start("a")
    t >> t.said_by_agent(a, failed="no credit")
    t >> t.exited(a, 0) << "release a1" << "ended a1 failed"
    t.quiet()
    reason = t.reasons[a]
    assert reason is not None
    assert (reason.kind, reason.message) == (
        "agent",
        "exited with code 0, but said that it failed: no credit",
    )


def test_the_last_line_on_stderr_is_told_beside_an_exit_code_unless_the_agent_said_more() -> None:
    for said, words in (
        (None, "exited with code 3: no such key"),
        ("no credit", "exited with code 3: no credit"),
    ):
        t = Transcript()
        a = t.start("a")
        (t >> t.said_by_agent(a, failed=said)).skip()
        (t >> replace(t.exited(a, 3), last_line="no such key")).skip()
        reason = t.reasons[a]
        assert reason is not None
        assert reason.message == words


def test_the_cause_of_a_failure_deep_below_is_told_once_with_the_path_to_it() -> None:
    t = Transcript()
    a = t.start("a")
    b = t.start("b", inside(a))
    c = t.start("c", inside(b))
    (t >> replace(t.exited(c, 3), last_line="no such key")).skip()
    (
        t
        >> replace(
            t.exited(b, 3), last_line=f"sfactl: {c} ended as failed: exited with code 3: no such k…"
        )
    ).skip()
    (
        t
        >> replace(
            t.exited(a, 4), last_line=f"[agent:b] failed: exited with code 3, because of {c}"
        )
    ).skip()
    reasons = [reason for run in (a, b) if (reason := t.reasons[run]) is not None]
    assert [reason.message for reason in reasons] == [
        f"exited with code 4: {b} › {c}: exited with code 3: no such key",
        f"exited with code 3: {c}: exited with code 3: no such key",
    ]
    assert [reason.below for reason in reasons] == [[b, c], [c]]


def test_a_failure_after_that_of_a_child_is_told_in_its_own_words() -> None:
    t = Transcript()
    a = t.start("a")
    (t >> t.exited(t.start("b", inside(a)), 3)).skip()
    (t >> replace(t.exited(a, 1), last_line="no such file")).skip()
    reason = t.reasons[a]
    assert reason is not None
    assert (reason.message, reason.below) == ("exited with code 1: no such file", [])


def test_its_words_are_told_beside_an_exit_code_and_not_beside_a_signal() -> None:
    for code, signal, words in (
        (3, None, "exited with code 3: no credit"),
        (None, 9, "killed by SIGKILL"),
    ):
        t = Transcript()
        a = t.start("a")
        (t >> t.said_by_agent(a, finished=True, failed="no credit")).skip()
        (t >> t.exited(a, code, signal=signal)).skip()
        reason = t.reasons[a]
        assert reason is not None
        assert reason.message == words


def test_it_is_tried_again_like_any_failure_and_the_next_attempt_is_judged_by_itself() -> None:
    t = Transcript(hear=frozenset({"ended", "disarm"}))
    a = t.start("a", attempts=2)
    t >> t.said_by_agent(a, finished=True, failed="overloaded") << "arm a1 result +30"
    (t >> t.exited(a, 0)).skip()
    assert t.run(a).status is Status.RETRYING
    (t >> t.emptied(a)).skip()
    t.later(WAIT)
    # the timer of the first attempt's result must not wait for the second's
    t >> t.fired(a, "retry") << "disarm a1 result" << "launch a1"
    (t >> t.launched(a)).skip()
    (t >> t.exited(a, 0)).skip()
    assert t.events[-1] == "run_completed a1"


def test_a_failure_that_it_takes_back_does_not_count() -> None:
    t = Transcript()
    a = t.start("a")
    (t >> t.said_by_agent(a, failed="stumbled")).skip()
    (t >> t.said_by_agent(a)).skip()
    (t >> t.exited(a, 0)).skip()
    assert t.events[-1] == "run_completed a1"


def test_what_lingers_after_its_result_is_stopped_and_completed_with_a_note() -> None:
    t = Transcript(hear=frozenset({"ended"}))
    a = t.start("a")
    t >> t.said_by_agent(a, finished=True) << "arm a1 result +30"
    t >> t.said_by_agent(a, finished=True)
    t.later(30)
    t >> t.fired(a, "result") << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t >> t.exited(a, None, signal=15) << "release a1" << "ended a1 completed"
    t.quiet()
    reason = t.reasons[a]
    assert reason is not None
    assert reason.kind == "result"
    assert reason.message == (
        "the agent printed its final result and did not exit within 30 s; "
        "it was stopped (stop.result_wait)"
    )


def test_what_has_finished_before_its_launch_was_told_is_waited_for_too() -> None:
    t = Transcript()
    (t >> t.spawn("a")).skip()
    (t >> t.committed("a1")).skip()
    t >> t.said_by_agent("a1", finished=True) << "arm a1 result +30"
    t.later(30)
    t >> t.fired("a1", "result") << "arm a1 result +30"
    (t >> t.launched("a1")).skip()
    t.later(30)
    t >> t.fired("a1", "result") << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t.quiet()


def test_what_lingers_after_it_failed_is_failed() -> None:
    t = Transcript(hear=frozenset({"ended"}))
    a = t.start("a")
    (t >> t.said_by_agent(a, finished=True, failed="no credit")).skip()
    t.later(30)
    (t >> t.fired(a, "result")).skip()
    t >> t.exited(a, 0) << "release a1" << "ended a1 failed"
    t.quiet()
    reason = t.reasons[a]
    assert reason is not None
    assert "printed that it failed (no credit)" in reason.message


def test_what_lingers_after_it_failed_is_tried_again_while_attempts_are_left() -> None:
    t = Transcript()
    a = t.start("a", attempts=2)
    (t >> t.said_by_agent(a, finished=True, failed="no credit")).skip()
    t.later(30)
    t >> t.fired(a, "result") << "terminate a1 SIGTERM" << "arm a1 grace +5"
    (t >> t.exited(a, None, signal=15, empty=False)).skip()
    (t >> t.emptied(a)).skip()
    t.later(2)
    t >> t.fired(a, "retry") << "launch a1"


def test_it_may_exit_in_time_or_continue() -> None:
    t = Transcript(hear=frozenset({"disarm"}))
    a = t.start("a")
    t >> t.said_by_agent(a, finished=True) << "arm a1 result +30"
    t.later(20)
    t >> t.said_by_agent(a) << "disarm a1 result"  # another turn has begun
    t >> t.said_by_agent(a, finished=True) << "arm a1 result +30"
    t.later(20)
    t >> t.exited(a, 0) << "disarm a1 result"
    t.skip()
    assert t.events[-1] == "run_completed a1"
    assert t.reasons[a] is None


def test_an_interactive_agent_finishes_turns() -> None:
    t = Transcript()
    a = t.start("a", takes_input=True)
    t >> t.said_by_agent(a, finished=True)
    t >> t.fired(a, "result")
    t.skip()
    t >> t.exited(a, 0) << "release a1"
    t.quiet()


@pytest.mark.parametrize("other", [False, True])
def test_paused_it_cannot_exit_so_it_is_waited_for(other: bool) -> None:
    t = Transcript()
    a, b = t.chain("a", "b")
    (t >> t.said_by_agent(b, finished=True)).skip()
    (t >> t.pause(a if other else b)).skip()
    t.later(30)
    t >> t.fired(b, "result") << "arm a2 result +30"
    (t >> t.resume(a if other else b)).skip()
    t.later(30)
    t >> t.fired(b, "result") << "terminate a2 SIGTERM" << "arm a2 grace +5"
    t.quiet()


def test_what_it_says_while_it_is_being_stopped_changes_nothing() -> None:
    t = Transcript(hear=frozenset({"ended"}))
    a = t.start("a")
    (t >> t.stop(a)).skip()
    t >> t.said_by_agent(a, finished=True, failed="interrupted")
    t >> t.fired(a, "result")
    t >> t.exited(a, 0) << "release a1" << "ended a1 cancelled" << "reply 2 StopDone a1"
    t.quiet()


def test_what_is_read_between_attempts_is_of_the_attempt_before() -> None:
    t = Transcript(hear=frozenset({"disarm", "ended"}))
    a = t.start("a", attempts=2)
    (t >> t.exited(a, 1)).skip()
    t >> t.said_by_agent(a, finished=True, failed="overloaded") << "arm a1 result +30"
    (t >> t.emptied(a)).skip()
    t >> t.fired(a, "retry") << "disarm a1 result" << "launch a1"
    (t >> t.launched(a)).skip()
    t >> t.exited(a, 0) << "disarm a1 deadline" << "release a1" << "ended a1 completed"
    t.quiet()


@pytest.mark.parametrize(("code", "number"), [(130, None), (None, 2)])
def test_a_program_that_was_interrupted_at_its_terminal_is_cancelled_and_not_started_again(
    code: int | None, number: int | None
) -> None:
    """The key went to the program, and sfactl did not see it."""
    t = Transcript(hear=frozenset({"ended"}))
    a = t.start("a", inherits=True, attempts=3)
    t >> t.exited(a, code, signal=number) << "release a1" << "ended a1 cancelled"
    reason = t.reasons[a]
    assert reason is not None
    assert reason.kind == "interrupt"


def test_an_exit_with_130_elsewhere_is_a_failure() -> None:
    t = Transcript(hear=frozenset({"ended"}))
    a = t.start("a")
    t >> t.exited(a, 130) << "release a1" << "ended a1 failed"
