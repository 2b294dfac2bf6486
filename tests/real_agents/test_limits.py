"""What ends a real agent, and what does not."""

from __future__ import annotations

import os
from itertools import repeat
from pathlib import Path
from uuid import uuid4

import pytest

from tests.harness import alive, strays, wait_until
from tests.real_agents.clis import CLAUDE, CODEX, GEMINI_CLI, Cli
from tests.real_agents.conftest import MakeDesk
from tests.real_agents.desk import Desk, held_up, in_a_terminal
from tests.real_agents.script import Say, Shell

LEAVES_SOMETHING = "setsid sleep 300 > /dev/null 2>&1 & echo $!; sleep 0.5"
"""A tool call of ordinary length that leaves a process in a session of its own."""


def test_a_turn_limit_ends_an_agent_that_would_never_end(
    desk: MakeDesk, cli: Cli, containment: str
) -> None:
    at = desk(mode=containment, **{cli.name: repeat(Shell(LEAVES_SOMETHING))})
    done = at.sfactl("run", "--name", "planner", "--limit", "turns=3", "--", *cli.argv)
    left = [int(output.split()[-1]) for output in at.talk(cli).told()]
    assert [pid for pid in left if alive(pid)] == []
    assert strays(at.daemon.instance) == []
    assert done.returncode == 4, done.stdout + done.stderr
    (run,) = at.listed()
    assert (run["status"], run["reason"]["kind"], run["reason"]["limit_kind"]) == (
        "failed",
        "limit",
        "turns",
    )
    assert run["reason"]["threshold"] == 3
    assert 4 <= run["reason"]["used"] <= len(at.talk(cli).requests) <= 6
    assert len(left) >= 3


def test_a_tool_call_in_the_background_is_a_turn(desk: MakeDesk, cli: Cli) -> None:
    at = desk(**{cli.name: repeat(Shell("sleep 300", background=True))})
    done = at.sfactl(
        "run", "--name", "planner", "--limit", "turns=3", "--timeout", "20", "--", *cli.argv
    )
    assert strays(at.daemon.instance) == []
    assert done.returncode == 4, done.stdout + done.stderr
    (run,) = at.listed()
    assert (run["status"], run["reason"]["limit_kind"]) == ("failed", "turns")
    assert len(at.talk(cli).requests) <= 10


def test_claude_is_not_stopped_while_it_waits_for_its_background_work(
    desk: MakeDesk, tmp_path: Path
) -> None:
    """It prints a result, waits for its background commands, and continues to a second result."""
    with held_up(tmp_path / "gate") as command:
        script = [Shell(command, background=True), Say("I wait for it."), Say("It came.")]
        at = desk(config="[stop]\nresult_wait = 1", claude=script)
        run = at.spawn("planner", *CLAUDE.argv)
        wait_until(lambda: results(at, run) == ["I wait for it."], "the first result")
        end = elapsed(at, run) + 2
        wait_until(lambda: elapsed(at, run) > end, "twice as long as an agent may linger")
    assert at.sfactl("wait", run).returncode == 0
    assert results(at, run) == ["I wait for it.", "It came."]
    usage = at.json("info", run)["usage"]
    assert (usage["turns"], usage["input_tokens"]) == (1, 3 * CLAUDE.price.input)


def results(at: Desk, run: str) -> list[str]:
    """The final words that Claude Code has printed so far."""
    return [event["result"] for event in at.events(run) if event["type"] == "result"]


def elapsed(at: Desk, run: str) -> float:
    """Seconds that the run has been running."""
    return float(at.running(run)["usage"]["elapsed_s"])


def test_claude_tells_its_exact_totals_when_it_is_stopped(
    desk: MakeDesk, tmp_path: Path, containment: str
) -> None:
    """Only its main process is interrupted. It prints the totals and makes no further call."""
    os.mkfifo(tmp_path / "never")
    at = desk(
        mode=containment, claude=[Shell("echo one"), *repeat(Shell(f"cat {tmp_path / 'never'}"), 5)]
    )
    run = at.spawn("planner", *CLAUDE.argv)
    wait_until(lambda: at.running(run)["usage"]["turns"] == 2, "the second call of a tool")
    assert at.sfactl("stop", run).returncode == 0
    assert strays(at.daemon.instance) == []
    calls = len(at.talk(CLAUDE).requests)
    info = at.json("info", run)
    assert (calls, info["status"]) == (2, "cancelled")
    usage = info["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (
        calls * CLAUDE.price.input,
        calls * CLAUDE.price.output,
    )
    assert usage["cost_from"] == "agent"


def test_a_limit_holds_for_an_agent_that_prints_text(desk: MakeDesk) -> None:
    at = desk(claude=repeat(Shell("sleep 0.3")))
    named = ("--session-id", str(uuid4()))  # so that its file is known from the start
    done = at.sfactl(
        "run", "--name", "planner", "--limit", "turns=3", "--", *CLAUDE.as_text, *named
    )
    assert done.returncode == 4, done.stdout + done.stderr
    (run,) = at.listed()
    assert (run["status"], run["reason"]["limit_kind"]) == ("failed", "turns")
    assert [limit["enforced_by"] for limit in run["limits"] if limit["kind"] == "turns"] == [
        "meter"
    ]
    assert len(at.talk(CLAUDE).requests) <= 12


@pytest.mark.parametrize("cli", [CLAUDE, CODEX, GEMINI_CLI], ids=lambda cli: cli.name)
def test_a_limit_acts_in_a_terminal_from_the_first_second(desk: MakeDesk, cli: Cli) -> None:
    """Without the gateway, and without an id: only the session file tells what is used."""
    at = desk(**{cli.name: repeat(Shell("sleep 0.3"))})
    words = ("--no-gateway", "--stdio", "inherit", "--name", "planner", "--limit", "turns=3")
    with in_a_terminal(at, "run", *words, "--", *cli.in_terminal):
        wait_until(lambda: at.listed() and at.listed()[0]["ended_at"], "the limit has ended it")
    (run,) = at.listed()
    assert (run["status"], run["reason"]["limit_kind"], run["usage"]["source"]) == (
        "failed",
        "turns",
        "session",
    )
    assert run["usage"]["partial"]
    assert run["reason"]["used"] <= 8, (
        "what it had used when it was seen; Codex goes on while it is asked to end"
    )
