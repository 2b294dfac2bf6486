"""Claude Code asks a person for each call of a tool, over MCP, and gets the answer."""

from __future__ import annotations

import json
from typing import Any

from tests.harness import wait_until
from tests.real_agents.clis import CLAUDE
from tests.real_agents.conftest import MakeDesk
from tests.real_agents.desk import Desk
from tests.real_agents.script import Say, Shell

WORDS = ("-p", "go", "--output-format", "stream-json", "--verbose", "--permission-mode", "default")


def asks(at: Desk, run: str) -> dict[str, Any]:
    def found() -> Any:
        info = at.json("info", run)
        assert info["ended_at"] is None, at.sfactl("logs", run).stdout
        return info["approvals"]

    (asked,) = wait_until(found, "it asks")
    assert isinstance(asked, dict)
    return asked


def test_a_person_allows_and_denies(desk: MakeDesk) -> None:
    at = desk(claude=[Shell("touch allowed"), Shell("touch denied"), Say("Done.")])
    words = ["--approvals", "--timeout", "10m", "--", "claude", *WORDS]
    started = at.sfactl("spawn", *words)
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
    told = json.dumps(at.talk(CLAUDE).requests[-1])
    assert "never that" in told
    types = [json.loads(line)["type"] for line in at.sfactl("events", "--json").stdout.splitlines()]
    assert types.count("approval_answered") == 2
    assert "approval_requested" in types
