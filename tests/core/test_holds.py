"""Why a run waits: one hold for each reason, and none where nothing holds it. That its status
follows from them is checked after each event of all tests of the core."""

from __future__ import annotations

from typing import Any

import msgspec

from sfad.core.state.holds import holds_of
from sfad.core.state.policy import CallBounds, CallPolicy
from sfad.core.state.run import Run, State
from sfad.durable.snapshots import encode, from_saved
from sfad.protocol.holds import HOLDS
from sfad.protocol.types import After, Hold, LimitKind, RunId, Status
from tests.core.holding import moment
from tests.core.transcript import Transcript, inside


def holds(t: Transcript, run: RunId) -> tuple[Hold, ...]:
    return t.machine.holds(t.run(run), t.at, moment)


def kinds(t: Transcript, run: RunId) -> list[tuple[str, str]]:
    return [(hold.kind, hold.blocks) for hold in holds(t, run)]


def asked(t: Transcript, name: str, **fields: Any) -> RunId:
    """Ask for a run, and commit it. Return its id."""
    (t >> t.spawn(name, **fields)).skip()
    run = next(run.id for run in t.machine.tree if run.name == name)
    (t >> t.committed(run)).skip()
    return run


def test_nothing_holds_a_run_that_runs() -> None:
    t = Transcript()
    assert holds(t, t.start("a")) == ()


def test_a_slot_a_group_and_other_runs() -> None:
    t = Transcript(trees_per_user=2, groups={"g": 1})
    a, b = t.start("a", group="g"), asked(t.later(5), "b", group="g")
    (group,) = holds(t, b)
    assert (group.kind, group.since, group.until) == ("group", moment(5), None)
    assert group.words == "of its group, you have 1 live tree, and groups.g.slots is 1"
    t.start("c")
    d = asked(t, "d")
    (slot,) = holds(t, d)
    assert (slot.kind, slot.blocks) == ("slot", "start")
    assert slot.words == "you have 2 live trees, and quotas.trees_per_user is 2"
    e = asked(t, "e", after=(After(run=a), After(run=b, ok=True)))
    (after,) = holds(t, e)
    assert (after.kind, after.words) == (
        "after", f"it starts when {a} has ended and {b} has completed"
    )  # fmt: skip
    (t >> t.exited(a, 0)).skip()
    assert kinds(t, b) == [], "it has the slot"


def test_a_queued_run_that_nothing_else_holds_waits_for_the_ledger() -> None:
    t = Transcript(trees_per_user=1)
    a = t.start("a")
    (t >> t.spawn("b")).skip()
    assert kinds(t, "a2") == [("slot", "start"), ("record", "start")]
    (t >> t.exited(a, 0)).skip()
    assert (t.run("a2").status, kinds(t, "a2")) == (Status.QUEUED, [("record", "start")])


def test_a_retry_tells_its_time() -> None:
    t = Transcript(retry_delay=8.0)
    a = t.start("a", attempts=3)
    (t >> t.later(2).exited(a, 1, empty=False)).skip()
    (clears,) = holds(t, a)
    assert (clears.kind, clears.blocks, clears.until) == ("retry", "start", None)
    assert clears.since == moment(2)
    assert clears.words == "attempt 1 of 3 has failed; what it has left is being stopped"
    (t >> t.later(1).emptied(a)).skip()
    (waits,) = holds(t, a)
    assert waits.words == "attempt 1 of 3 has failed; the next begins"
    retry_at = t.run(a).retry_at
    assert retry_at is not None
    assert (waits.since, waits.until) == (moment(2), moment(retry_at))
    t.later(8)
    (t >> t.fired(a, "retry")).skip()
    assert holds(t, a) == ()


def test_a_retry_whose_delay_is_over_tells_of_no_time_that_is_past() -> None:
    """The run above it is paused, so its next attempt waits for that alone."""
    t = Transcript(retry_delay=8.0)
    top = t.start("top")
    kid = t.start("kid", peer=inside(top), attempts=3)
    (t >> t.exited(kid, 1, empty=False)).skip()
    (t >> t.emptied(kid)).skip()
    (t >> t.pause(top)).skip()
    retry, above = holds(t, kid)
    assert (retry.kind, retry.until, above.kind) == (
        "retry",
        moment(t.run(kid).retry_at or 0),
        "ancestor",
    )
    (t >> t.later(20).fired(kid, "retry")).skip()
    retry, above = holds(t, kid)
    assert (retry.kind, retry.until, above.kind) == ("retry", None, "ancestor")
    assert retry.words == "attempt 1 of 3 has failed; the next begins when no pause holds it"


