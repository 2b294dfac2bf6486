"""A daemon adopts the runs of an earlier one, as transcripts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from sfad.core import commands as c
from sfad.core import events as e
from sfad.core.life.stopping import GONE
from sfad.core.machine import Machine
from sfad.core.state.run import Birth, ProcessExit, Run, Rung, State
from sfad.core.state.tree import Remembered, rebased
from sfad.durable.snapshots import from_saved, to_saved
from sfad.protocol.types import Action, ApiTrouble, ErrorCode, LimitKind, RunId, Status

from .transcript import ANN, BOB, Sums, Transcript, inside, seconds

T = TypeVar("T")


class Life(Transcript):
    """A transcript with several daemons, one after the other."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.numbers: dict[str, Any] = {}

    def copies(self) -> list[tuple[Birth, State]]:
        """Return what is saved of all live runs, encoded and decoded."""
        runs = list(self.machine.tree)
        return [(_again(run.birth, Birth), _again(run, State)) for run in runs]

    def next_daemon(
        self,
        *alive: RunId,
        populated: Iterable[RunId] = (),
        startable: Iterable[RunId] = (),
        starting: Iterable[RunId] = (),
        unbegun: Iterable[RunId] = (),
        copies: list[tuple[Birth, State]] | None = None,
        reboot: bool = False,
        continued: bool = False,
        learnt: Iterable[e.Event] = (),
    ) -> e.RunsAdopted:
        """Return the next daemon's first event. `alive`: runs whose main process lives;
        `populated`: with other processes."""
        found: dict[RunId, Run] = {}
        for birth, state in copies if copies is not None else self.copies():
            birth, state = rebased(birth, state, self.at) if reboot else (birth, state)
            found[birth.id] = Run(birth, state, found.get(birth.parent or ""))
        there = {*alive, *populated, *starting}
        there |= {above.id for name in there for above in found[name].lineage}
        runs = []
        for run in found.values():
            run.adopt(88 if run.id in alive else None)
            runs.append(
                Remembered(
                    run,
                    empty=run.id not in there,
                    starting=run.id in starting,
                    startable=run.id in set(startable),
                    begun=run.id not in set(unbegun) and run.status is not Status.ACCEPTED,
                )
            )
        tickets = self.machine.tickets() if continued else ()
        self.machine = Machine(self.machine.policy, **self.halves, **self.numbers)
        self.machine.purses()
        return e.RunsAdopted(
            self.at, tuple(runs), "the daemon died", continued, tickets, tuple(learnt)
        )

    def back(self, run: RunId, client: int) -> e.ClientBack:
        """A client has reconnected."""
        return e.ClientBack(self.at, run, client)

    def gone(self, client: int) -> e.ClientGone:
        """A connection ended."""
        return e.ClientGone(self.at, client)

    def ended(self, run: RunId, status: Status) -> str:
        """Check how a run has ended; return the message of its reason."""
        assert self.machine.tree.get(run) is None
        assert f"run_{status} {run}" in self.events
        reason = self.reasons[run]
        return reason.message if reason is not None else ""


def _again(thing: T, kind: type[T]) -> T:
    return msgspec.msgpack.decode(
        msgspec.msgpack.encode(thing, enc_hook=to_saved), type=kind, dec_hook=from_saved
    )


# ---- what is saved


def test_birth_and_state_are_loaded_as_they_were_saved() -> None:
    t = Life()
    asked: dict[str, Any] = {
        "labels": {"x": "y"},
        "blocked_tools": ("Bash",),
        "allowed_models": ("claude-*",),
        "deny": frozenset({"spawn"}),
        "on_limit": Action.WARN,
    }
    a = t.start(
        "a",
        limits="turns=10:pause memory=1048576:warn cost=2:request_increase",
        tied_to=3,
        attempts=2,
        **asked,
    )
    t.reserved(t.reserve(a, 0.5, 3, role="planning"))
    (t >> t.used(a, turns=12, cost=3.0)).skip()
    (t >> t.level(a, "memory", 5, refused=True)).skip()
    (t >> e.ToolsCalled(t.at, a, ("Bash",))).skip()
    (t >> t.pause(a)).skip()
    run = Run(*t.copies()[0], None)
    assert run.birth == t.run(a).birth
    assert run.held_by is run.limits[LimitKind.COST], (
        "one object, so that a change of the limit is a change of the hold"
    )
    assert _differences(run, t.run(a)) == []
    (t >> t.stop(a)).skip()
    (t >> t.exited(a, 3, empty=False)).skip()
    (t >> t.fired(a, "grace")).skip()
    assert _differences(t.copies()[0][1], t.run(a)) == []


def _differences(one: State, other: State) -> list[str]:
    return [name for name in State.__match_args__ if getattr(one, name) != getattr(other, name)]


