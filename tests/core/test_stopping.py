"""The stop ladder, as transcripts."""

from __future__ import annotations

import pytest

from sfad.core import commands as c
from sfad.core import events as e
from sfad.core.state.access import Peer
from sfad.protocol.types import ErrorCode, Status

from .transcript import ANN, Transcript, inside, seconds


def stop_done(t: Transcript, token: int) -> c.StopDone:
    """The answer to a stop."""
    answer = t.answers[token]
    assert isinstance(answer, c.StopDone)
    return answer


def test_the_whole_ladder() -> None:
    t = Transcript(hear=frozenset({"save", "ended", "publish", "disarm"}))
    a = t.start("a")
    t.later(1)
    t >> t.stop(a) << "disarm a1 deadline" << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t.later(5)
    t >> t.fired(a, "grace") << "kill a1" << "arm a1 survey +10"
    t.later(1)
    t >> t.exited(a, None, signal=9, empty=False)
    t >> t.emptied(a) << "disarm a1 grace" << "disarm a1 survey" << "save a1 cancelled"
    t << "publish run_cancelled a1" << "release a1" << "ended a1 cancelled" << "reply 2 StopDone a1"
    t.quiet()
    assert stop_done(t, 2).elapsed_s == 6


def test_the_answer_comes_the_moment_everything_is_gone() -> None:
    t = Transcript()
    a = t.start("a")
    t >> t.stop(a, signal=2) << "terminate a1 SIGINT" << "arm a1 grace +5"
    t.later(0.1)
    t >> t.exited(a, 0) << "release a1" << "reply 2 StopDone a1"
    t.quiet()
    assert abs(stop_done(t, 2).elapsed_s - 0.1) < 1e-9


def test_an_agent_that_exits_0_because_it_was_stopped_is_cancelled() -> None:
    t = Transcript()
    a = t.start("a")
    run = t.run(a)
    (t >> t.stop(a, signal=2)).skip()
    (t >> t.exited(a, 0)).skip()
    assert run.status is Status.CANCELLED
    assert run.shown_reason is not None
    assert (run.shown_reason.kind, run.shown_reason.message) == (
        "stop",
        "stopped by user ann (SIGINT)",
    )
    assert (run.shown_reason.by, run.shown_reason.signal) == ("user ann", 2)


def test_descendants_are_cancelled_with_their_ancestor_and_end_before_it() -> None:
    t = Transcript(hear=frozenset({"ended"}))
    a, b, d = t.chain("a", "b", "d")
    child = t.run(d)
    t >> t.stop(a) << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t >> t.exited(a, 0, empty=False)
    t >> t.exited(b, 0, empty=False)
    t >> t.exited(d, 0, empty=False)
    (
        t
        >> t.emptied(a)
        << "release a3"
        << "ended a3 cancelled"
        << "release a2"
        << "ended a2 cancelled"
    )
    t << "release a1" << "ended a1 cancelled" << "reply 4 StopDone a1"
    t.quiet()
    assert child.shown_reason is not None
    assert (child.shown_reason.kind, child.shown_reason.by) == ("ancestor", a)


def test_ten_stubborn_descendants_cost_one_grace() -> None:
    t = Transcript()
    a = t.start("root")
    below = [t.start(f"child-{number}", inside(a)) for number in range(10)]
    (t >> t.stop(a, *below)) << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t.later(5)
    t >> t.fired(a, "grace") << "kill a1" << "arm a1 survey +10"
    for run in (a, *below):
        (t >> t.exited(run, None, signal=9, empty=False)).skip()
    (t >> t.emptied(a)).skip()
    assert stop_done(t, 12).elapsed_s == 5
    assert set(stop_done(t, 12).stopped) == {a, *below}


def test_a_second_stop_shortens_the_grace() -> None:
    t = Transcript()
    a = t.start("a")
    t >> t.stop(a, grace=30) << "terminate a1 SIGTERM" << "arm a1 grace +30"
    t.later(1)
    t >> t.stop(a, grace=60)  # later is not possible
    t >> t.stop(a, grace=2) << "arm a1 grace +2"
    t >> t.stop(a, grace=0) << "arm a1 grace +0"
    t >> t.fired(a, "grace") << "kill a1" << "arm a1 survey +10"
    t >> t.stop(a, grace=0)
    t >> t.exited(a, None, signal=9) << "release a1"
    (
        t
        << "reply 2 StopDone a1"
        << "reply 3 StopDone a1"
        << "reply 4 StopDone a1"
        << "reply 5 StopDone a1"
        << "reply 6 StopDone a1"
    )
    t.quiet()


