"""The first rung of the stop ladder: programs whose main process is interrupted alone, as
transcripts."""

from __future__ import annotations

import pytest

from sfad.core.state.naming import program_name
from sfad.protocol.types import Status

from .test_adopting import Life
from .transcript import Transcript, inside

CLAUDE = ("claude", "-p", "hi")


def test_main_process_has_its_time_then_all_are_signalled() -> None:
    t = Transcript()
    a = t.start("a", argv=CLAUDE)
    t >> t.stop(a) << "interrupt a1" << "arm a1 polite +1"
    t.later(1)
    t >> t.fired(a, "polite") << "terminate a1 SIGTERM" << "arm a1 grace +4"
    t.later(4)
    t >> t.fired(a, "grace") << "kill a1" << "arm a1 survey +10"


def test_one_that_ends_at_sigint_is_cancelled_whatever_it_returns() -> None:
    t = Transcript(hear=frozenset({"disarm"}))
    a = t.start("a", argv=CLAUDE)
    run = t.run(a)
    (t >> t.stop(a)).skip()
    t.later(0.2)
    t >> t.exited(a, 0) << "disarm a1 polite" << "disarm a1 grace" << "disarm a1 survey"
    t << "release a1" << "reply 2 StopDone a1"
    t.quiet()
    assert run.status is Status.CANCELLED


def test_descendants_that_are_left_are_signalled_at_once() -> None:
    t = Transcript()
    a = t.start("a", argv=CLAUDE)
    (t >> t.stop(a, signal=2)).skip()
    t.later(0.2)
    t >> t.exited(a, 0, empty=False) << "terminate a1 SIGINT" << "arm a1 grace +4.8"
    t >> t.emptied(a) << "release a1" << "reply 2 StopDone a1"
    t.quiet()


def test_a_breach_too() -> None:
    t = Transcript()
    a = t.start("a", argv=CLAUDE, limits="turns=1")
    t >> t.used(a, turns=2) << "interrupt a1" << "arm a1 polite +1"
    run = t.run(a)
    (t >> t.exited(a, 0)).skip()
    assert run.status is Status.FAILED


def test_every_claude_of_a_tree_has_its_own_first_step_and_there_is_one_grace() -> None:
    t = Transcript()
    a = t.start("lead")
    b = t.start("b", inside(a), argv=CLAUDE)
    d = t.start("d", inside(b), argv=("npx", "-y", "@anthropic-ai/claude-code@latest"))
    t >> t.stop(a) << "interrupt a2" << "interrupt a3" << "arm a1 polite +1"
    t >> t.exited(d, 0) << "release a3"
    t.later(0.5)
    t >> t.exited(b, 1) << "release a2" << "terminate a1 SIGTERM" << "arm a1 grace +4.5"


@pytest.mark.parametrize("child_first", [True, False])
def test_a_stop_of_several_runs_interrupts_each_once(child_first: bool) -> None:
    t = Transcript()
    a, other = t.start("a", argv=CLAUDE), t.start("other", argv=CLAUDE)
    b = t.start("b", inside(a), argv=CLAUDE)
    t >> t.stop(*([b, a] if child_first else [a, b]), other)
    if child_first:
        t << f"interrupt {b}" << f"arm {b} polite +1" << f"interrupt {a}"
    else:
        t << f"interrupt {a}" << f"interrupt {b}"
    t << f"arm {a} polite +1" << f"interrupt {other}" << f"arm {other} polite +1"
    t.quiet()


def test_second_stop_and_no_grace_skip_it() -> None:
    t = Transcript()
    a, b = t.start("a", argv=CLAUDE), t.start("b", argv=CLAUDE)
    (t >> t.stop(a)).skip()
    t.later(0.5)
    t >> t.stop(a) << "terminate a1 SIGTERM" << "arm a1 grace +4.5"
    t >> t.stop(b, grace=0) << "terminate a2 SIGTERM" << "arm a2 grace +0"


def test_it_is_part_of_the_grace_and_may_be_turned_off() -> None:
    t = Transcript()
    t >> t.stop(t.start("a", argv=CLAUDE, grace=0.5)) << "interrupt a1" << "arm a1 polite +0.5"
    for never in (Transcript(polite=0.0), Transcript(interrupted=frozenset())):
        (
            never
            >> never.stop(never.start("a", argv=CLAUDE))
            << "terminate a1 SIGTERM"
            << "arm a1 grace +5"
        )
    codex = Transcript(interrupted=frozenset({"codex"}))
    (
        codex
        >> codex.stop(codex.start("a", argv=("npx", "@openai/codex", "exec")))
        << "interrupt a1"
        << "arm a1 polite +1"
    )


def test_a_paused_run_is_thawed_for_it() -> None:
    t = Transcript()
    a = t.start("a", argv=CLAUDE)
    (t >> t.pause(a)).skip()
    t >> t.stop(a) << "interrupt a1" << "thaw a1" << "arm a1 polite +1"


def test_under_a_paused_ancestor_there_is_no_time_for_it() -> None:
    t = Transcript()
    a = t.start("a")
    b = t.start("b", inside(a), argv=CLAUDE)
    (t >> t.pause(a)).skip()
    t >> t.stop(b) << "terminate a2 SIGTERM" << "arm a2 grace +0"


def test_descendants_of_a_failed_attempt_are_interrupted_too() -> None:
    t = Transcript()
    a = t.start("a", attempts=2)
    t.start("b", inside(a), argv=CLAUDE)
    t >> t.exited(a, 1, empty=False) << "interrupt a2" << "arm a1 polite +1"


def test_the_next_daemon_does_not_interrupt_again() -> None:
    t = Life()
    a = t.start("a", argv=CLAUDE)
    (t >> t.stop(a)).skip()
    t.later(0.4)
    t >> t.next_daemon(a) << "arm a1 polite +0.6"
    t.later(0.6)
    t >> t.fired(a, "polite") << "terminate a1 SIGTERM" << "arm a1 grace +4"


def test_the_next_daemon_signals_what_a_main_process_that_ended_meanwhile_has_left() -> None:
    t = Life()
    a = t.start("a", argv=CLAUDE)
    (t >> t.stop(a)).skip()
    t.later(0.4)
    t >> t.next_daemon(populated=[a]) << "terminate a1 SIGTERM" << "arm a1 grace +4.6"
    t = Life()
    a = t.start("a", argv=CLAUDE)
    (t >> t.stop(a)).skip()
    t.later(2)
    t >> t.next_daemon(a) << "terminate a1 SIGTERM" << "arm a1 grace +3"


def test_program_of_a_command() -> None:
    for command in (
        "claude -p",
        "npx @anthropic-ai/claude-code",
        "node /x/node_modules/@anthropic-ai/claude-code/cli.js",
    ):
        assert program_name(command.split()) == "claude"
    assert program_name(("gemini-cli",)) == "gemini"
    assert program_name(("sh", "-c", "claude")) != "claude"
