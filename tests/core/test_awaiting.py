"""Runs that start when others have ended, and groups with slots, as transcripts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from sfad.core import commands as c
from sfad.core import events as e
from sfad.core.state.access import Peer
from sfad.core.state.run import Run, State
from sfad.core.state.tree import Remembered
from sfad.protocol.types import After, Rule, RunId, Status

from .transcript import ANN, BOB, Transcript, inside


def after(*words: str) -> tuple[After, ...]:
    """`a1`, `a2:ok` as the option has it."""
    return tuple(After(run=word.removesuffix(":ok"), ok=word.endswith(":ok")) for word in words)


def waits(t: Transcript, name: str, *words: str, **asked: Any) -> RunId:
    """Start a run that waits for others; return its id."""
    event = t.spawn(name, after=after(*words), **asked)
    (t >> event).skip()
    (admitted,) = [run for run in t.machine.tree if run.admit_token == event.token]
    t >> t.committed(admitted.id) << f"reply {event.token} SpawnDone {admitted.id} queued"
    return admitted.id


def refused(t: Transcript, event: e.SpawnRequested) -> str:
    """Return why a request is not even a run."""
    (t >> event).skip()
    answer = t.answers[event.token]
    assert isinstance(answer, c.ErrorAnswer), answer
    return answer.message


# ---- the ends of others


@pytest.mark.parametrize(("word", "code"), [("a1", 0), ("a1", 1), ("a1:ok", 0)])
def test_a_run_starts_when_the_one_it_waits_for_has_ended(word: str, code: int) -> None:
    t = Transcript()
    a = t.start("a")
    b = waits(t, "b", word)
    assert [each.words for each in t.run(b).awaits] == [word]
    t >> t.exited(a, code) << "release a1" << "launch a2"
    assert t.run(b).awaits == ()
    t >> t.launched(b) << "arm a2 deadline +96"


@pytest.mark.parametrize("peer", [ANN, inside("a1")], ids=["a root", "a child"])
def test_a_run_that_waits_for_the_end_and_for_the_success_of_another_starts_once(
    peer: Peer,
) -> None:
    t = Transcript()
    t.start("root")
    first = t.start("first")
    second = waits(t, "second", "a2", "a2:ok", peer=peer)
    t >> t.exited(first) << "release a2" << "launch a3"
    (t >> t.launched(second)).skip()
    (t >> t.exited(second)).skip()
    assert t.start("third")


def test_a_run_that_waits_for_a_success_is_cancelled_by_a_failure() -> None:
    t = Transcript()
    a = t.start("a")
    b = waits(t, "b", "a1:ok")
    t >> t.exited(a, 3) << "release a1"
    reason = t.reasons[b]
    assert reason is not None
    assert (reason.kind, reason.by) == ("after", "a1")
    assert (
        reason.message
        == "run a1 ended as failed, and it was to start only if that completed (--after a1:ok)"
    )
    assert "run_cancelled a2" in t.events
    assert (t.machine.slots.count, t.machine.slots.queued) == (0, 0)


def test_a_stopped_run_did_not_succeed() -> None:
    t = Transcript()
    a = t.start("a")
    b = waits(t, "b", "a1:ok")
    (t >> t.stop(a)).skip()
    assert t.run(b).status is Status.QUEUED, "it has not ended yet"
    (t >> t.emptied(a)).skip()
    assert t.machine.tree.get(b) is None


def test_a_chain_starts_one_after_the_other() -> None:
    t = Transcript()
    a = t.start("a")
    b = waits(t, "b", "a1:ok")
    waits(t, "c", "a2:ok")
    t >> t.exited(a) << "release a1" << "launch a2"
    (t >> t.launched(b)).skip()
    t >> t.exited(b) << "release a2" << "launch a3"


def test_a_failure_cancels_the_whole_chain() -> None:
    t = Transcript()
    a = t.start("a")
    ids = [waits(t, f"n{number}", f"a{number}:ok") for number in range(1, 5)]
    anyway = waits(t, "anyway", "a5")
    t >> t.exited(a, 1) << "release a1" << "launch a6"
    assert all(
        reason is not None and reason.kind == "after" for reason in (t.reasons[run] for run in ids)
    )
    assert anyway == "a6"


def test_all_of_several_must_have_ended() -> None:
    t = Transcript()
    a, b = t.start("a"), t.start("b")
    run = waits(t, "c", "a1", "a2:ok", "a1")
    t >> t.exited(a, 1) << "release a1"
    assert [each.words for each in t.run(run).awaits] == ["a2:ok"]
    t >> t.exited(b) << "release a2" << "launch a3"


def test_an_end_before_the_ledger_has_the_admission_starts_nothing_too_early() -> None:
    t = Transcript()
    a = t.start("a")
    (t >> t.spawn("b", after=after("a1"))).skip()
    t >> t.exited(a) << "release a1"
    t >> t.committed("a2") << "launch a2"


def test_a_run_that_has_ended_is_waited_for_no_more() -> None:
    t = Transcript()
    event = t.spawn("b", after=after("a9:ok"))
    (
        t
        >> e.SpawnRequested(event.at, event.token, ANN, event.asked, {"a9": Status.COMPLETED})
        << "admit a1"
    )
    t >> t.committed("a1") << "launch a1"


@pytest.mark.parametrize(
    ("ended", "why"),
    [
        (
            {"a9": Status.TIMEOUT},
            "run a9 ended as timeout, so what waits for its success cannot start (--after a9:ok); ",
        ),
        ({}, "run a9 ended while the request was read; send it again"),
    ],
)
def test_what_can_never_start_is_refused(ended: dict[RunId, Status], why: str) -> None:
    t = Transcript()
    event = t.spawn("b", after=after("a9:ok"))
    assert refused(t, e.SpawnRequested(event.at, event.token, ANN, event.asked, ended)).startswith(
        why
    )
    assert not len(t.machine.tree)


def test_no_queue_and_after_exclude_each_other() -> None:
    t = Transcript()
    t.start("a")
    assert refused(t, t.spawn("b", after=after("a1"), queue=False)).startswith(
        "--after and --no-queue exclude each other"
    )


def test_a_run_does_not_wait_for_a_run_above_it() -> None:
    t = Transcript()
    root = t.start("root")
    child = t.start("child", inside(root))
    for above in (root, child):
        why = refused(t, t.spawn("x", inside(child), after=after(above)))
        assert why.startswith(
            "it would wait for itself: "
            f"run {above} is above it and ends only after it ('x' → {above})"
        )


def test_a_circle_through_other_runs_is_refused() -> None:
    t = Transcript()
    root = t.start("root")
    waits(t, "later", "a1")
    waits(t, "last", "a2")
    why = refused(t, t.spawn("x", inside(root), after=after("a3")))
    assert "('x' → a3 → a2 → a1)" in why
    (t >> t.spawn("y", after=after("a3"))).skip()
    assert t.run("a4").awaits, "from outside the tree there is no circle"


def test_a_child_waits_and_starts_below_its_parent() -> None:
    t = Transcript()
    root = t.start("root")
    first = t.start("first", inside(root))
    second = waits(t, "second", "a2:ok", peer=inside(root))
    t >> t.exited(first) << "release a2" << "launch a3"
    assert t.run(second).parent is t.run(root)


def test_the_end_of_its_parent_cancels_a_child_that_waits() -> None:
    t = Transcript()
    root = t.start("root")
    other = t.start("other")
    child = waits(t, "child", "a2", peer=inside(root))
    (t >> t.exited(root, empty=False)).skip()
    assert t.run(child).status is Status.STOPPING
    (t >> t.exited(other)).skip()
    (t >> t.emptied(root)).skip()
    assert not len(t.machine.tree)
    reason = t.reasons[child]
    assert reason is not None
    assert reason.kind == "ancestor"


def test_a_child_does_not_start_while_its_tree_is_paused() -> None:
    t = Transcript()
    root, other = t.start("root"), t.start("other")
    waits(t, "child", "a2", peer=inside(root))
    (t >> t.pause(root)).skip()
    t >> t.exited(other) << "release a2"
    t.quiet()
    t >> t.resume(root)
    assert t.left[-1] == "launch a3"
    t.skip()


def test_a_paused_run_has_not_ended() -> None:
    t = Transcript()
    a = t.start("a")
    b = waits(t, "b", "a1")
    (t >> t.pause(a)).skip()
    assert t.run(b).status is Status.QUEUED
    (t >> t.resume(a)).skip()
    t >> t.exited(a) << "release a1" << "launch a2"


def test_what_waits_for_a_run_has_no_slot_and_joins_the_queue_behind_the_others() -> None:
    t = Transcript(trees=1)
    a = t.start("a")
    waits(t, "b", "a1")
    (t >> t.spawn("c")).skip()
    (t >> t.committed("a3")).skip()
    assert t.machine.slots.place_of("a2") is None
    t >> t.exited(a) << "release a1" << "launch a3"
    place = t.machine.slots.place_of("a2")
    assert place is not None
    assert (place.key, place.place, place.waiting) == ("quotas.trees", 1, 1)
    (t >> t.launched("a3")).skip()
    t >> t.exited("a3") << "release a3" << "launch a2"


def test_runs_that_wait_for_others_count_in_the_bound_of_the_queue() -> None:
    t = Transcript(queued_per_user=1)
    t.start("a")
    waits(t, "b", "a1")
    assert t.refused("c", after=after("a1")).key == "quotas.queued_per_user"
    assert t.start("d"), "it needs no place in the queue"


def test_a_run_that_waits_can_be_stopped() -> None:
    t = Transcript()
    a = t.start("a")
    b = waits(t, "b", "a1")
    t >> t.stop(b) << "reply 3 StopDone a2"
    t >> t.exited(a) << "release a1"
    assert t.machine.slots.queued == 0


# ---- an earlier daemon


def adopted(
    t: Transcript, *runs: RunId, ended: dict[RunId, Status] | None = None, **numbers: Any
) -> Transcript:
    """Return the next daemon's machine, which has adopted these runs of `t`."""
    states = [t.run(run) for run in runs]
    held = [
        Run(run.birth, State(*(getattr(run, name) for name in State.__match_args__)), None)
        for run in states
    ]
    new = Transcript(**numbers)
    for run in held:
        run.adopt(77 if run.pid else None)
    remembered = tuple(Remembered(run, empty=not run.pid, startable=True) for run in held)
    (new >> e.RunsAdopted(new.at, remembered, "the daemon died", ended=ended or {})).skip()
    return new