def test_grace_is_the_requests_else_the_runs_else_the_configs() -> None:
    cases = [
        (None, None, 5),
        (7.0, None, 7),
        (7.0, 3.0, 3),
        (60.0, None, 60),
        (None, 60.0, 60),
        (0.0, None, 0),
    ]
    for own, asked, expected in cases:
        t = Transcript()
        a = t.start("a", grace=own)
        t >> t.stop(a, grace=asked) << "terminate a1 SIGTERM" << f"arm a1 grace +{expected}"
        t.quiet()


def test_a_child_can_be_hastened_within_its_ancestors_stop() -> None:
    t = Transcript()
    a, b = t.chain("a", "b")
    (t >> t.stop(a, grace=30)).skip()
    t >> t.stop(b, grace=1) << "terminate a2 SIGTERM" << "arm a2 grace +1"
    t >> t.exited(b, 0) << "release a2" << "reply 4 StopDone a2"
    t >> t.stop(a, grace=40)
    t.quiet()


def test_survivors_are_told_and_the_run_stays_stopping_with_its_slot() -> None:
    t = Transcript(hear=frozenset({"publish"}), trees=1)
    a = t.start("a")
    (t >> t.stop(a, grace=0)).skip()
    (t >> t.fired(a, "grace")).skip()
    t.later(10)
    t >> t.fired(a, "survey") << "survey a1" << "arm a1 survey +1"
    t >> t.surveyed(a, a1=77) << "publish alert_survivors a1" << "reply 2 StopDone a1:77"
    t.quiet()
    assert stop_done(t, 2).stopped == ()
    assert t.run(a).status is Status.STOPPING
    assert t.machine.slots.count == 1
    # surveys end; the containment goes on killing
    t.later(1)
    t >> t.fired(a, "survey")
    # a client that asks now is answered at once
    t >> t.stop(a) << "survey a1"
    t >> t.surveyed(a, a1=77) << "reply 3 StopDone a1:77"
    t >> t.exited(a, None, signal=9, empty=False)
    t >> t.emptied(a) << "publish run_cancelled a1" << "release a1"
    t.quiet()
    assert t.machine.slots.count == 0


def test_a_survey_that_finds_nothing_answers_nothing() -> None:
    """The last survivor went just then: `Emptied` is on its way."""
    t = Transcript()
    a = t.start("a")
    (t >> t.stop(a, grace=0)).skip()
    (t >> t.fired(a, "grace")).skip()
    (t >> t.fired(a, "survey")).skip()
    t >> t.surveyed(a)
    t.quiet()


def test_survivors_answer_for_descendants_too() -> None:
    """`stop --all` names every run of a tree; all of them stand on the root's ladder."""
    t = Transcript()
    a, b = t.chain("a", "b")
    d = t.start("d", inside(a))
    (t >> t.stop(a, b, d, grace=0)).skip()
    (t >> t.fired(a, "grace")).skip()
    (t >> t.fired(a, "survey")).skip()
    t >> t.surveyed(a, a2=50) << "reply 4 StopDone a3 a2:50"
    t.quiet()


def test_a_stop_of_a_child_in_a_stuck_tree_is_answered() -> None:
    t = Transcript()
    a, b = t.chain("a", "b")
    (t >> t.stop(a, grace=0)).skip()
    (t >> t.fired(a, "grace")).skip()
    (t >> t.fired(a, "survey")).skip()
    t >> t.surveyed(a, a2=50) << "reply 3 StopDone a2:50"
    t >> t.stop(b) << "survey a1"
    t >> t.surveyed(a, a2=50) << "reply 4 StopDone a2:50"
    t.quiet()


def test_a_stop_of_several_waits_for_all() -> None:
    t = Transcript()
    a, b = t.start("a"), t.start("b")
    (t >> t.exited(b)).skip()
    t >> t.stop(a, b) << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t >> t.exited(a) << "release a1" << "reply 3 StopDone a2 a1"
    t.quiet()