def test_what_a_descendant_changes_in_its_ancestors_is_saved() -> None:
    t = Life()
    a, b = t.chain("a", "b")
    (t >> t.report(b, cost=0.5)).skip()
    t >> t.spawn("d", inside(b)) << "admit a3"
    assert t.changed == {"a1", "a2"}
    t >> t.commit_failed("a3") << "reply 4 Failed unavailable"
    assert t.changed == {"a1", "a2", "a3"}
    t >> t.exited(b) << "release a2"
    assert t.changed == {"a1", "a2"}
    t.quiet()
    assert t.run(a).account.ended == {"cost": 500_000_000}


def test_grace_and_pauses_are_saved() -> None:
    """The stateful test checks the rest."""
    t = Life()
    a, b = t.chain("a", "b")
    events: list[e.Event] = [
        t.pause(a),
        t.pause(b),
        t.pause(b),
        e.Frozen(t.at, b),
        t.resume(b),
        t.resume(a),
    ]
    for event in [*events, t.stop(a, grace=30), t.stop(a, grace=3)]:
        (t >> event).skip()
    assert t.copies()[0][1].ladder is not None


# ---- running


def test_a_running_run_continues_and_its_clock_was_never_halted() -> None:
    t = Life()
    a = t.start("a", timeout=seconds(10))
    t.later(3)
    t >> t.next_daemon(a) << "thaw a1" << "arm a1 deadline +5"
    t.quiet()
    assert t.run(a).status is Status.RUNNING
    assert t.run(a).pid == 88
    assert t.run(a).clock.elapsed(t.at) == 3
    t.later(7)
    (t >> t.fired(a, "deadline")).skip()
    assert t.run(a).outcome is Status.TIMEOUT


def test_a_deadline_that_has_passed_meanwhile_comes_at_once() -> None:
    t = Life()
    a = t.start("a", timeout=seconds(10))
    t.later(100)
    t >> t.next_daemon(a) << "thaw a1" << "arm a1 deadline +-92"
    t >> t.fired(a, "deadline") << "terminate a1 SIGTERM" << "arm a1 grace +5"
    assert t.run(a).outcome is Status.TIMEOUT


def test_a_run_without_processes_is_lost() -> None:
    t = Life()
    a = t.start("a", attempts=3)
    t >> t.next_daemon(startable=[a]) << "release a1"
    t.quiet()
    assert t.ended(a, Status.LOST) == "the daemon died while it ran; how it ended cannot be known"
    assert t.machine.slots.count == 0


def test_a_run_without_processes_ended_as_its_agent_said() -> None:
    t = Life(purses=Sums)
    a, b, d = t.start("a"), t.start("b", attempts=3), t.start("d")
    learnt: list[e.Event] = [
        t.used(a, turns=7, cost=0.5, partial=False),
        t.said_by_agent(a, finished=True),
        t.said_by_agent(b, finished=True, failed="no credit"),
        t.used(d, cost=0.25),
    ]
    recovered = t.next_daemon(learnt=learnt, startable=[b])
    (t >> recovered).skip()
    died = "the daemon died while it ran; how it ended cannot be known"
    assert t.ended(a, Status.COMPLETED) == f"{died}; before, the agent had printed its final result"
    assert (
        t.ended(b, Status.FAILED)
        == f"{died}; before, the agent had printed that it failed (no credit)"
    )
    assert t.ended(d, Status.LOST) == died
    uses = {
        one.run.id: one.run.account.sources["stream"] for one in recovered.runs if one.run.id != b
    }
    assert (uses[a].turns, uses[a].partial, uses[d].partial) == (7, False, True)
    assert t.charged == {"ann": 0.75}


def test_an_unknown_exit_is_what_the_agent_said() -> None:
    t = Life()
    a = t.start("a")
    (t >> t.next_daemon(a)).skip()
    (t >> t.said_by_agent(a, finished=True)).skip()
    (t >> t.exited(a, None)).skip()
    assert t.ended(a, Status.COMPLETED).endswith("; before, the agent had printed its final result")


def test_trouble_with_the_model_is_published_saved_and_part_of_the_reason() -> None:
    t = Life()
    a = t.start("a", attempts=2)
    for count in range(1, 7):
        (
            t >> t.said_by_agent(a, trouble=ApiTrouble(count=count, status=529, error="overloaded"))
        ).skip()
    assert t.progress == [
        f"the API answered 529 {times}: overloaded" for times in ("once", "twice", "four times")
    ]
    (t >> t.next_daemon(a)).skip()
    assert t.run(a).latest.trouble == ApiTrouble(count=6, status=529, error="overloaded")
    (t >> t.stop(a)).skip()
    (t >> t.emptied(a)).skip()
    assert (
        t.ended(a, Status.CANCELLED)
        == "stopped by user ann (SIGTERM); the API answered 529 six times: overloaded"
    )


def test_an_attempt_does_not_inherit_the_trouble_of_the_one_before() -> None:
    t = Life()
    a = t.start("a", attempts=2)
    (t >> t.said_by_agent(a, trouble=ApiTrouble(count=1, status=529))).skip()
    (t >> t.exited(a, 1)).skip()
    (t >> t.emptied(a)).skip()
    (t >> t.fired(a, "retry")).skip()
    assert t.run(a).latest.trouble is None
    (t >> t.said_by_agent(a)).skip()
    assert "the API answers again" not in t.progress


