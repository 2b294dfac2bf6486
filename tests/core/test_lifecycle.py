"""Admission, attempts, pauses and the queue, as transcripts."""

from __future__ import annotations

import pytest

from sfad.core import commands as c
from sfad.core import events as e
from sfad.core.life.attempts import backoff
from sfad.core.state.run import TRANSITIONS, IllegalTransition
from sfad.protocol.types import ENDED, Status
from tests.core.policies import changed
from tests.docs.states import mermaid

from .transcript import BOB, Transcript, inside, seconds


def test_nothing_starts_before_the_ledger_has_it() -> None:
    t = Transcript(hear=frozenset({"save", "publish", "disarm", "ended"}))
    t >> t.spawn("a", timeout=seconds(9)) << "admit a1"
    t >> t.committed("a1") << "publish run_accepted a1" << "launch a1"
    t >> t.committed("a1")
    t >> t.launched("a1") << "arm a1 deadline +7.2" << "save a1 running" << "publish run_started a1"
    t << "reply 1 SpawnDone a1 running"
    t.later(3)
    t >> t.exited("a1") << "disarm a1 deadline" << "save a1 completed" << "publish run_completed a1"
    t << "release a1" << "ended a1 completed"
    t.quiet()


def test_a_commit_that_fails_gives_everything_back() -> None:
    t = Transcript(trees=1, spawns_per_hour=2, hear=frozenset({"save", "publish", "ended"}))
    t >> t.spawn("a") << "admit a1"
    t >> t.spawn("b") << "admit a2"
    t >> t.commit_failed("a1") << "reply 1 Failed unavailable" << "ended a1 failed"
    t.quiet()
    answer = t.answers[1]
    assert isinstance(answer, c.ErrorAnswer)
    assert "it could not be recorded: disk full" in answer.message
    # its slot went to the one that waited, which starts once it is committed itself
    t >> t.committed("a2") << "publish run_accepted a2" << "launch a2"
    t.quiet()
    # and its place in the rate is free
    t >> t.spawn("c") << "admit a3"
    t.quiet()
    assert t.machine.admitted == 2


def test_a_commit_that_fails_refunds_the_budgets_above() -> None:
    t = Transcript()
    a, b = t.chain("a", "b")
    for number in range(3, 6):
        (t >> t.spawn("d", inside(b))).skip()
        assert (t.run(a).admitted, t.run(b).admitted) == (2, 1)
        (t >> t.commit_failed(f"a{number}")).skip()
        assert (t.run(a).admitted, t.run(b).admitted) == (1, 0)


def test_a_commit_that_fails_in_a_tree_that_is_being_emptied() -> None:
    t = Transcript()
    a = t.start("a")
    (t >> t.spawn("b", inside(a))).skip()
    (t >> t.stop(a)).skip()
    t >> t.commit_failed("a2") << "reply 2 Failed unavailable"
    t >> t.exited(a) << "release a1" << "reply 3 StopDone a1"
    t.quiet()


# ---- attempts


def test_a_child_inherits_labels_and_its_own_win() -> None:
    t = Transcript(allow_detach=True)
    a = t.start("a", labels={"night": "7", "team": "blue"})
    b = t.start("b", inside(a), labels={"team": "red"})
    assert t.run(t.start("c", inside(b))).asked.identity.labels == {"night": "7", "team": "red"}
    assert t.run(t.start("d", inside(a), detach=True)).asked.identity.labels == {}
    many = {f"k{number}": "v" for number in range(63)}
    assert t.failed(t.spawn("e", inside(a), labels=many)) == (
        f"65 labels, with those of its parent {a}; at most 64: give it fewer of its own"
    )


