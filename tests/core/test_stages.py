"""What is executed in a run beside its command, as transcripts: checks after it, a setup before."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from sfad.core import events as e
from sfad.core.life.attempts import backoff
from sfad.core.life.stages import activity, checks_of
from sfad.core.state.request import Stage
from sfad.core.state.run import ProcessExit
from sfad.core.state.tree import Remembered
from sfad.protocol.checks import to_repair
from sfad.protocol.types import Reason, RunId, Status

from .transcript import Transcript, inside, seconds

TESTS, LINT = Stage("check", "make test"), Stage("check", "lint")
SETUP = Stage("setup", "cp ../.env .", before=True)
WAIT = backoff("a1", 1, first=1.0, cap=60.0)


def begin(*stages: Stage, **asked: Any) -> tuple[Transcript, RunId]:
    t = Transcript(hear=frozenset({"ended"}))
    return t, t.start("a", stages=stages, **asked)


def go_on(t: Transcript, run: RunId) -> None:
    """Execute what comes next in the run."""
    (t >> t.fired(run, "retry")) << f"launch {run}"
    (t >> t.launched(run)).skip()


def reason_of(t: Transcript, run: RunId) -> Reason:
    found = t.reasons[run]
    assert found is not None
    return found


def test_a_run_is_completed_when_all_have_succeeded_in_their_order() -> None:
    t, a = begin(TESTS, LINT)
    (t >> t.exited(a)).skip()
    assert t.run(a).latest.next_stage == 1
    go_on(t, a)
    assert (t.run(a).status, activity(t.run(a))) == (Status.RUNNING, "check")
    (t.later(41) >> t.exited(a)).skip()
    go_on(t, a)
    assert [check.state for check in checks_of(t.run(a))] == ["passed", "running"]
    t >> t.exited(a) << "release a1" << "ended a1 completed"
    assert t.progress == ["check 1 of 2: make test", "check 2 of 2: lint"]
    end = t.published[-1]
    assert (end.type, end.message) == ("run_completed", "checked: make test, 41s; lint, 0.0s")


def test_what_the_command_has_left_is_stopped_before() -> None:
    t, a = begin(TESTS)
    (t >> t.exited(a, empty=False)) << "terminate a1 SIGTERM" << "arm a1 grace +5"
    (t >> t.emptied(a)) << "arm a1 retry +0"
    go_on(t, a)


@pytest.mark.parametrize(
    ("code", "signal", "how"),
    [
        (2, None, "exit code 2"),
        (None, 9, "killed by SIGKILL"),
        (127, None, "exit code 127, a command was not found"),
        (126, None, "exit code 126, a command was not executable"),
    ],
)
def test_one_that_fails_fails_the_run(code: int | None, signal: int | None, how: str) -> None:
    t, a = begin(TESTS, LINT)
    (t >> t.exited(a)).skip()
    go_on(t, a)
    t.later(3)
    failed = replace(t.exited(a, code, signal=signal), last_lines=("1 failed", "Error 2"))
    t >> failed << "release a1" << "ended a1 failed"
    reason = reason_of(t, a)
    assert reason.message == f"the check 'make test' failed after 3.0s: {how}: Error 2"
    assert (reason.kind, reason.command, reason.exit_code, reason.signal) == (
        "check",
        "make test",
        code,
        signal,
    )
    assert (reason.elapsed_s, reason.lines) == (3.0, ["1 failed", "Error 2"])


@pytest.mark.parametrize("resume", [True, False])
def test_another_attempt_is_told_what_has_failed(resume: bool) -> None:
    t, a = begin(TESTS, attempts=2, resume=resume)
    (t >> e.AgentSessionSaved(t.at, a, "5f2e")).skip()
    (t >> t.exited(a)).skip()
    go_on(t, a)
    (t >> replace(t.exited(a, 1), last_lines=("1 failed",))) << f"arm a1 retry +{WAIT:g}"
    assert activity(t.run(a)) is None
    (t >> t.fired(a, "retry")) << "launch a1"
    latest = t.run(a).latest
    assert (latest.number, latest.stage, latest.resumes) == (2, 0, resume)
    assert latest.told is not None
    assert "the check 'make test' failed after 0.0s (exit code 1)" in latest.told
    assert "\n1 failed\n" in latest.told
    (t >> t.launched(a)).skip()
    (t >> t.exited(a)).skip()
    go_on(t, a)
    t >> t.exited(a, 1) << "release a1" << "ended a1 failed"


@pytest.mark.parametrize("code", [126, 127])
def test_no_agent_repairs_the_typo_of_a_person(code: int) -> None:
    t, a = begin(TESTS, attempts=3)
    (t >> t.exited(a)).skip()
    go_on(t, a)
    t >> t.exited(a, code) << "release a1" << "ended a1 failed"


def test_one_that_cannot_be_launched_starts_no_attempt() -> None:
    t, a = begin(TESTS, attempts=3)
    (t >> t.exited(a)).skip()
    (t >> t.fired(a, "retry")) << "launch a1"
    t >> e.LaunchFailed(t.at, a, 2, "no such directory") << "release a1" << "ended a1 failed"
    assert reason_of(t, a).message == (
        "the check 'make test' failed after 0.0s: it was not executed: no such directory"
    )


def test_a_run_that_has_not_succeeded_is_not_checked() -> None:
    t, a = begin(TESTS)
    t >> t.exited(a, 3) << "release a1" << "ended a1 failed"
    t, a = begin(TESTS)
    (t >> t.said_by_agent(a, failed="no credit")).skip()
    t >> t.exited(a) << "release a1" << "ended a1 failed"
    t, a = begin(TESTS)
    t.run(a).cut = Reason(kind="limit", message="its last word was cut")
    t >> t.exited(a) << "release a1" << "ended a1 failed"
    t, a = begin(TESTS)
    (t >> t.stop(a)).skip()
    (t >> t.exited(a)).skip()
    assert t.events[-1] == "run_cancelled a1" or reason_of(t, a).kind == "stop"


def test_a_stop_ends_a_check_and_what_follows() -> None:
    t, a = begin(TESTS, LINT)
    (t >> t.exited(a)).skip()
    go_on(t, a)
    (t >> t.stop(a)) << "terminate a1 SIGTERM" << "arm a1 grace +5"
    (t >> t.exited(a, None, signal=15)).skip()
    assert reason_of(t, a).kind == "stop"
    t, a = begin(TESTS)
    (t >> t.exited(a, empty=False)).skip()
    (t >> t.stop(a)).skip()
    (t >> t.emptied(a)).skip()
    assert reason_of(t, a).kind == "stop"


def test_a_check_takes_of_the_time_of_the_run() -> None:
    t, a = begin(TESTS, timeout=seconds(10))
    (t.later(4) >> t.exited(a)).skip()
    go_on(t, a)
    (t.later(6) >> t.fired(a, "deadline")).skip()
    (t >> t.exited(a, None, signal=15)).skip()
    assert (reason_of(t, a).kind, reason_of(t, a).limit_kind) == ("limit", "time")


def test_one_that_takes_too_long_has_failed() -> None:
    t, a = begin(replace(TESTS, seconds=3.0), attempts=2)
    (t.later(4) >> t.exited(a)).skip()
    (t >> t.fired(a, "retry")) << "launch a1"
    (t >> t.launched(a)) << "arm a1 deadline +3"
    late = replace(t.later(3).fired(a, "deadline"), last_lines=("still here",))
    (t >> late) << "terminate a1 SIGTERM" << "arm a1 grace +5"
    (t >> t.exited(a, None, signal=15)).skip()
    (t >> t.emptied(a)).skip()
    assert "took longer than 3s: still here; the next begins" in t.progress[-1]
    assert t.run(a).status is Status.RETRYING


def test_a_pause_halts_the_time_of_a_check() -> None:
    t, a = begin(replace(TESTS, seconds=3.0))
    (t >> t.exited(a)).skip()
    go_on(t, a)
    (t.later(2) >> t.pause(a)).skip()
    (t.later(9) >> t.fired(a, "deadline")).skip()
    assert t.run(a).status is Status.PAUSED
    (t >> t.resume(a)).skip()
    (t.later(0.9) >> t.fired(a, "deadline")).skip()
    assert t.run(a).status is Status.RUNNING
    (t.later(0.1) >> t.fired(a, "deadline")).skip()
    assert t.run(a).status is Status.STOPPING


def test_a_paused_ancestor_holds_the_next_one() -> None:
    t, a = begin()
    b = t.start("b", inside(a), stages=(TESTS,))
    (t >> t.exited(b, empty=False)).skip()
    (t >> t.pause(a)).skip()
    (t >> t.emptied(b)).skip()
    (t >> t.fired(b, "retry")).quiet()
    (t >> t.resume(a)).skip()
    go_on(t, b)


def test_an_agent_that_has_said_its_final_result_and_does_not_exit_is_stopped_and_checked() -> None:
    t, a = begin(TESTS)
    (t >> t.said_by_agent(a, finished=True)).skip()
    (t.later(30) >> t.fired(a, "result")) << "terminate a1 SIGTERM" << "arm a1 grace +5"
    (t >> t.exited(a, None, signal=15)).skip()
    (t >> t.emptied(a)).skip()
    go_on(t, a)
    t >> t.exited(a) << "release a1" << "ended a1 completed"


def test_a_setup_comes_before_the_first_attempt_only() -> None:
    t, a = begin(SETUP, TESTS, attempts=2)
    assert activity(t.run(a)) == "setup"
    assert t.progress == ["setup: cp ../.env ."]
    (t >> t.exited(a)).skip()
    go_on(t, a)
    assert t.run(a).latest.stage == 0
    (t >> t.exited(a, 3)).skip()
    (t >> t.emptied(a)).skip()
    go_on(t, a)
    assert (t.run(a).attempt, t.run(a).latest.stage) == (2, 0)
    (t >> t.exited(a)).skip()
    go_on(t, a)
    t >> t.exited(a) << "release a1" << "ended a1 completed"
    assert t.events.count("run_started a1") in (0, 2)


def test_a_setup_that_fails_fails_the_run() -> None:
    t, a = begin(SETUP, TESTS, attempts=3)
    t >> t.exited(a, 1) << "release a1" << "ended a1 failed"
    assert (reason_of(t, a).kind, reason_of(t, a).exit_code) == ("setup", 1)


@pytest.mark.parametrize("stage", [1, 2])
def test_how_it_ended_is_not_known_so_a_check_is_executed_again_and_a_setup_is_not(
    stage: int,
) -> None:
    t, a = begin(SETUP, TESTS)
    for _ in range(2 * (stage - 1)):
        (t >> t.exited(a)).skip()
        go_on(t, a)
    run = t.run(a)
    later = Transcript(hear=frozenset({"ended"}))
    run.adopt(None)
    left = Remembered(run, empty=True, startable=True, begun=True)
    (later >> e.RunsAdopted(0.0, (left,), "the daemon died")).skip()
    if stage == 1:
        assert run.status is Status.LOST
        return
    assert run.latest.exit == ProcessExit(0, None)
    go_on(later, a)
    later >> later.exited(a) << "release a1" << "ended a1 completed"


def test_the_words_for_an_agent_name_the_command_and_how_it_failed() -> None:
    reason = Reason(
        kind="check", message="", command="make\n test", signal=9, elapsed_s=41.2, lines=["a", "b"]
    )
    assert to_repair(reason).startswith(
        "You ended, and then the check 'make test' failed after 41s (signal 9). The last lines of "
        "its output:\n\na\nb\n\n"
    )
