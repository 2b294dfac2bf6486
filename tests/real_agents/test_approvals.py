"""Agent programs ask a person for each call of a tool, and get the answer: Claude Code over MCP,
Codex by a hook."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness import wait_until
from tests.real_agents.clis import CLIS
from tests.real_agents.conftest import MakeDesk
from tests.real_agents.desk import Desk
from tests.real_agents.script import Say, Shell

STARTS = {
    "claude": ("--", "claude", "-p", "go", "--output-format", "stream-json", "--verbose",
               "--permission-mode", "default"),
    "codex": ("--", "codex", "exec", "--json", "--skip-git-repo-check", "go"),
    "codex by its name": ("codex", "go", "--skip-git-repo-check"),
}  # fmt: skip


def asks(at: Desk, run: str) -> dict[str, Any]:
    def found() -> Any:
        info = at.json("info", run)
        assert info["ended_at"] is None, at.sfactl("logs", run).stdout
        return info["approvals"]

    (asked,) = wait_until(found, "it asks")
    assert isinstance(asked, dict)
    return asked


@pytest.mark.parametrize("how", STARTS)
def test_a_person_allows_and_denies(desk: MakeDesk, how: str) -> None:
    cli = CLIS[how.split()[0]]
    calls = [Shell("touch allowed", escalated=True), Shell("touch denied", escalated=True)]
    at = desk(**{cli.name: [*calls, Say("Done.")]})
    started = at.sfactl("spawn", "--approvals", "--timeout", "10m", *STARTS[how])
    assert started.returncode == 0, started.stderr
    run = started.stdout.strip()
    asked = asks(at, run)
    assert (asked["call"], asked["tool"], asked["cwd"]) == ("call-1", "Bash", at.env["HOME"])
    assert json.loads(asked["arguments"])["command"] == "touch allowed"
    (hold,) = at.json("info", run)["holds"]
    assert (hold["kind"], hold["clock_stops"]) == ("tool", True)
    elapsed = at.json("info", run)["usage"]["elapsed_s"]
    at.daemon.kill()
    at.daemon.restart()
    assert asks(at, run)["tool"] == "Bash"
    assert "sfactl approve" in at.sfactl("why", run).stdout
    call = asks(at, run)["call"]
    assert at.sfactl("approve", run, call).returncode == 0
    wait_until(
        lambda: "touch denied" in json.dumps(at.json("info", run)["approvals"]), "the next one"
    )
    call = asks(at, run)["call"]
    assert at.sfactl("deny", run, call, "--message", "never that").returncode == 0
    assert at.sfactl("wait", run).returncode == 0
    assert elapsed < 120
    told = json.dumps(at.talk(cli).requests[-1])
    assert "never that" in told
    home = Path(at.env["HOME"])
    assert [(home / name).exists() for name in ("allowed", "denied")] == [True, False]
    types = [json.loads(line)["type"] for line in at.sfactl("events", "--json").stdout.splitlines()]
    assert types.count("approval_answered") == 2
    assert "approval_requested" in types


def test_codex_asks_in_a_terminal(desk: MakeDesk) -> None:
    """A person elsewhere answers before it would ask at its terminal."""
    at = desk(codex=[Shell("touch allowed", escalated=True), Say("Done.")])
    trusted = f'projects."{at.env["HOME"]}".trust_level="trusted"'
    words = ["codex", "-a", "on-request", "-c", trusted, "go"]
    started = at.sfactl("spawn", "--approvals", "--terminal", "--timeout", "10m", "--", *words)
    assert started.returncode == 0, started.stderr
    run = started.stdout.strip()
    assert asks(at, run)["call"] == "call-1"
    assert at.sfactl("approve", run, "call-1").returncode == 0
    wait_until((Path(at.env["HOME"]) / "allowed").exists, "the command was executed")
    at.sfactl("stop", run)