def test_attempts_with_back_off() -> None:
    t = Transcript(hear=frozenset({"save", "ended"}))
    a = t.start("a", attempts=3, retry_delay=4.0)
    t >> t.exited(a, 1) << "terminate a1 SIGTERM" << "arm a1 grace +5" << "save a1 retrying"
    first, second = (backoff(a, attempt, first=4.0, cap=60.0) for attempt in (1, 2))
    t >> t.emptied(a) << f"arm a1 retry +{first:g}"
    t.later(first)
    t >> t.fired(a, "retry") << "launch a1"
    (t >> t.launched(a)).skip()
    assert t.run(a).attempt == 2
    (
        t
        >> t.exited(a, None, signal=9)
        << "terminate a1 SIGTERM"
        << "arm a1 grace +5"
        << "save a1 retrying"
    )
    t >> t.emptied(a)
    t.skip()
    assert t.run(a).retry_at == pytest.approx(t.at + second)
    t.later(second)
    (t >> t.fired(a, "retry")).skip()
    (t >> t.launched(a)).skip()
    t >> t.exited(a, 7) << "save a1 failed" << "release a1" << "ended a1 failed"
    t.quiet()


def test_success_ends_the_attempts() -> None:
    t = Transcript(hear=frozenset({"ended"}))
    a = t.start("a", attempts=3)
    t >> t.exited(a, 0) << "release a1" << "ended a1 completed"
    t.quiet()


def test_back_off_doubles_to_its_cap_and_is_spread() -> None:
    for attempt in range(1, 100):
        ceiling = min(60.0, 2.0 ** (attempt - 1))
        delays = {backoff(f"a{run}", attempt, first=1.0, cap=60.0) for run in range(20)}
        assert all(ceiling / 2 <= delay <= ceiling for delay in delays)
        assert len(delays) == 20
    assert backoff("a1", 1, first=0.0, cap=60.0) == 0


def test_what_an_attempt_left_is_gone_before_the_next() -> None:
    t = Transcript(hear=frozenset({"ended", "disarm"}))
    a, b = t.chain("a", "b", attempts=2)
    (t >> t.exited(a, 1, empty=False)).skip()
    assert t.run(b).status is Status.STOPPING
    t >> t.fired(a, "grace") << "kill a1" << "arm a1 survey +10"
    t >> t.exited(b, None, signal=9, empty=False)
    t >> t.emptied(a) << "release a2" << "ended a2 cancelled"
    # the ladder's timers must not wait for the ladder of the next attempt
    t << "disarm a1 grace" << "disarm a1 survey"
    t << f"arm a1 retry +{backoff(a, 1, first=1.0, cap=60.0):g}"
    t.quiet()
    assert t.run(a).status is Status.RETRYING


def test_the_time_limit_spans_attempts_and_stands_in_between() -> None:
    t = Transcript(hear=frozenset({"ended"}))
    a = t.start("a", attempts=5, timeout=seconds(30))
    t.later(20)
    (t >> t.exited(a, 1)).skip()
    (t >> t.emptied(a)).skip()
    t.later(100)
    t >> t.fired(a, "retry") << "launch a1"
    t.later(5)
    t >> t.launched(a) << "arm a1 deadline +4"
    t.later(4)
    t >> t.fired(a, "deadline") << "arm a1 deadline +6"
    t.later(6)
    t >> t.fired(a, "deadline") << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t >> t.exited(a, 1) << "release a1" << "ended a1 timeout"
    t.quiet()


def test_a_stop_while_retrying_ends_it() -> None:
    for cleared in (False, True):
        t = Transcript(hear=frozenset({"ended"}))
        a = t.start("a", attempts=5)
        (t >> t.exited(a, 1)).skip()
        if cleared:
            (t >> t.emptied(a)).skip()
        (t >> t.stop(a)).skip()
        t >> t.emptied(a) << "release a1" << "ended a1 cancelled" << "reply 2 StopDone a1"
        t >> t.fired(a, "retry")
        t.quiet()


def test_a_retrying_root_holds_its_slot() -> None:
    t = Transcript(trees=1)
    a = t.start("a", attempts=2)
    (t >> t.exited(a, 1)).skip()
    (t >> t.emptied(a)).skip()
    assert t.refused("b", queue=False).kind == "concurrency"


