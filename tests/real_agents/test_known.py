"""The built-in entries start the real programs: each understands the options that sfad adds."""

from __future__ import annotations

import json
import os
import shlex
from itertools import pairwise, repeat

import pytest

from tests.harness import wait_until
from tests.real_agents.clis import CLAUDE, CODEX, GEMINI_CLI, OPENCODE, QWEN, Cli
from tests.real_agents.conftest import MakeDesk
from tests.real_agents.desk import Desk
from tests.real_agents.script import Fail, Say, Shell


@pytest.mark.parametrize("task", ["go", "--go"])
def test_a_known_program_is_started_by_its_name_and_metered(
    desk: MakeDesk, any_cli: Cli, task: str
) -> None:
    at = desk(**{any_cli.name: [Shell("echo one"), Say("Done.")]})
    done = at.sfactl("run", any_cli.name, *any_cli.options, "--", task)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("Done.\n")
    assert (done.stdout.count("Done."), done.stdout.count("{")) == (1, 0)
    assert (
        f"[agent:{any_cli.name}] starting: 30m, 100 turns, 5 USD, silence 30m (profile coding-agent"
        in done.stderr
    )
    (run,) = at.listed()
    assert "\nDone.\n<" in at.sfactl("result", run["id"]).stdout
    assert (run["name"], run["meter"], run["status"]) == (any_cli.name, any_cli.name, "completed")
    assert (run["usage"]["turns"], run["usage"]["output_tokens"]) == (1, 2 * any_cli.price.output)


def test_a_known_program_started_by_an_agent_gives_it_text(desk: MakeDesk) -> None:
    """Events of the child would fill the parent model's context."""
    child = shlex.join(["sfactl", "run", CODEX.name, *CODEX.options, "--", "go"])
    at = desk(
        claude=[Shell(child), Say("Thanks.")], codex=[Shell("echo one"), Say("The child is done.")]
    )
    done = at.sfactl("run", CLAUDE.name, *CLAUDE.options, "--", "go")
    assert done.returncode == 0, done.stdout + done.stderr
    (told,) = at.talk(CLAUDE).told()
    assert "The child is done." in told
    assert "{" not in told


@pytest.mark.parametrize("overloaded", [True, False], ids=["overloaded", "unreachable"])
def test_an_agent_that_cannot_reach_its_model_is_seen(
    desk: MakeDesk, cli: Cli, overloaded: bool
) -> None:
    at = desk(**{cli.name: repeat(Fail(529) if overloaded else Fail(None))})
    run = at.spawn("planner", *cli.argv)
    wait_until(lambda: at.running(run)["api_trouble"], "its trouble is known")
    assert f"running (API {529 if overloaded else 'failing'})" in at.sfactl("list").stdout
    assert "cannot reach its model: the API" in at.sfactl("why", run).stdout
    at.sfactl("stop", run)


def test_a_program_does_not_wait_for_a_pipe_that_says_nothing(desk: MakeDesk, any_cli: Cli) -> None:
    at = desk(**{any_cli.name: repeat(Say("Done."))})
    reader, writer = os.pipe()
    try:
        done = at.sfactl("run", *any_cli.by_name, stdin=reader)
    finally:
        os.close(reader)
        os.close(writer)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing came through stdin within 3 s" in done.stderr


def offers(at: Desk, cli: Cli) -> int:
    """Return how many requests have offered the shell to the model; to Codex's, within a tool that
    runs JavaScript."""
    return sum(
        cli is not CODEX or "### `exec_command`" in json.dumps(body)
        for body in at.talk(cli).requests
    )


@pytest.mark.parametrize(
    ("cli", "shell"),
    [
        (CLAUDE, "Bash"),
        (CODEX, "command_execution"),
        (OPENCODE, "bash"),
        (QWEN, "run_shell_command"),
    ],
)
def test_a_blocked_tool_is_not_offered_to_the_model(desk: MakeDesk, cli: Cli, shell: str) -> None:
    at = desk(**{cli.name: repeat(Say("Done."))})
    counts = [0]
    for options in (), ("--block-tool", shell), ("--allow-tool", "Read"), ("--allow-tool", shell):
        done = at.sfactl("run", *options, *cli.by_name)
        assert done.returncode == 0, done.stdout + done.stderr
        counts.append(offers(at, cli))
    # Qwen Code makes two calls for a task without tool calls
    assert [after > before for before, after in pairwise(counts)] == [True, False, False, True]


def test_gemini_cli_is_offered_the_tools_that_are_allowed(desk: MakeDesk) -> None:
    """It has no option that blocks a tool. Without a terminal, it offers none that would need a
    question."""
    at = desk(gemini=repeat(Say("Done.")))
    counts = []
    for tool in "read_file", "run_shell_command":
        done = at.sfactl("run", "--allow-tool", tool, "gemini", "go", "-m", "gemini-2.5-pro")
        assert done.returncode == 0, done.stdout + done.stderr
        counts.append(offers(at, GEMINI_CLI))
    assert counts == [0, 1]


def test_a_session_has_its_model_and_instructions(desk: MakeDesk) -> None:
    at = desk(claude=repeat(Say("Done.")))
    session = (
        "session",
        "delegate",
        "go",
        "--agent",
        "claude",
        "--model",
        "claude-sonnet-4-5",
        "--instructions",
        "Be very brief.",
    )
    done = at.sfactl(*session)
    assert "\nDone.\n<" in done.stdout, done.stdout + done.stderr
    (body,) = at.talk(CLAUDE).requests
    assert (body["model"], "Be very brief." in json.dumps(body["system"])) == (
        "claude-sonnet-4-5",
        True,
    )
