"""The built-in entries start the real programs: each understands the options that sfad adds."""

from __future__ import annotations

import pytest

from tests.agents.clis import Cli
from tests.agents.conftest import MakeDesk
from tests.agents.script import Say, Shell

OPTIONS = {
    "claude": ["--dangerously-skip-permissions"],
    "codex": ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"],
    "gemini": ["--yolo", "-m", "gemini-2.5-pro"],
    "opencode": ["--model", "anthropic/claude-sonnet-4-5"],
}


@pytest.mark.parametrize("task", ["go", "--go"])
def test_a_known_program_is_started_by_its_name_and_metered(desk: MakeDesk, cli: Cli, task: str) -> None:
    at = desk(**{cli.name: [Shell("echo one"), Say("Done.")]})
    done = at.sfactl("run", cli.name, *OPTIONS[cli.name], "--", task)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("Done.\n")
    assert "{" not in done.stdout
    assert f"[agent:{cli.name}] starting: 30m, 100 turns, 5 USD (profile coding-agent" in done.stderr
    (run,) = at.listed()
    assert (run["name"], run["meter"], run["status"]) == (cli.name, cli.name, "completed")
    assert (run["usage"]["turns"], run["usage"]["output_tokens"]) == (1, 2 * cli.price.output)