def test_descendants_of_a_lost_run_are_stopped() -> None:
    t = Life()
    a, b = t.chain("a", "b")
    (
        t
        >> t.next_daemon(b)
        << "thaw a2"
        << "arm a2 deadline +96"
        << "terminate a1 SIGTERM"
        << "arm a1 grace +5"
    )
    t.quiet()
    assert (t.run(a).outcome, t.run(b).outcome) == (Status.LOST, Status.CANCELLED)
    assert t.run(a).latest.exit == ProcessExit(None, None)
    t >> t.emptied(a) << "release a2" << "release a1"
    t.quiet()


def test_other_processes_of_a_lost_run_are_stopped() -> None:
    t = Life()
    a = t.start("a")
    t >> t.next_daemon(populated=[a]) << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t.quiet()
    t >> t.emptied(a) << "release a1"
    t.ended(a, Status.LOST)


def test_children_end_before_their_parents() -> None:
    t = Life()
    a, b, d = t.chain("a", "b", "d")
    t >> t.next_daemon() << "release a3" << "release a2" << "release a1"
    t.quiet()
    assert [t.reasons[run].kind for run in (a, b, d) if t.reasons[run]] == ["daemon"] * 3  # type: ignore[union-attr]


def test_a_child_is_lost_and_its_parent_continues() -> None:
    t = Life()
    a, b = t.chain("a", "b")
    t >> t.next_daemon(a) << "release a2" << "thaw a1" << "arm a1 deadline +96"
    t.quiet()
    t.ended(b, Status.LOST)
    assert t.run(a).children == {}


def test_an_unknown_exit_is_no_success_and_is_not_retried() -> None:
    t = Life()
    a = t.start("a", attempts=3)
    (t >> t.next_daemon(a, startable=[a])).skip()
    t >> t.exited(a, None) << "release a1"
    t.quiet()
    message = "it outlived the daemon that started it, and the kernel does not tell how it ended"
    assert t.ended(a, Status.LOST) == message


def test_an_agent_that_has_printed_its_result_gets_its_whole_wait_again() -> None:
    t = Life(result_wait=30.0)
    a = t.start("a")
    b = t.start("b", takes_input=True)
    for run in (a, b):
        (t >> t.said_by_agent(run, finished=True)).skip()
    (
        t
        >> t.next_daemon(a, b)
        << "thaw a2"
        << "arm a2 deadline +96"
        << "arm a1 result +30"
        << "thaw a1"
        << "arm a1 deadline +96"
    )
    t.quiet()
    t.later(30)
    (t >> t.fired(a, "result")).skip()
    assert t.run(a).outcome is Status.COMPLETED


def test_what_an_agent_said_is_saved() -> None:
    t = Life()
    a = t.start("a")
    (t >> t.said_by_agent(a, failed="no credit")).skip()
    (t >> t.next_daemon(a, continued=True)).skip()
    (t >> t.exited(a, 0)).skip()
    assert t.ended(a, Status.FAILED) == "exited with code 0, but said that it failed: no credit"


# ---- starting


def test_a_run_that_may_have_run_is_not_launched_again() -> None:
    t = Life()
    (t >> t.spawn("a", attempts=2)).skip()
    t >> t.committed("a1") << "launch a1"
    t >> t.next_daemon(startable=["a1"]) << "release a1"
    t.quiet()
    assert (
        t.ended("a1", Status.LOST)
        == "the daemon died while it was being started; whether it ran cannot be known"
    )


def test_a_run_whose_gate_stayed_closed_has_failed_and_its_trampoline_is_stopped() -> None:
    t = Life()
    (t >> t.spawn("a", attempts=2)).skip()
    t >> t.committed("a1") << "launch a1"
    copies = t.copies()
    t >> t.next_daemon(startable=["a1"], unbegun=["a1"]) << "release a1"
    t.quiet()
    assert (
        t.ended("a1", Status.FAILED)
        == "the daemon died while it was being started; nothing of it has run"
    )
    (t >> t.next_daemon(startable=["a1"], unbegun=["a1"], populated=["a1"], copies=copies)).skip()
    assert t.run("a1").status is Status.STOPPING
    (t >> t.emptied("a1")).skip()
    assert (
        t.ended("a1", Status.FAILED)
        == "the daemon died while it was being started; nothing of it has run"
    )


def test_a_run_that_was_launched_meanwhile_is_running() -> None:
    t = Life()
    (t >> t.spawn("a")).skip()
    (t >> t.committed("a1")).skip()
    t.later(2)
    t >> t.next_daemon("a1") << "arm a1 deadline +96" << "thaw a1"
    t.quiet()
    assert t.run("a1").status is Status.RUNNING
    assert t.run("a1").started_at == 2
    assert t.events[-1] == "run_started a1"


def test_a_launch_before_a_re_execution_is_still_reported() -> None:
    t = Life()
    (t >> t.spawn("a")).skip()
    (t >> t.committed("a1")).skip()
    t >> t.next_daemon(starting=["a1"], continued=True)
    t.quiet()
    assert t.run("a1").status is Status.STARTING
    t >> t.launched("a1") << "arm a1 deadline +96" << "reply 1 SpawnDone a1 running"
    t.quiet()