def test_a_run_named_twice_is_answered_once() -> None:
    t = Transcript()
    a = t.start("a")
    (t >> t.stop(a, a)).skip()
    t >> t.exited(a) << "release a1" << "reply 2 StopDone a1"
    t.quiet()
    t >> t.stop(a, a) << "reply 3 StopDone a1"
    t.quiet()


def test_stopping_nothing_is_done_at_once() -> None:
    t = Transcript()
    t >> t.stop() << "reply 1 StopDone"
    t.quiet()


def test_what_an_agent_leaves_behind_is_stopped_and_it_stays_completed() -> None:
    t = Transcript(hear=frozenset({"ended"}))
    a = t.start("a")
    t >> t.exited(a, 0, empty=False) << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t >> t.emptied(a) << "release a1" << "ended a1 completed"
    t.quiet()


def test_when_an_agent_ends_its_children_are_cancelled() -> None:
    t = Transcript(hear=frozenset({"ended"}))
    a, b = t.chain("a", "b")
    # `empty` would be a lie with a child alive, but a child that is not launched yet has no process
    t >> t.exited(a, 3, empty=False) << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t >> t.exited(b, 0) << "release a2" << "ended a2 cancelled"
    t >> t.emptied(a) << "release a1" << "ended a1 failed"
    t.quiet()


def test_a_child_that_was_never_launched_goes_with_its_parent() -> None:
    t = Transcript(hear=frozenset({"ended"}))
    a = t.start("a")
    t >> t.spawn("b", inside(a)) << "admit a2"
    t >> t.exited(a, 0, empty=True) << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t >> t.committed("a2")  # too late: nothing is launched into a tree that is being emptied
    (
        t
        >> t.emptied(a)
        << "ended a2 cancelled"
        << "reply 2 SpawnDone a2 cancelled"
        << "release a1"
        << "ended a1 completed"
    )
    t.quiet()


def test_stopping_a_child_that_was_never_launched_touches_no_containment() -> None:
    t = Transcript()
    a = t.start("a")
    (t >> t.spawn("b", inside(a))).skip()
    (t >> t.stop(a, grace=30)).skip()
    t >> t.stop("a2", grace=0) << "reply 2 SpawnDone a2 cancelled" << "reply 4 StopDone a2"
    t.quiet()


def test_exit_and_signal_are_reasons() -> None:
    cases = [
        (3, None, "exit", "exited with code 3"),
        (None, 11, "signal", "killed by SIGSEGV"),
        (None, 64, "signal", "killed by SIGRTMAX"),
        (None, 99, "signal", "killed by signal 99"),
    ]
    for code, signal, kind, message in cases:
        t = Transcript()
        run = t.run(t.start("a"))
        (t >> t.exited(run.id, code, signal=signal)).skip()
        assert run.status is Status.FAILED
        assert run.shown_reason is not None
        assert (run.shown_reason.kind, run.shown_reason.message) == (kind, message)


def test_timeout_is_timeout_though_the_exit_code_is_0() -> None:
    t = Transcript(hear=frozenset({"publish", "ended"}))
    run = t.run(t.start("a", timeout=seconds(30)))
    t.later(30.5)
    t >> t.fired("a1", "deadline") << "publish limit_nearing a1" << "publish limit_exceeded a1"
    t << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t >> t.exited("a1", 0) << "publish run_timeout a1" << "release a1" << "ended a1 timeout"
    t.quiet()
    assert run.shown_reason is not None
    assert (run.shown_reason.limit_kind, run.shown_reason.threshold, run.shown_reason.used) == (
        "time",
        30,
        30.5,
    )
    assert run.shown_reason.exceeded_by == 0.5
    assert run.shown_reason.message == "ran 30.5 s; its time limit is 30 s, set by --timeout"


def test_a_stop_during_a_timeout_leaves_it_a_timeout() -> None:
    t = Transcript(hear=frozenset({"ended"}))
    a = t.start("a", timeout=seconds(30))
    t.later(30)
    (t >> t.fired(a, "deadline")).skip()
    (t >> t.stop(a, grace=0)).skip()
    t >> t.exited(a, 0) << "release a1" << "ended a1 timeout" << "reply 2 StopDone a1"
    t.quiet()


