"""An agent asks over MCP for a call of a tool, and a person answers."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import Any

from sfactl.showing.waiting import asked
from sfad.protocol.types import Approval
from tests.conftest import Start
from tests.harness import PYTHON, Daemon, wait_until

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ASKS = """
{{
echo '{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"protocolVersion":"2025-06-18","capabilities":{{}},"clientInfo":{{"name":"t","version":"1"}}}}}}'
echo '{{"jsonrpc":"2.0","method":"notifications/initialized"}}'
echo '{{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{{"name":"permission","arguments":{{"tool_name":"Bash","input":{{"command":"make","token":"sk-ant-abcdefghijklmnopqrstuvwxyz"}},"tool_use_id":"x1"}}}}}}'
sleep 600
}} | {sfactl} mcp --approvals
"""  # noqa: E501


def info(daemon: Daemon, run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(daemon.sfactl("info", "--json", run).stdout)
    return found


def asking(daemon: Daemon, *words: str) -> str:
    """Start a run that asks; return its id once it does."""
    script = ASKS.format(sfactl=f"{PYTHON} -m sfactl")
    run = daemon.sfactl("spawn", *words, "--", "sh", "-c", script).stdout.strip()
    wait_until(lambda: info(daemon, run)["approvals"], "it asks")
    return run


def answer(daemon: Daemon, run: str) -> dict[str, Any]:
    """Return what the program is answered."""

    def found() -> list[dict[str, Any]]:
        lines = map(json.loads, daemon.output(run).splitlines())
        return [line for line in lines if line.get("id") == 2]

    (reply,) = wait_until(found, "it has the answer")
    told: dict[str, Any] = json.loads(reply["result"]["content"][0]["text"])
    return told


def test_a_call_is_allowed(start: Start) -> None:
    daemon = start()
    run = asking(daemon, "--limit", "silence=1s", "--limit", "time=60s")
    found = info(daemon, run)
    (call,) = found["approvals"]
    assert (call["call"], call["tool"]) == ("call-1", "Bash")
    assert "sk-ant-abcdefghij" not in call["arguments"]
    (hold,) = found["holds"]
    assert (hold["kind"], hold["blocks"], hold["clock_stops"]) == ("tool", "call", True)
    assert found["status"] == "running"
    assert found["deadline"] is None, "its clock stands"
    assert "sfactl approve a1 call-1" in daemon.sfactl("why", run).stdout
    assert "asks for approval" in daemon.sfactl("list").stdout
    wrong = daemon.sfactl("approve", run, "call-2")
    assert "it asks for: call-1" in wrong.stderr
    daemon.kill()
    daemon.restart()
    wait_until(lambda: info(daemon, run)["approvals"], "it asks again")
    assert daemon.sfactl("approve", run, "call-1").stdout == "call-1 of a1 is allowed\n"
    assert answer(daemon, run)["behavior"] == "allow"
    assert answer(daemon, run)["updatedInput"]["command"] == "make"
    assert info(daemon, run)["approvals"] == []
    assert info(daemon, run)["deadline"] is not None
    lines = daemon.sfactl("events", "--json").stdout.splitlines()
    events = [each for each in map(json.loads, lines) if each["type"].startswith("approval_")]
    assert [each["severity"] for each in events] == ["medium", "medium", "low"]
    assert "Bash" in events[0]["message"]
    daemon.sfactl("stop", run)


def test_a_call_is_denied(start: Start) -> None:
    daemon = start()
    run = asking(daemon)
    assert daemon.sfactl("deny", run, "--message", "x").returncode == 2
    done = daemon.sfactl("deny", run, "call-1", "--message", "use the tests")
    assert done.returncode == 0, done.stderr
    assert answer(daemon, run) == {"behavior": "deny", "message": "use the tests"}
    inside = daemon.sfactl("run", "--", sys.executable, "-m", "sfactl", "approve", run, "call-1")
    assert inside.returncode == 77
    daemon.sfactl("stop", run)


def test_what_is_left_out_is_said() -> None:
    """Nobody allows the end of a command unseen."""
    hidden = Approval(
        call="call-1", tool="Bash", arguments="x" * 400 + "; rm -rf /", cwd="/", since=NOW
    )
    assert "; rm -rf /" in asked(hidden)
    assert "(110 characters more: sfactl info) in /" in asked(hidden, 300)