def test_the_next_daemon_lets_it_wait_on() -> None:
    t = Transcript()
    t.start("a")
    waits(t, "b", "a1:ok")
    new = adopted(t, "a1", "a2")
    assert new.run("a2").status is Status.QUEUED
    new >> new.exited("a1") << "release a1" << "launch a2"


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED, None])
def test_what_ended_without_a_daemon_counts_and_what_is_unknown_is_no_success(
    status: Status | None,
) -> None:
    t = Transcript()
    t.start("a")
    waits(t, "b", "a1:ok")
    waits(t, "c", "a1")
    new = adopted(t, "a2", "a3", ended={"a1": status} if status is not None else {})
    assert new.run("a3").status is Status.STARTING
    assert (new.machine.tree.get("a2") is not None) == (status is Status.COMPLETED)


# ---- groups


GROUPS = {"gpu": 1, "big": 2}


def test_a_group_bounds_its_trees_and_holds_up_no_others() -> None:
    t = Transcript(groups=GROUPS)
    a = t.start("a", group="gpu")
    for name, priority in (("b", 0), ("c", 5)):
        (t >> t.spawn(name, group="gpu", priority=priority)).skip()
    (t >> t.committed("a2", "a3")).skip()
    place = t.machine.slots.place_of("a2")
    assert place == ("groups.gpu.slots", 1, 1, 2, 2)
    assert t.start("d"), "outside the group"
    assert t.start("e", group="big")
    assert t.start("f", BOB, group="gpu"), "each user has the slots of a group"
    t >> t.exited(a) << "release a1" << "launch a3"
    (t >> t.launched("a3")).skip()
    t >> t.exited("a3") << "release a3" << "launch a2"


