"""Agents that start agents in their own shell, through shims."""

from __future__ import annotations

import shlex

from tests.harness import wait_until
from tests.real_agents.clis import CLAUDE, Cli
from tests.real_agents.conftest import MakeDesk
from tests.real_agents.desk import in_a_terminal
from tests.real_agents.script import Say, Shell
from tests.real_agents.test_gateway import MODELS, PRICES, desk_of


def test_an_agent_that_calls_itself_in_its_shell_is_a_loop(desk: MakeDesk, cli: Cli) -> None:
    at = desk(
        **{cli.name: [Shell(f'{shlex.join(cli.argv)}; echo "it exited with $?"'), Say("So be it.")]}
    )
    assert at.sfactl("shim", "install", cli.name).returncode == 0
    done = at.sfactl("run", "--", *cli.argv)
    assert done.returncode == 0, done.stdout + done.stderr
    (told,) = at.talk(cli).told()
    assert f"it would call itself in a circle ({cli.name} → {cli.name})" in told
    assert "it exited with 1" in told
    assert [run["status"] for run in at.listed()] == ["completed", "rejected_loop"]


def test_with_a_name_it_is_a_metered_child_whose_output_the_model_reads(
    desk: MakeDesk, cli: Cli
) -> None:
    script = [
        Shell(f"SFA_CHILD_NAME=worker {shlex.join(cli.argv)}"),
        Say("Hi from the worker."),
        Say("Thanks."),
    ]
    at = desk(**{cli.name: script})
    at.sfactl("shim", "install", cli.name)
    done = at.sfactl("run", "--", *cli.argv)
    assert done.returncode == 0, done.stdout + done.stderr
    (told,) = at.talk(cli).told()
    assert "Hi from the worker." in told
    planner, worker = at.listed()
    assert (worker["chain"], worker["status"], worker["parent_id"]) == (
        [cli.name, "worker"],
        "completed",
        planner["id"],
    )
    assert (worker["usage"]["source"], worker["usage"]["output_tokens"]) == (
        "session",
        cli.price.output,
    )


def test_the_gateway_sees_what_a_shell_calls(
    desk: MakeDesk, any_cli: Cli, containment: str
) -> None:
    """Codex too, which does not follow the variable: the shim has the daemon add its option."""
    at = desk_of(desk, any_cli, PRICES, mode=containment)
    at.sfactl("shim", "install", any_cli.name)
    model = ["--model", MODELS[0]] if any_cli is CLAUDE else []
    done = at.sfactl(
        "run", "-q", "--", "sh", "-c", f"{shlex.join([*any_cli.as_text, *model])}; true"
    )
    assert "Done." in done.stdout, done.stdout + done.stderr
    _, child = at.listed()
    usage = at.json("info", child["id"])["usage_by_source"]["gateway"]
    replies = at.talk(any_cli).answered + at.talk(any_cli).helped
    assert (usage["messages"], usage["output_tokens"]) == (replies, replies * any_cli.price.output)


def test_in_a_terminal_within_a_run(desk: MakeDesk, cli: Cli) -> None:
    """The program shows its screens as if the shell had called it, and ends with its run."""
    at = desk(**{cli.name: [Shell("echo one"), Say("Done.")]})
    at.sfactl("shim", "install", cli.name)
    with in_a_terminal(
        at,
        "run",
        "-q",
        "--stdio",
        "inherit",
        "--",
        "sh",
        "-c",
        f"{shlex.join(cli.in_terminal)}; exit 3",
    ):
        wait_until(lambda: at.talk(cli).answered == 2, "the model has said its last word")
        _, child = at.listed()
        at.sfactl("stop", child["id"])
    assert [run["status"] for run in at.listed()] == ["failed", "cancelled"]


def test_the_shell_of_each_program_finds_the_automatic_shims(
    desk: MakeDesk, any_cli: Cli, containment: str
) -> None:
    """Codex runs commands in a login shell, and Claude Code in one that has read a snapshot of it.
    Both set PATH again."""
    at = desk_of(
        desk,
        any_cli,
        PRICES,
        (Shell("command -v claude codex gemini opencode"), Say("Done.")),
        mode=containment,
    )
    done = at.sfactl("run", "-q", *any_cli.by_name)
    assert done.returncode == 0, done.stdout + done.stderr
    (told,) = at.talk(any_cli).told()
    found = [line for line in told.splitlines() if line.startswith("/")]
    assert [line.rpartition("/")[2] for line in found] == [
        "claude",
        "codex",
        "gemini",
        "opencode",
    ], told
    assert all("/automatic/" in line for line in found), told