def test_a_run_that_is_launched_below_a_paused_one_is_paused() -> None:
    t = Life()
    a = t.start("a")
    (t >> t.spawn("b", inside(a))).skip()
    (t >> t.committed("a2")).skip()
    (t >> t.pause(a)).skip()
    copies = t.copies()
    (
        t
        >> t.next_daemon(a, starting=["a2"], copies=copies, continued=True)
        << "freeze a1"
        << "arm a1 pause_max +86400"
    )
    t >> t.launched("a2") << "freeze a1" << "reply 2 SpawnDone a2 paused"
    t.quiet()
    # the same, but the daemon died after the launch
    (
        t
        >> t.next_daemon(a, "a2", copies=copies)
        << "freeze a1"
        << "freeze a1"
        << "arm a1 pause_max +86400"
    )
    t.quiet()
    assert t.run("a2").status is Status.PAUSED
    assert t.run("a2").clock.since is None


def test_a_run_that_was_not_recorded_is_not_launched() -> None:
    t = Life(trees=1)
    (t >> t.spawn("a")).skip()  # its admission is not committed
    (t >> t.spawn("b")).skip()  # it waits, and that is not committed either
    t >> t.next_daemon(startable=["a1", "a2"])
    t.quiet()
    assert (
        t.ended("a1", Status.FAILED)
        == "the daemon died before it was started; nothing of it has run"
    )
    assert (
        t.ended("a2", Status.FAILED)
        == "the daemon died before it was started; nothing of it has run"
    )
    assert t.answers == {}
    assert t.machine.slots.count == 0


def test_a_client_is_told_of_a_failure_across_a_re_execution() -> None:
    t = Life()
    (t >> t.spawn("a")).skip()
    t >> t.next_daemon(continued=True) << "reply 1 SpawnDone a1 failed"
    t.quiet()


# ---- queued


def test_the_queue_keeps_its_order() -> None:
    t = Life(trees=1)
    a = t.start("a")
    for name, priority in (("b", 0), ("d", 0), ("f", 1)):
        (t >> t.spawn(name, priority=priority)).skip()
    (t >> t.committed("a2", "a3", "a4")).skip()
    t >> t.next_daemon(a, startable=["a2", "a3", "a4"]) << "thaw a1" << "arm a1 deadline +96"
    t.quiet()
    for last, following in ((a, "a4"), ("a4", "a2"), ("a2", "a3")):
        t >> t.exited(last) << f"release {last}" << f"launch {following}"
        (t >> t.launched(following)).skip()


def test_a_queued_run_is_launched_when_a_slot_is_free() -> None:
    t = Life(trees=1)
    t.start("a")
    (t >> t.spawn("b")).skip()
    (t >> t.committed("a2")).skip()
    t >> t.next_daemon(startable=["a2"]) << "release a1" << "launch a2"
    t.quiet()
    assert t.machine.slots.count == 1


def test_a_queued_run_whose_command_was_not_saved_has_failed() -> None:
    t = Life(trees=1)
    t.start("a")
    (t >> t.spawn("b")).skip()
    (t >> t.committed("a2")).skip()
    t >> t.next_daemon("a1") << "thaw a1" << "arm a1 deadline +96"
    message = (
        "the daemon died before it was started, and what it was to be started with is gone; "
        "nothing of it has run"
    )
    assert t.ended("a2", Status.FAILED) == message


def test_no_queued_run_is_launched_before_every_run_was_continued() -> None:
    t = Life(trees_per_user=1)
    t.start("a")
    (t >> t.spawn("b")).skip()
    (t >> t.committed("a2")).skip()
    (t >> t.exited("a1")).skip()
    (t >> t.launched("a2")).skip()
    (t >> t.spawn("d")).skip()
    (t >> t.committed("a3")).skip()
    t.start("e", BOB)
    copies = sorted(t.copies(), key=lambda copy: copy[0].id != "a3")
    # a3 waits, and the runs that had slots are gone
    (
        t
        >> t.next_daemon(startable=["a3"], copies=copies)
        << "release a4"
        << "release a2"
        << "launch a3"
    )
    t.quiet()
    assert t.run("a3").status is Status.STARTING


# ---- paused


def test_a_paused_run_stays_paused_and_its_clock_halted() -> None:
    t = Life(pause_max=100.0)
    a, b = t.chain("a", "b")
    t.later(2)
    (t >> t.pause(a)).skip()
    t.later(50)
    t >> t.next_daemon(a, b) << "freeze a1" << "arm a1 pause_max +50"
    t.quiet()
    assert [t.run(run).status for run in (a, b)] == [Status.PAUSED] * 2
    assert t.run(a).clock.elapsed(t.at) == 2
    (
        t
        >> t.resume(a)
        << "thaw a1"
        << "arm a1 deadline +94"
        << "arm a2 deadline +94"
        << f"reply {t.token() - 1} Changed a1 running"
    )
    t.quiet()