def test_a_tree_in_a_group_needs_a_slot_of_the_user_too() -> None:
    t = Transcript(groups=GROUPS, trees_per_user=1)
    t.start("a")
    (t >> t.spawn("b", group="big")).skip()
    place = t.machine.slots.place_of("a2")
    assert place is not None
    assert place.key == "quotas.trees_per_user"


def test_a_reload_changes_the_slots_of_a_group() -> None:
    t = Transcript(groups=GROUPS)
    t.start("a", group="gpu")
    for name in ("b", "c"):
        (t >> t.spawn(name, group="gpu")).skip()
    (t >> t.committed("a2", "a3")).skip()
    t >> e.Reconfigured(t.at, replace(t.machine.policy, groups={"gpu": 2})) << "launch a2"
    t >> e.Reconfigured(t.at, replace(t.machine.policy, groups={})) << "launch a3"


def test_no_queue_refuses_a_tree_whose_group_is_full() -> None:
    t = Transcript(groups=GROUPS)
    t.start("a", group="gpu")
    refusal = t.refused("b", group="gpu", queue=False)
    assert (refusal.kind, refusal.key, refusal.value, refusal.limit) == (
        Rule.CONCURRENCY,
        "groups.gpu.slots",
        1,
        1,
    )
    assert "for user ann in the group 'gpu'" in refusal.detail
    assert refusal.possible_in_s == 120