def test_a_limit_and_an_approval_tell_what_helps() -> None:
    t = Transcript(approval_timeout=60.0)
    a, b = t.start("a", limits="turns=10:pause"), t.start("b", limits="cost=1:request_increase")
    (t >> t.later(3).used(a, turns=11)).skip()
    (t >> t.used(b, cost=1.5)).skip()
    (limit,), (approval,) = holds(t, a), holds(t, b)
    assert (limit.kind, limit.limit_kind, limit.since) == ("limit", LimitKind.TURNS, moment(3))
    assert limit.words == "used 11 turns; its turns limit is 10, set by --limit (1 over)"
    assert limit.command == f"sfactl resume {a} [--limit turns=N]"
    assert (approval.kind, approval.until) == ("approval", moment(63))
    assert approval.words.endswith(
        "set by --limit (0.50 USD over; what its descendants used counts too)"
    )
    assert approval.command == f"sfactl approve {b} [--limit cost=N], or sfactl deny {b}"


def test_a_person_a_client_and_a_run_above() -> None:
    t = Transcript(pause_max=100.0)
    a, b = t.chain("a", "b")
    c = asked(t, "c", peer=inside(b), after=(After(run=t.start("z")),))
    (t >> t.later(7).pause(a)).skip()
    (person,) = holds(t, a)
    assert (person.kind, person.words, person.since) == ("person", "by hand", moment(7))
    assert (person.until, person.command) == (moment(107), f"sfactl resume {a}")
    (above,) = holds(t, b)
    assert (above.kind, above.blocks, above.command) == ("ancestor", "processes", f"sfactl why {a}")
    assert above.words == f"run {a} ('a') above it is paused: by hand"
    assert kinds(t, c) == [("after", "start"), ("ancestor", "start")]
    d = t.start("d")
    (t >> t.pause(d, suspended=True)).skip()
    assert kinds(t, d) == [("suspended", "processes")]


def test_a_call_that_waits_for_its_turn_holds_no_run() -> None:
    t = Transcript(calls_per_run=CallBounds(concurrent_calls=1), calls=CallPolicy(wait=60.0))
    a = t.start("a", limits="cost=50")
    name, _ = t.admitted(t.call(a))
    (t >> t.later(4).call(a)).skip()
    (t >> t.call(a)).skip()
    (call,) = holds(t, a)
    assert (t.run(a).status, call.kind, call.blocks, call.clock_stops) == (
        Status.RUNNING, "call", "call", False
    )  # fmt: skip
    assert call.words.startswith("2 model calls wait: run a1 ('a') has 1 model call under way, and")
    assert (call.since, call.until) == (moment(4), moment(64))
    (t >> t.called(name)).skip()
    (call,) = holds(t, a)
    assert call.words.startswith("1 model call waits: ")
    (t >> t.pause(a)).skip()
    assert kinds(t, a) == [("person", "processes")], "the call waits for the run"


def test_a_call_that_waits_for_what_others_have_reserved() -> None:
    t = Transcript(calls=CallPolicy(wait=60.0))
    a = t.start("a", limits="tokens=25000")
    t.admitted(t.call(a, 20_000))
    (t >> t.call(a, 20_000)).skip()
    (call,) = holds(t, a)
    assert call.words == (
        f"1 model call waits: the rest of the tokens limit of run {a} is reserved for other calls"
    )


def test_each_kind_says_what_ends_it_and_is_told_in_words() -> None:
    for kind, spec in HOLDS.items():
        assert spec.ends, kind
        shown = spec.told.format(words="W", until=spec.until.format("T"), command="C")
        assert "W" in shown
        assert spec.label.format(", 5s left").count("{") == 0


def test_what_an_older_daemon_has_saved_has_no_times() -> None:
    t = Transcript()
    a = t.start("a", limits="turns=10:pause")
    (t >> t.used(a, turns=11)).skip()
    saved = msgspec.msgpack.decode(encode(t.run(a)))
    del saved["queued_at"]
    for part in ("paused", "limit_hold"):
        saved[part].pop("since")
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(saved), type=State, dec_hook=from_saved)
    (hold,) = holds_of(Run(t.run(a).birth, state, None), t.machine.slots, None, t.at, moment)
    assert (hold.kind, hold.since) == ("limit", None)