def test_a_paused_run_without_processes_is_lost() -> None:
    t = Life()
    a, b = t.chain("a", "b")
    (t >> t.pause(a)).skip()
    t >> t.next_daemon(a) << "freeze a1" << "release a2" << "arm a1 pause_max +86400"
    t.ended(b, Status.LOST)
    t >> t.next_daemon() << "freeze a1" << "arm a1 pause_max +86400" << "release a1"
    t.ended(a, Status.LOST)


def test_a_pause_within_a_pause() -> None:
    t = Life()
    a, b = t.chain("a", "b")
    (t >> t.pause(b)).skip()
    (t >> t.pause(a)).skip()
    (
        t
        >> t.next_daemon(a, b)
        << "freeze a1"
        << "freeze a2"
        << "arm a2 pause_max +86400"
        << "arm a1 pause_max +86400"
    )
    t.quiet()


def test_a_pause_request_is_answered_across_a_re_execution() -> None:
    t = Life()
    a = t.start("a")
    (t >> t.pause(a)).skip()
    copies = t.copies()
    (t >> t.next_daemon(a, copies=copies, continued=True)).skip()
    t >> e.Frozen(t.at, a) << "reply 2 Changed a1 paused"
    # no client waits for a daemon that has died
    (t >> t.next_daemon(a, copies=copies)).skip()
    t >> e.Frozen(t.at, a)
    t.quiet()


def test_the_wait_for_an_approval_stays_bounded() -> None:
    t = Life(approval_timeout=60.0)
    a = t.start("a", limits="turns=3:request_increase")
    (t >> t.used(a, turns=4)).skip()
    t.later(20)
    t >> t.next_daemon(a) << "freeze a1" << "arm a1 pause_max +86380" << "arm a1 approval +40"
    t.later(40)
    (t >> t.fired(a, "approval")).skip()
    assert t.run(a).outcome is Status.FAILED


def test_an_approval_that_was_requested_before_a_launch_or_between_two() -> None:
    t = Life(approval_timeout=60.0)
    asked: dict[str, Any] = {"limits": "turns=3:request_increase", "attempts": 2}
    a = t.start("a", **asked)
    (t >> t.exited(a, 1)).skip()
    (t >> t.emptied(a)).skip()
    (t >> t.used(a, turns=4)).skip()
    (t >> t.spawn("b", **asked)).skip()
    (t >> t.committed("a2")).skip()
    (t >> t.used("a2", turns=4)).skip()
    wait = _wait(t, a)
    t >> t.next_daemon(startable=[a], starting=["a2"], continued=True)
    t << "arm a2 approval +60" << "arm a1 approval +60" << f"arm a1 retry +{wait:g}"
    t.quiet()
    # the daemon died after the launch: the run is paused as soon as it is adopted
    (t >> t.next_daemon("a2", startable=[a])).skip()
    assert t.run("a2").status is Status.PAUSED


def test_a_limit_that_pauses_has_no_approval_timer() -> None:
    t = Life()
    a = t.start("a", limits="turns=3:pause")
    (t >> t.used(a, turns=4)).skip()
    t >> t.next_daemon(a) << "freeze a1" << "arm a1 pause_max +86400"
    t.quiet()
    (t >> t.resume(a, room="turns=9")).skip()
    assert t.run(a).status is Status.RUNNING


# ---- stopping


def test_a_stop_continues_within_its_grace() -> None:
    t = Life()
    a, b = t.chain("a", "b")
    (t >> t.stop(a, signal=2)).skip()
    t.later(3)
    t >> t.next_daemon(a, b) << "terminate a1 SIGINT" << "arm a1 grace +2"
    t.quiet()
    t >> t.emptied(a) << "release a2" << "release a1"
    t.quiet()
    t.ended(a, Status.CANCELLED)


def test_a_grace_that_has_passed_meanwhile_is_over() -> None:
    for late in (5, 6):
        t = Life()
        a = t.start("a")
        (t >> t.stop(a)).skip()
        t.later(late)
        t >> t.next_daemon(a) << "kill a1" << "arm a1 survey +10"
        t.quiet()
        stop = t.run(a).ladder
        assert stop is not None
        assert (stop.rung, stop.killed_at) == (Rung.KILLED, late)


def test_kills_continue_and_survivors_are_looked_for_by_the_first_kill() -> None:
    t = Life()
    a = t.start("a")
    (t >> t.stop(a, grace=0)).skip()
    (t >> t.fired(a, "grace")).skip()
    t.later(4)
    t >> t.next_daemon(a) << "kill a1" << "arm a1 survey +6"
    t.later(20)
    t >> t.next_daemon(a) << "kill a1" << "arm a1 survey +0"
    t >> t.fired(a, "survey") << "survey a1" << "arm a1 survey +1"
    t >> t.surveyed(a, a1=88)
    assert t.events[-1] == "alert_survivors a1"
    # that was published once, but a client that has asked since may still wait for the list
    t >> t.stop(a) << "survey a1"
    t >> t.next_daemon(a, continued=True) << "kill a1" << "arm a1 survey +0" << "survey a1"
    t >> t.surveyed(a, a1=88) << "reply 3 StopDone a1:88"
    assert t.events.count("alert_survivors a1") == 1