def test_a_pause_that_meets_the_end_of_an_attempt_is_answered() -> None:
    t = Transcript()
    a = t.start("a", attempts=2)
    t >> t.pause(a) << "freeze a1" << "arm a1 pause_max +86400"
    (
        t
        >> t.exited(a, None, signal=9)
        << "reply 2 Failed wrong_state"
        << "terminate a1 SIGTERM"
        << "arm a1 grace +5"
    )
    t >> e.Frozen(t.at, a)
    t.quiet()
    assert not t.run(a).paused


# ---- pause and resume


def test_pause_and_resume() -> None:
    t = Transcript(hear=frozenset({"publish", "disarm"}))
    a = t.start("a", timeout=seconds(30))
    t.later(10)
    (
        t
        >> t.pause(a)
        << "disarm a1 deadline"
        << "freeze a1"
        << "arm a1 pause_max +86400"
        << "publish run_paused a1"
    )
    t >> t.pause(a)
    t >> e.Frozen(t.at, a) << "reply 2 Changed a1 paused" << "reply 3 Changed a1 paused"
    t >> t.pause(a) << "reply 4 Changed a1 paused"
    t.later(1000)
    (
        t
        >> t.resume(a)
        << "disarm a1 pause_max"
        << "thaw a1"
        << "arm a1 deadline +14"
        << "publish run_resumed a1"
    )
    t << "reply 5 Changed a1 running"
    t.quiet()


def test_a_resume_before_it_stood_still_answers_the_pause() -> None:
    t = Transcript()
    a = t.start("a")
    t >> t.pause(a) << "freeze a1" << "arm a1 pause_max +86400"
    (
        t
        >> t.resume(a)
        << "reply 2 Failed wrong_state"
        << "thaw a1"
        << "arm a1 deadline +96"
        << "reply 3 Changed a1 running"
    )
    t >> e.Frozen(t.at, a)
    t.quiet()


def test_an_ancestors_clock_runs_while_only_its_child_is_paused() -> None:
    t = Transcript()
    a, b = t.chain("a", "b", timeout=seconds(30))
    (t >> t.pause(b)).skip()
    t.later(10)
    assert t.run(a).clock.elapsed(t.at) == 10
    assert t.run(b).clock.elapsed(t.at) == 0
    t.later(20)
    t >> t.fired(a, "deadline") << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t.quiet()
    assert not t.run(b).paused


def test_pausing_a_parent_stops_both_clocks() -> None:
    t = Transcript(hear=frozenset({"disarm"}))
    a, b = t.chain("a", "b", timeout=seconds(30))
    t.later(5)
    (
        t
        >> t.pause(a)
        << "disarm a1 deadline"
        << "disarm a2 deadline"
        << "freeze a1"
        << "arm a1 pause_max +86400"
    )
    t.later(100)
    assert t.run(b).status is Status.PAUSED
    assert [t.run(run).clock.elapsed(t.at) for run in (a, b)] == [5, 5]
    t >> t.resume(a)
    t.skip()
    assert [t.run(run).status for run in (a, b)] == [Status.RUNNING, Status.RUNNING]


def test_nested_pauses() -> None:
    t = Transcript()
    a, b = t.chain("a", "b")
    (t >> t.pause(b)).skip()
    (t >> t.pause(a)).skip()
    words = t.failed(t.resume(_third(t, b)))
    assert words == f"run a3 stands still because its ancestor {b} is paused; resume that one"
    (t >> t.resume(a)).skip()
    assert t.run(a).status is Status.RUNNING
    assert t.run(b).status is Status.PAUSED  # frozen on its own
    (t >> t.pause(a)).skip()
    (t >> t.resume(b)).skip()
    assert t.run(b).status is Status.PAUSED  # its ancestor stands
    assert (
        t.failed(t.resume(b))
        == f"run {b} stands still because its ancestor {a} is paused; resume that one"
    )
    (t >> t.resume(a)).skip()
    assert t.run(b).status is Status.RUNNING