def test_a_stop_while_starting_waits_for_the_launcher() -> None:
    t = Transcript(hear=frozenset({"ended"}))
    (t >> t.spawn("a")).skip()
    t >> t.committed("a1") << "launch a1"
    t >> t.stop("a1") << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t >> e.LaunchFailed(t.at, "a1", 2, "no such file")
    (
        t
        >> t.emptied("a1")
        << "release a1"
        << "ended a1 cancelled"
        << "reply 1 SpawnDone a1 cancelled"
        << "reply 2 StopDone a1"
    )
    t.quiet()


def test_a_queued_run_is_stopped_without_touching_anything() -> None:
    t = Transcript(trees=1)
    t.start("a")
    (t >> t.spawn("b")).skip()
    t >> t.committed("a2") << "reply 2 SpawnDone a2 queued"
    t >> t.stop("a2") << "reply 3 StopDone a2"
    t.quiet()
    assert t.machine.slots.queued == 0


def test_cancel_before_commit() -> None:
    t = Transcript(hear=frozenset({"save", "ended"}))
    t >> t.spawn("a") << "admit a1"
    (
        t
        >> t.stop("a1")
        << "save a1 cancelled"
        << "ended a1 cancelled"
        << "reply 1 SpawnDone a1 cancelled"
        << "reply 2 StopDone a1"
    )
    t >> t.committed("a1")
    t.quiet()


def test_the_client_of_a_tied_run_goes_away() -> None:
    t = Transcript(hear=frozenset({"ended"}))
    a = t.start("a", tied_to=7)
    b = t.start("b")
    run = t.run(a)
    t >> e.ClientGone(t.at, 7) << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t >> e.ClientGone(t.at, 7)
    t >> t.exited(a, 0) << "release a1" << "ended a1 cancelled"
    t.quiet()
    assert run.shown_reason is not None
    assert run.shown_reason.kind == "client"
    assert t.run(b).status is Status.RUNNING


def test_draining_stops_every_tree_under_one_grace_and_then_shuts_down() -> None:
    t = Transcript()
    a, b = t.start("a"), t.start("b")
    (
        t
        >> e.DrainRequested(t.at)
        << "terminate a1 SIGTERM"
        << "arm a1 grace +5"
        << "terminate a2 SIGTERM"
        << "arm a2 grace +5"
    )
    t >> t.exited(a) << "release a1"
    t.later(1)
    t >> e.DrainRequested(t.at) << "arm a2 grace +0"
    t >> t.exited(b) << "release a2" << "shutdown"
    t.quiet()


@pytest.mark.parametrize(
    ("cause", "said"), [(None, ""), ("ann has logged out", ": ann has logged out")]
)
def test_a_stopped_daemon_says_why(cause: str | None, said: str) -> None:
    t = Transcript()
    run = t.run(t.start("a"))
    t >> e.DrainRequested(t.at, 15, cause)
    assert run.shown_reason is not None
    assert (run.shown_reason.kind, run.shown_reason.message) == (
        "daemon",
        f"the daemon was stopped (SIGTERM){said}",
    )
    t.skip()


def test_draining_an_idle_daemon_shuts_down_at_once() -> None:
    t = Transcript()
    t >> e.DrainRequested(t.at) << "shutdown"
    t.quiet()


def test_draining_starts_nothing_from_the_queue() -> None:
    t = Transcript(trees=1)
    a = t.start("a")
    for name in "bc":
        (t >> t.spawn(name)).skip()
    t >> t.committed("a2") << "reply 2 SpawnDone a2 queued"
    (
        t
        >> e.DrainRequested(t.at)
        << "terminate a1 SIGTERM"
        << "arm a1 grace +5"
        << "reply 3 SpawnDone a3 cancelled"
    )
    t >> t.committed("a3")
    t >> t.exited(a) << "release a1" << "shutdown"
    t.quiet()


def test_draining_gives_a_free_slot_to_no_run() -> None:
    t = Transcript(trees=1)
    for name in "ab":
        (t >> t.spawn(name)).skip()
    t >> t.committed("a2") << "reply 2 SpawnDone a2 queued"
    t >> e.DrainRequested(t.at) << "reply 1 SpawnDone a1 cancelled" << "shutdown"
    t.quiet()


def test_a_launch_that_fails_is_failed_before_any_retry() -> None:
    t = Transcript(hear=frozenset({"ended"}))
    (t >> t.spawn("a", attempts=5)).skip()
    (t >> t.committed("a1")).skip()
    run = t.run("a1")
    (
        t
        >> e.LaunchFailed(t.at, "a1", 2, "cannot execute 'x': No such file")
        << "release a1"
        << "ended a1 failed"
    )
    t << "reply 1 SpawnDone a1 failed"
    t.quiet()
    assert run.shown_reason is not None
    assert (run.shown_reason.kind, run.shown_reason.errno) == ("launch", 2)