def test_a_stop_that_was_completed_meanwhile() -> None:
    t = Life()
    a, b = t.chain("a", "b")
    (t >> t.stop(a)).skip()
    t >> t.next_daemon() << "release a2" << "release a1"
    t.quiet()
    t.ended(a, Status.CANCELLED)
    t.ended(b, Status.CANCELLED)


def test_a_ladder_of_its_own_within_another() -> None:
    t = Life()
    a, b = t.chain("a", "b")
    (t >> t.stop(a, grace=30)).skip()
    (t >> t.stop(b, grace=2)).skip()
    copies = t.copies()
    (
        t
        >> t.next_daemon(a, b, copies=copies)
        << "terminate a2 SIGTERM"
        << "arm a2 grace +2"
        << "terminate a1 SIGTERM"
        << "arm a1 grace +30"
    )
    t.quiet()
    (
        t
        >> t.next_daemon(a, copies=copies)
        << "release a2"
        << "terminate a1 SIGTERM"
        << "arm a1 grace +30"
    )
    t.quiet()


def test_a_run_that_was_to_end_with_a_lost_ancestor_still_ends() -> None:
    t = Life()
    a, b = t.chain("a", "b")
    (t >> t.spawn("d", inside(a))).skip()
    (t >> t.stop(a)).skip()
    copies = [copy for copy in t.copies() if copy[0].id != a]
    t >> t.next_daemon(b, copies=copies) << "terminate a2 SIGTERM" << "arm a2 grace +0"
    t.quiet()
    t.ended("a3", Status.CANCELLED)


def test_its_own_end_is_known_while_its_other_processes_live() -> None:
    t = Life()
    a = t.start("a")
    (t >> t.exited(a, 0, empty=False)).skip()
    t >> t.next_daemon(populated=[a]) << "terminate a1 SIGTERM" << "arm a1 grace +5"
    (t >> t.emptied(a)).skip()
    t.ended(a, Status.COMPLETED)


def test_stop_requests_are_answered_once_across_a_re_execution() -> None:
    t = Life()
    a, b = t.start("a"), t.start("b")
    t >> t.exited(b, 0, empty=False)
    t.skip()
    (t >> t.stop(a, b)).skip()
    (t >> t.stop(a)).skip()
    (t >> t.exited(b, 0)).skip()
    t.later(1)
    (t >> t.emptied(b)).skip()
    t.later(1)
    (t >> t.next_daemon(a, continued=True)).skip()
    t >> t.emptied(a) << "release a1" << "reply 3 StopDone a2 a1" << "reply 4 StopDone a1"
    t.quiet()
    answer = t.answers[3]
    assert isinstance(answer, c.StopDone)
    assert answer.elapsed_s == 2


# ---- between two attempts


def test_the_leftovers_of_a_failed_attempt_are_still_cleared() -> None:
    t = Life()
    a, b = t.chain("a", "b", attempts=2, retry_delay=4.0)
    (t >> t.exited(a, 1, empty=False)).skip()
    copies = t.copies()
    (
        t
        >> t.next_daemon(b, startable=[a], copies=copies)
        << "terminate a1 SIGTERM"
        << "arm a1 grace +5"
    )
    (
        t
        >> t.next_daemon(startable=[a], copies=copies)
        << "release a2"
        << f"arm a1 retry +{_wait(t, a):g}"
    )
    t.quiet()
    t >> t.fired(a, "retry") << "launch a1"


def _wait(t: Life, run: RunId) -> float:
    due = t.run(run).retry_at
    assert due is not None
    return due - t.at


def test_a_retry_whose_command_was_not_saved_is_lost() -> None:
    t = Life()
    a, b = t.chain("a", "b", attempts=2)
    (t >> t.exited(a, 1, empty=False)).skip()
    copies = t.copies()
    t >> t.next_daemon(b, copies=copies) << "terminate a1 SIGTERM" << "arm a1 grace +5"
    assert t.run(a).outcome is Status.LOST
    (t >> t.emptied(a)).skip()
    message = (
        "the daemon died between two attempts, and what the next was to be started with is gone"
    )
    assert t.ended(a, Status.LOST) == message
    t.reasons.clear()
    t >> t.next_daemon(copies=copies) << "release a2" << "release a1"
    assert t.ended(a, Status.LOST) == message


def test_the_next_attempt_begins_when_it_was_due() -> None:
    t = Life()
    a = t.start("a", attempts=2, retry_delay=4.0)
    (t >> t.exited(a, 1)).skip()
    (t >> t.emptied(a)).skip()
    wait, copies = _wait(t, a), t.copies()
    t >> t.next_daemon(startable=[a], copies=copies) << f"arm a1 retry +{wait:g}"
    t.quiet()
    t >> t.next_daemon(copies=copies) << "release a1"
    t.ended(a, Status.LOST)
    t.later(60)
    t >> t.next_daemon(startable=[a], copies=copies) << "arm a1 retry +0"
    t >> t.fired(a, "retry") << "launch a1"
    assert t.run(a).attempt == 2