def _third(t: Transcript, parent: str) -> str:
    """A run that was asked for just before its parent was frozen, and is launched into the frozen
    tree."""
    return t.start("third", inside(parent))


def test_a_run_launched_into_a_frozen_tree_stands_too() -> None:
    t = Transcript()
    a = t.start("a")
    (t >> t.spawn("b", inside(a))).skip()
    (t >> t.pause(a)).skip()
    t >> t.committed("a2") << "launch a2"
    t >> t.launched("a2") << "freeze a1" << "reply 2 SpawnDone a2 paused"
    t.quiet()
    t >> t.resume(a)
    t.skip()
    assert t.run("a2").clock.since == t.at


def test_a_retry_that_comes_due_under_a_frozen_ancestor_waits() -> None:
    t = Transcript()
    a = t.start("a")
    b = t.start("b", inside(a), attempts=2)
    (t >> t.exited(b, 1)).skip()
    (t >> t.emptied(b)).skip()
    (t >> t.pause(a)).skip()
    t.later(60)
    t >> t.fired(b, "retry")
    t.later(60)
    (
        t
        >> t.resume(a)
        << "reply 3 Failed wrong_state"
        << "thaw a1"
        << "arm a1 deadline +96"
        << "arm a2 retry +0"
    )
    t << "reply 4 Changed a1 running"
    t >> t.fired(b, "retry") << "launch a2"
    t.quiet()


def test_stopping_a_paused_run_gives_it_its_grace_but_not_under_a_frozen_ancestor() -> None:
    t = Transcript()
    a, b = t.chain("a", "b")
    (t >> t.pause(a)).skip()
    t >> t.stop(b) << "terminate a2 SIGTERM" << "arm a2 grace +0"
    t >> t.stop(a) << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t.quiet()


@pytest.mark.parametrize("state", ["accepted", "queued", "starting", "retrying", "stopping"])
def test_only_a_running_run_can_be_paused(state: str) -> None:
    t = Transcript(trees=1)
    if state == "queued":
        t.start("other")
    (t >> t.spawn("a", attempts=2)).skip()
    run = next(r.id for r in t.machine.tree if r.name == "a")
    if state != "accepted":
        (t >> t.committed(run)).skip()
    if state in {"retrying", "stopping"}:
        (t >> t.launched(run)).skip()
        (t >> (t.exited(run, 1) if state == "retrying" else t.stop(run))).skip()
    assert t.run(run).status == state
    assert t.failed(t.pause(run)) == f"run {run} is {state}; only a running one can be paused"
    assert t.failed(t.resume(run)) == f"run {run} is {state}, not paused"


def test_pausing_what_has_ended() -> None:
    t = Transcript()
    a = t.start("a")
    (t >> t.exited(a)).skip()
    assert t.failed(t.pause(a)) == f"run {a} has ended"
    assert t.failed(t.resume(a)) == f"run {a} has ended"


def test_a_suspended_run_says_so_and_is_continued_with_its_client() -> None:
    t = Transcript()
    a = t.start("a")
    t.later(5)
    t >> t.pause(a, suspended=True) << "freeze a1" << "arm a1 pause_max +86400"
    reason = t.run(a).shown_reason
    assert reason is not None
    assert (reason.kind, reason.message.partition(";")[0]) == (
        "suspended",
        "suspended at its terminal",
    )
    t.later(100)
    (t >> e.Frozen(t.at, a)).skip()
    (
        t
        >> t.fg(a)
        << "thaw a1"
        << "arm a1 deadline +91"
        << f"reply {t.token() - 1} Changed a1 running"
    )
    assert t.run(a).shown_reason is None


@pytest.mark.parametrize("suspended_first", [True, False])
def test_a_client_that_is_continued_undoes_no_pause_but_its_own(suspended_first: bool) -> None:
    t = Transcript()
    a = t.start("a", limits="turns=3:pause")
    for step in (0, 1) if suspended_first else (1, 0):
        (t >> (t.used(a, turns=4) if step else t.pause(a, suspended=True))).skip()
    (t >> t.fg(a)).skip()
    assert t.run(a).status is Status.PAUSED
    assert t.run(a).held_by is not None
    (t >> t.resume(a)).skip()
    assert t.run(a).status is Status.RUNNING
    t >> t.fg(a) << f"reply {t.token() - 1} Changed a1 running"


