"""Real agent programs in terminals of their own wait for a person, and sfad knows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness import wait_until
from tests.real_agents.clis import CLAUDE, CODEX, GEMINI_CLI, OPENCODE, Cli
from tests.real_agents.conftest import MakeDesk
from tests.real_agents.desk import Desk
from tests.real_agents.script import Say, Shell, Stall

LONG = 15.0
"""Seconds: three looks."""


def waits(at: Desk, run: str) -> dict[str, Any]:
    def waiting() -> Any:
        return at.json("info", run)["waiting"]

    try:
        found: dict[str, Any] = wait_until(waiting, "it waits")
    except AssertionError:
        raise AssertionError(at.sfactl("logs", "--screen", run).stdout) from None
    return found


@pytest.mark.parametrize("cli", [CLAUDE, CODEX, GEMINI_CLI], ids=lambda cli: cli.name)
def test_at_a_prompt_and_not_at_work(desk: MakeDesk, cli: Cli) -> None:
    at = desk(**{cli.name: [Stall("Thinking"), Say("Shall I go on?")] * 3})
    run = at.sfactl(
        "spawn", "--terminal", "--timeout", "10m", "--", *cli.in_terminal
    ).stdout.strip()
    talk = at.talk(cli)
    wait_until(lambda: talk.stalled, "its model answers")
    since = at.json("info", run)["usage"]["elapsed_s"]

    def worked() -> bool:
        info = at.json("info", run)
        assert info["waiting"] is None, info["waiting"]
        return bool(info["usage"]["elapsed_s"] > since + LONG)

    wait_until(worked, "it works for a while", pause=0.5)
    at.model.released.set()
    found = waits(at, run)
    (event,) = [
        each
        for each in map(json.loads, at.sfactl("events", "--json").stdout.splitlines())
        if each["type"] == "run_waiting"
    ]
    assert event["screen"] == found["screen"] != []
    assert at.sfactl("send", run, "--keys", "more").returncode == 0
    assert at.json("info", run)["waiting"] is None
    at.sfactl("stop", run)


def test_a_hook_of_claude(desk: MakeDesk) -> None:
    """Its Notification hook says at once what it waits for."""
    at = desk(claude=[Shell("touch x"), Say("Done.")])
    hook = {"type": "command", "command": "sfactl report --waiting -"}
    settings = {"hooks": {"Notification": [{"hooks": [hook]}]}}
    words = ["claude", "--permission-mode", "default", "--settings", json.dumps(settings), "go"]
    run = at.sfactl("spawn", "--terminal", "--timeout", "10m", "--", *words).stdout.strip()
    found = wait_until(
        lambda: (at.json("info", run)["waiting"] or {}).get("words"), "its hook has said so"
    )
    assert "permission" in found
    at.sfactl("stop", run)


def test_notify_of_codex(desk: MakeDesk) -> None:
    at = desk(codex=[Say("Shall I go on?")] * 5)  # it asks for more than the answer
    notify = 'notify=["sfactl", "report", "--waiting"]'
    words = [*CODEX.in_terminal[:-1], "-c", notify, CODEX.in_terminal[-1]]
    run = at.sfactl("spawn", "--terminal", "--timeout", "10m", "--", *words).stdout.strip()
    found = wait_until(
        lambda: (at.json("info", run)["waiting"] or {}).get("words"), "its program has said so"
    )
    assert found == "Shall I go on?"
    at.sfactl("stop", run)


def test_opencode_asks_for_a_permission(desk: MakeDesk) -> None:
    at = desk(opencode=[Shell("touch x"), Say("Done.")])
    config = json.loads(at.env["OPENCODE_CONFIG_CONTENT"]) | {"permission": {"bash": "ask"}}
    at.env["OPENCODE_CONFIG_CONTENT"] = json.dumps(config)
    words = ["--terminal", "--timeout", "10m", "--", *OPENCODE.in_terminal]
    run = at.sfactl("spawn", *words).stdout.strip()
    wait_until(lambda: at.talk(OPENCODE).answered, "its model answers", seconds=180)
    found = waits(at, run)
    assert found["source"] == "prompt"
    assert "Permission required" in "\n".join(found["screen"])
    assert at.sfactl("send", run, "--keys", "<Enter>").returncode == 0
    assert at.json("info", run)["waiting"] is None
    wait_until((Path(at.env["HOME"]) / "x").exists, "the command was executed")
    at.sfactl("stop", run)