def test_children_of_a_launch_that_failed_end_before_it() -> None:
    """A process of the same user can move itself into the containment of a run that is starting,
    and ask from there."""
    t = Transcript(hear=frozenset({"ended"}))
    (t >> t.spawn("a")).skip()
    (t >> t.committed("a1")).skip()
    t >> t.spawn("b", inside("a1")) << "admit a2"
    (
        t
        >> e.LaunchFailed(t.at, "a1", 2, "no such file")
        << "terminate a1 SIGTERM"
        << "arm a1 grace +5"
    )
    t >> t.emptied("a1") << "ended a2 cancelled" << "reply 2 SpawnDone a2 cancelled"
    t << "release a1" << "ended a1 failed" << "reply 1 SpawnDone a1 failed"
    t.quiet()


def test_events_about_ended_runs_call_for_nothing() -> None:
    t = Transcript(hear=frozenset({"save", "publish", "disarm", "ended"}))
    for event in (
        t.committed("zz"), t.commit_failed("zz"), t.launched("zz"), e.LaunchFailed(0, "zz", 2, ""),
        t.exited("zz"), t.emptied("zz"), e.Frozen(0, "zz"), t.surveyed("zz", zz=1),
        t.fired("zz", "grace"), e.ClientGone(0, 1),
    ):  # fmt: skip
        t >> event
    t.quiet()


def test_own_subtree_only() -> None:
    t = Transcript()
    a, b, d = t.chain("a", "b", "d")
    other = t.start("other")
    sibling = t.start("sibling", inside(a))
    for target in (a, other, sibling):
        words = t.failed(t.stop(target, peer=inside(b)))
        assert (
            words == f"run {b} may not use 'stop' on run {target}: it is not in the subtree of {b}"
        )
        assert t.failed(t.pause(target, peer=inside(b))) == words.replace("stop", "pause")
    # one that it may stop does not help with one that it may not
    assert "may not use 'stop'" in t.failed(t.stop(d, other, peer=inside(b)))
    assert t.run(d).status is Status.RUNNING
    t >> t.stop(d, peer=inside(b)) << "terminate a3 SIGTERM" << "arm a3 grace +5"
    t >> t.stop(b, peer=inside(b)) << "terminate a2 SIGTERM" << "arm a2 grace +5"
    t.quiet()


def test_root_inside_a_run_is_inside_a_run() -> None:
    t = Transcript()
    a, other = t.start("a"), t.start("other")
    assert "may not use 'stop'" in t.failed(t.stop(other, peer=Peer(0, "root", run=a)))


def test_allow_and_deny_narrow_and_are_inherited() -> None:
    t = Transcript()
    a = t.start("a", deny=frozenset({"stop"}))
    b = t.start("b", inside(a), allow=frozenset({"stop", "spawn", "pause"}))
    d = t.start("d", inside(b))
    assert (
        t.failed(t.stop(d, peer=inside(b)))
        == f"run {b} was started without permission for 'stop' (--allow / --deny)"
    )
    assert "permission for 'resume'" in t.failed(t.resume(d, peer=inside(b)))
    t >> t.pause(d, peer=inside(d)) << f"freeze {d}" << f"arm {d} pause_max +86400"
    t.quiet()
    assert t.machine.why_refused(ANN, "stop", [a]) is None
    assert (
        t.machine.why_refused(inside(b), "config")
        == f"run {b} was started without permission for 'config' (--allow / --deny)"
    )
    assert t.machine.why_refused(inside("gone"), "list") is not None


def test_a_grace_outside_its_range_is_refused_with_the_range() -> None:
    t = Transcript()
    a = t.start("a")
    for grace in (-1.0, 60.5, float("nan"), float("inf")):
        for event in (t.stop(a, grace=grace), t.spawn("b", grace=grace)):
            (t >> event).skip()
            answer = t.answers[event.token]
            assert isinstance(answer, c.ErrorAnswer)
            assert answer.code is ErrorCode.BAD_REQUEST
            assert "is outside 0 s to 60 s" in answer.message