def test_how_the_last_attempt_ended_is_known() -> None:
    t = Life()
    a = t.start("a", attempts=2)
    run = t.run(a)
    (t >> t.exited(a, 7)).skip()
    (t >> t.emptied(a)).skip()
    event = t.next_daemon()
    run = event.runs[0].run
    (t >> event).skip()
    assert run.status is Status.LOST
    assert run.latest.exit == ProcessExit(7, None)


def test_the_next_attempt_waits_for_a_paused_ancestor() -> None:
    t = Life()
    a = t.start("a")
    b = t.start("b", inside(a), attempts=2)
    (t >> t.exited(b, 1)).skip()
    (t >> t.emptied(b)).skip()
    (t >> t.pause(a)).skip()
    t.later(60)
    t >> t.next_daemon(a, startable=[b]) << "freeze a1" << "arm a1 pause_max +86340"
    t.quiet()
    t >> t.resume(a) << "thaw a1" << "arm a1 deadline +96" << "arm a2 retry +0"
    t.skip()


# ---- sums


def test_an_open_reservation_still_counts_against_each_limit() -> None:
    t = Life()
    a, b = t.chain("a", "b", limits="cost=1")
    t.reserved(t.reserve(b, 0.75))
    (t >> t.next_daemon(a, b)).skip()
    assert t.not_reserved(t.reserve(b, 0.5)).whose == a


def test_use_of_descendants_is_summed_again_from_what_was_saved_of_each() -> None:
    t = Life()
    a, b = t.chain("a", "b")
    d = t.start("d", inside(b))
    stale = {copy[0].id: copy for copy in t.copies()}
    (t >> t.report(d, cost=0.5)).skip()
    (t >> t.used(b, cost=0.25)).skip()
    fresh = {copy[0].id: copy for copy in t.copies()}
    (t >> t.next_daemon(a, b, d, copies=[stale[a], stale[b], fresh[d]])).skip()
    assert [t.run(run).account.below.get("cost") for run in (a, b)] == [500_000_000] * 2  # type: ignore[call-overload]
    (t >> t.used(b, cost=0.25)).skip()
    assert t.run(a).account.below == {"cost": 750_000_000}
    # what an ended run has used is only in its ancestors' accounts
    (t >> t.exited(d, None)).skip()
    (t >> t.next_daemon(a, b)).skip()
    assert t.run(a).account.below == {"cost": 750_000_000}
    assert t.run(a).account.ended == t.run(b).account.ended == {"cost": 500_000_000}


def test_numbers_and_counts_of_descendants_continue() -> None:
    t = Life(trees=2)
    a, b = t.chain("a", "b")
    (t >> t.exited(b)).skip()
    (t >> t.spawn("d", inside(a))).skip()
    (t >> t.committed("a3")).skip()
    assert t.run(a).admitted == 2
    t.numbers["next_number"] = 2
    (t >> t.next_daemon(a, "a3")).skip()
    assert t.run(a).admitted == 2
    assert t.run(a).children == {"a3": t.run("a3")}
    assert t.start("e") == "a4"
    assert t.machine.slots.count == 2
    assert t.machine.slots.user_count("ann") == 2


def test_a_number_that_was_used_up_elsewhere_is_not_used_again() -> None:
    t = Life()
    a = t.start("a")
    t.numbers["next_number"] = 9
    (t >> t.next_daemon(a)).skip()
    assert t.start("b") == "a9"


# ---- clients


def test_a_client_that_is_suspended_before_it_came_back_is_not_expected_back() -> None:
    t = Life(hear=frozenset({"disarm"}))
    a = t.start("a", tied_to=7)
    (t >> t.next_daemon(a)).skip()
    t >> t.pause(a, suspended=True)
    assert "disarm a1 reconnect" in t.left
    t.skip()
    t >> t.resume(a)
    assert "arm a1 reconnect +10" in t.left
    t.skip()


def test_a_suspended_client_is_not_expected_back_before_its_run_is_resumed() -> None:
    t = Life()
    a = t.start("a", tied_to=3)
    (t >> t.pause(a, suspended=True)).skip()
    t >> t.next_daemon(a) << "freeze a1" << "arm a1 pause_max +86400"
    t.quiet()
    assert t.run(a).suspended
    (
        t
        >> t.resume(a)
        << "arm a1 reconnect +10"
        << "thaw a1"
        << "arm a1 deadline +96"
        << f"reply {t.token() - 1} Changed a1 running"
    )
    (t >> t.pause(a, suspended=True)).skip()
    t >> t.back(a, 7)
    (t >> t.gone(7)).skip()
    assert t.run(a).status is Status.STOPPING