def test_an_unknown_group_is_refused_by_name() -> None:
    t = Transcript(groups=GROUPS)
    why = refused(t, t.spawn("a", group="cpu"))
    assert why.startswith(
        "there is no group 'cpu'; choose from: gpu, big. "
        "To add it, set groups.cpu.slots in the config"
    )
    assert "there are none" in refused(Transcript(), Transcript().spawn("a", group="cpu"))


def test_a_group_is_for_trees() -> None:
    t = Transcript(groups=GROUPS)
    a = t.start("a")
    assert "a group bounds trees" in refused(t, t.spawn("b", inside(a), group="gpu"))


def test_what_waits_for_a_run_joins_the_queue_of_its_group() -> None:
    t = Transcript(groups=GROUPS)
    a = t.start("a", group="gpu")
    other = t.start("other")
    waits(t, "b", "a2", group="gpu")
    (t >> t.exited(other)).skip()
    place = t.machine.slots.place_of("a3")
    assert place is not None
    assert place.key == "groups.gpu.slots"
    t >> t.exited(a) << "release a1" << "launch a3"


def test_the_next_daemon_knows_the_groups() -> None:
    t = Transcript(groups=GROUPS)
    t.start("a", group="gpu")
    (t >> t.spawn("b", group="gpu")).skip()
    (t >> t.committed("a2")).skip()
    new = adopted(t, "a1", "a2", groups=GROUPS)
    assert new.machine.slots.group_count("ann", "gpu") == 1
    new >> new.exited("a1") << "release a1" << "launch a2"


# ---- a time


NOW = 1_800_014_400.0
"""What the clock of the machine shows when a request of a transcript comes."""


def at(seconds: float) -> After:
    return After(run="", at=datetime.fromtimestamp(NOW + seconds, UTC))


def clock(t: Transcript, run: RunId, seconds: float) -> e.TimerFired:
    return replace(t.fired(run, "at"), unix_time=NOW + seconds)


def test_a_run_waits_for_a_time_which_is_looked_at_again_and_again() -> None:
    t = Transcript()
    (t >> t.spawn("a", after=(at(90),))) << "admit a1" << "arm a1 at +60"
    (t >> t.committed("a1")).skip()
    (hold,) = t.machine.holds(t.run("a1"), t.at, lambda _at: datetime.now(UTC))
    assert (hold.kind, hold.blocks, hold.until) == ("at", "start", at(90).at)
    (t.later(60) >> clock(t, "a1", 60)) << "arm a1 at +30"
    (t.later(30) >> clock(t, "a1", 20)) << "arm a1 at +60"  # the clock was set
    (t >> clock(t, "a1", 91)) << "launch a1"


def test_it_waits_for_a_time_and_a_run() -> None:
    t = Transcript()
    a = t.start("a")
    (t >> t.spawn("b", after=(After(run=a), at(10)))).skip()
    (t >> t.committed("a2")).skip()
    (t >> t.exited(a)).skip()
    assert t.run("a2").status is Status.QUEUED
    (t >> clock(t, "a2", 10)) << "launch a2"
    (t >> t.spawn("c", after=(at(-1),))) << "admit a3"


def test_a_time_is_kept_by_the_next_daemon() -> None:
    t = Transcript()
    (t >> t.spawn("a", after=(at(10),))).skip()
    (t >> t.committed("a1")).skip()
    later = Transcript()
    (later >> e.RunsAdopted(0.0, (Remembered(t.run("a1"), startable=True),), "it died")).skip()
    (later >> clock(later, "a1", 5)) << "arm a1 at +5"
    (later >> clock(later, "a1", 10)) << "launch a1"