def test_a_childs_deadline_is_capped_by_its_parents() -> None:
    t = Transcript()
    a = t.start("a", timeout=seconds(30))
    t.later(10)
    b = t.start("b", inside(a), timeout=seconds(100))
    d = t.start("d", inside(a), timeout=seconds(5))
    assert [t.run(run).deadline for run in (a, b, d)] == [30, 30, 15]
    (t >> t.pause(b)).skip()
    assert [t.run(run).deadline for run in (a, b, d)] == [30, None, 15]


# ---- the queue


def test_higher_priority_first_then_first_come() -> None:
    t = Transcript(trees=1)
    t.start("first")
    for name, priority in (("low-1", 0), ("high-1", 5), ("low-2", 0), ("high-2", 5)):
        (t >> t.spawn(name, priority=priority)).skip()
    (t >> t.committed("a2", "a3", "a4", "a5")).skip()
    order = []
    running = "a1"
    for _ in range(4):
        commands = t.machine.handle(t.exited(running)).commands
        (running,) = [x.run.id for x in commands if isinstance(x, c.Launch)]
        order.append(t.run(running).name)
        (t >> t.launched(running)).skip()
    assert order == ["high-1", "high-2", "low-1", "low-2"]


def test_a_user_at_their_bound_does_not_hold_up_others() -> None:
    t = Transcript(trees_per_user=1, trees=2)
    a = t.start("a")
    (t >> t.spawn("a2", priority=9)).skip()
    b = t.start("b", BOB)
    (t >> t.spawn("b2", BOB)).skip()
    (t >> t.committed("a2", "a4")).skip()
    t >> t.exited(b) << "release a3" << "launch a4"
    t >> t.exited(a) << "release a1" << "launch a2"
    t.quiet()


def test_a_slot_is_kept_for_a_queued_run_that_is_not_committed_yet() -> None:
    t = Transcript(trees=1)
    a = t.start("a")
    (t >> t.spawn("b")).skip()
    t >> t.exited(a) << "release a1"
    assert t.machine.slots.count == 1
    t >> t.committed("a2") << "launch a2"
    t.quiet()


def test_more_room_after_a_reload_starts_waiting_trees() -> None:
    t = Transcript(trees=1)
    t.start("a")
    (t >> t.spawn("b")).skip()
    (t >> t.committed("a2")).skip()
    t >> e.Reconfigured(t.at, changed(t.machine.policy, trees=2)) << "launch a2"
    t.quiet()


# ---- the table


def test_the_table_refuses_and_changes_nothing() -> None:
    t = Transcript()
    run = t.run(t.start("a"))
    for status in set(Status) - TRANSITIONS[Status.RUNNING]:
        with pytest.raises(IllegalTransition, match=f"run a1 cannot go from running to {status}"):
            run.move(status)
        assert run.status is Status.RUNNING


def test_the_table_leads_everywhere_and_out_of_no_end() -> None:
    assert set(TRANSITIONS) == set(Status)
    reached = {Status.ACCEPTED}
    while new := {after for status in reached for after in TRANSITIONS[status]} - reached:
        reached |= new
    assert reached == {status for status in Status if not status.rejected}
    assert all(not TRANSITIONS[status] for status in Status if status.terminal)
    assert all(TRANSITIONS[status] for status in reached - ENDED)
    # every end goes through `stopping`
    assert all(
        not TRANSITIONS[status] & ENDED for status in Status if status is not Status.STOPPING
    )


def test_the_diagram_has_every_arrow() -> None:
    diagram = mermaid()
    for old, news in TRANSITIONS.items():
        for new in news:
            assert f"    {old} --> {new}\n" in diagram