def test_a_run_whose_client_does_not_come_back_is_stopped() -> None:
    t = Life()
    a = t.start("a", tied_to=3)
    t >> t.next_daemon(a) << "arm a1 reconnect +10" << "thaw a1" << "arm a1 deadline +96"
    t.quiet()
    assert t.run(a).tied_to == GONE
    # this number is another connection's now
    t >> t.gone(3)
    t.quiet()
    t.later(10)
    t >> t.fired(a, "reconnect") << "terminate a1 SIGTERM" << "arm a1 grace +5"
    reason = t.run(a).shown_reason
    assert reason is not None
    assert reason.kind == "client"
    assert "did not come back within 10 s" in reason.message
    assert t.run(a).outcome is Status.CANCELLED


def test_a_client_that_comes_back() -> None:
    t = Life(hear=frozenset({"disarm"}))
    a = t.start("a", tied_to=3)
    (t >> t.next_daemon(a)).skip()
    t >> t.back(a, 7) << "disarm a1 reconnect"
    assert t.changed == {"a1"}
    t >> t.back("a9", 7)
    t.quiet()
    assert t.run(a).tied_to == 7
    (t >> t.gone(7)).skip()
    assert t.run(a).status is Status.STOPPING
    (t >> t.emptied(a)).skip()


def test_a_client_that_comes_back_before_it_was_missed() -> None:
    t = Life()
    a = t.start("a", tied_to=3)
    t >> t.back(a, 7)
    t >> t.gone(3)
    t.quiet()
    t >> t.gone(7) << "terminate a1 SIGTERM" << "arm a1 grace +5"


def test_connections_survive_a_re_execution_and_a_run_without_its_client_still_waits() -> None:
    t = Life()
    a, b = t.start("a", tied_to=3), t.start("b", tied_to=4)
    (t >> t.next_daemon(a, b, continued=True)).skip()
    t >> t.gone(3) << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t >> t.next_daemon(a, b) << "arm a1 reconnect +10" << "arm a2 reconnect +10"
    t.skip()
    t.later(4)
    (
        t
        >> t.next_daemon(b, populated=[a], continued=True)
        << "arm a1 reconnect +10"
        << "arm a2 reconnect +10"
    )
    t.skip()


# ---- after a reboot


def test_running_runs_are_lost_after_a_reboot() -> None:
    t = Life()
    t.later(1000)
    a, b = t.start("a"), t.start("b")
    t.later(5)
    (t >> t.stop(b)).skip()
    t.at = 20.0
    event = t.next_daemon(reboot=True)
    runs = [one.run for one in event.runs]
    t >> event << "release a2" << "release a1"
    t.quiet()
    t.ended(a, Status.LOST)
    t.ended(b, Status.CANCELLED)
    assert [run.clock.counted for run in runs] == [0, 5]
    assert [run.birth.created_at for run in runs] == [run.started_at for run in runs] == [20, 20]


def test_waits_begin_again_after_a_reboot() -> None:
    t = Life(trees=1, approval_timeout=60.0)
    t.later(1000)
    a = t.start("a", attempts=2, limits="turns=3:request_increase")
    (t >> t.exited(a, 1)).skip()
    (t >> t.emptied(a)).skip()
    (t >> t.used(a, turns=4)).skip()
    (t >> t.spawn("b")).skip()
    (t >> t.committed("a2")).skip()
    t.at = 20.0
    (
        t
        >> t.next_daemon(startable=[a, "a2"], reboot=True)
        << "arm a1 approval +60"
        << "arm a1 retry +0"
    )
    t.quiet()
    assert t.run("a2").status is Status.QUEUED
    assert t.run(a).started_at == 20
    hold = t.run(a).limit_hold
    assert hold is not None
    assert hold.until == 80


def _rebased(t: Life, run: RunId) -> tuple[Birth, State]:
    return rebased(t.run(run).birth, _again(t.run(run), State), 20.0)


def test_times_of_another_clock_are_not_used() -> None:
    t = Life()
    t.later(1000)
    a = t.start("a")
    (t >> t.pause(a)).skip()
    birth, state = _rebased(t, a)
    assert birth.created_at == state.started_at == 20.0
    assert state.paused is not None
    assert state.paused.until is None
    # should a container be what was restarted
    t >> t.next_daemon(a, reboot=True) << "freeze a1" << "arm a1 pause_max +86400"
    (t >> t.stop(a)).skip()
    (t >> t.spawn("b")).skip()
    ladder = _rebased(t, a)[1].ladder
    assert ladder is not None
    assert (ladder.grace_ends_at, ladder.killed_at) == (20.0, None)
    (t >> t.fired(a, "grace")).skip()
    ladder = _rebased(t, a)[1].ladder
    assert ladder is not None
    assert ladder.killed_at == 20.0
    assert _rebased(t, "a2")[1].started_at is None


# ---- requests to the next daemon


def test_the_next_daemon_answers_like_the_first() -> None:
    t = Life()
    a = t.start("a", limits="turns=3:pause", tied_to=None)
    (t >> t.used(a, turns=4)).skip()
    (t >> t.next_daemon(a)).skip()
    (t >> t.approve(a, peer=ANN)).skip()
    answer = t.answers[t.last_token]
    assert isinstance(answer, c.ErrorAnswer)
    assert answer.code is ErrorCode.WRONG_STATE
    assert t.run(a).held_by is t.held(a, "turns")
