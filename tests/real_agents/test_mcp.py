"""The real agents start subagents through `sfactl mcp`, which `sfactl run --mcp` gives them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.real_agents.clis import CLAUDE, CODEX, Cli
from tests.real_agents.conftest import MakeDesk
from tests.real_agents.script import Say, Shell, Tool

WORKER = """\
[agents.worker]
command = ["sh", "-c", "printf '<i>%s</i>\\\\033[31m\\n' \\"$SFA_TASK\\""]
"""


def delegate(agent: str) -> Tool:
    return Tool(
        "delegate_to_subagent", {"task": "count the files", "tools_needed": [], "agent": agent}
    )


def registered(name: str, cli: Cli, *, trusted: bool = True) -> str:
    """Return the entry of an agent in the config. An untrusted one has its sandbox, and permission
    for nothing."""
    words = [
        word if word != "go" else "{task}"
        for word in cli.argv
        if trusted or not word.startswith("--dangerously")
    ]
    return f"{WORKER}\n[agents.{name}]\ncommand = {json.dumps(words)}\n"


def test_an_agent_delegates_and_its_model_reads_a_safe_result(desk: MakeDesk, any_cli: Cli) -> None:
    """Also where it may do nothing without asking: `--mcp` allows the tools, and the server is
    outside of the sandbox."""
    script = [delegate("worker"), delegate("planner"), Say("Thanks.")]
    at = desk(config=registered("planner", any_cli, trusted=False), **{any_cli.name: script})
    done = at.sfactl("run", "--mcp", "planner", "go")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Thanks." in done.stdout
    result, circle = at.talk(any_cli).told()
    assert "&lt;i&gt;count the files&lt;/i&gt;\n</subagent_result>" in result
    assert "it would call itself in a circle (planner → planner)" in circle
    planner, worker, _refused = at.listed()
    assert (worker["status"], worker["parent_id"], worker["channel"]) == (
        "completed",
        planner["id"],
        "mcp",
    )


@pytest.mark.parametrize(
    ("first", "second"), [(CLAUDE, CODEX), (CODEX, CLAUDE)], ids=["claude first", "codex first"]
)
def test_a_subagent_that_delegates_back_is_refused_and_finishes(
    desk: MakeDesk, first: Cli, second: Cli
) -> None:
    review = [
        Shell("sfactl run --name planner -- true; echo exit $?"),
        Say("I finish with what I have."),
    ]
    at = desk(
        config=registered("reviewer", second),
        **{first.name: [delegate("reviewer"), Say("Thanks.")], second.name: review},
    )
    done = at.sfactl("run", "--mcp", "--name", "planner", *first.by_name)
    assert done.returncode == 0, done.stdout + done.stderr
    (refused,) = at.talk(second).told()
    assert "Do not try again; finish your task with what you already have." in refused
    assert "exit 77" in refused
    (result,) = at.talk(first).told()
    assert "I finish with what I have.\n</subagent_result>" in result
    assert [(run["name"], run["status"]) for run in at.listed()][:2] == [
        ("planner", "completed"),
        ("reviewer", "completed"),
    ]


def test_an_ended_session_is_announced_with_any_answer(
    desk: MakeDesk, any_cli: Cli, tmp_path: Path
) -> None:
    """Also with one that has structured content: Claude Code and Codex show the model nothing else
    of it."""
    go = tmp_path / "go"
    os.mkfifo(go)
    config = f'[agents.patient]\ncommand = ["cat", "{go}"]\n'
    spawn = Tool(
        "sessions_spawn", {"task": "count the files", "agent": "patient", "worker_name": "counter"}
    )
    script = [
        spawn,
        Shell(f"echo 3 > {go}; sfactl wait counter"),
        Tool("sessions_list", {}),
        Say("Thanks."),
    ]
    at = desk(config=config, **{any_cli.name: script})
    # else Claude Code's model must first search for most tools
    at.env["ENABLE_TOOL_SEARCH"] = "false"
    done = at.sfactl("run", "--mcp", "--name", "planner", "--", *any_cli.argv)
    assert done.returncode == 0, done.stdout + done.stderr
    accepted, _, listed = at.talk(any_cli).told()
    assert "accepted" in accepted
    assert "(counter): completed" in listed, listed
