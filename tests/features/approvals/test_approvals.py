"""An agent asks over MCP for a call of a tool, and a person answers."""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

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
    daemon.reexecute()
    daemon.kill()
    daemon.restart()
    after = info(daemon, run)
    assert after["approvals"] == [call], "the same call has the same number"
    assert after["deadline"] is None
    assert daemon.sfactl("approve", run, "call-1").stdout == "call-1 of a1 is allowed\n"
    assert answer(daemon, run)["behavior"] == "allow"
    assert answer(daemon, run)["updatedInput"]["command"] == "make"
    assert info(daemon, run)["approvals"] == []
    assert info(daemon, run)["deadline"] is not None
    lines = daemon.sfactl("events", "--json").stdout.splitlines()
    events = [each for each in map(json.loads, lines) if each["type"].startswith("approval_")]
    assert [each["severity"] for each in events] == ["medium", "low"]
    assert "Bash" in events[0]["message"]
    daemon.sfactl("stop", run)


AGAIN = """
for key in one one two; do
    {python} -c 'import sys
from sfactl.connecting.connection import connect
from sfad.features.approvals.messages import ApprovalAnswer, AskApproval
with connect(None) as client:
    ask = AskApproval(id=0, key=sys.argv[1], tool="Bash")
    print(client.call(ask, ApprovalAnswer).state, flush=True)' "$key"
    n=$((n + 1)); until [ -e go-$n ]; do sleep 0.05; done
done
"""


def test_an_answer_is_for_one_call(start: Start, tmp_path: Path) -> None:
    """It is there for a program that asks again after a restart, and for no other call."""
    daemon = start()
    script = AGAIN.format(python=PYTHON)
    run = daemon.sfactl("spawn", "--cwd", str(tmp_path), "--", "sh", "-c", script).stdout.strip()
    wait_until(lambda: info(daemon, run)["approvals"], "it asks")
    daemon.sfactl("approve", run, "call-1")
    wait_until(lambda: daemon.output(run) == "allowed\n", "it has the answer")
    daemon.kill()
    daemon.restart()
    (tmp_path / "go-1").touch()
    wait_until(lambda: daemon.output(run) == "allowed\n" * 2, "it has the answer again")
    daemon.kill()
    daemon.restart()
    (tmp_path / "go-2").touch()
    (call,) = wait_until(lambda: info(daemon, run)["approvals"], "it asks for another")
    assert call["call"] == "call-2"
    assert daemon.sfactl("deny", run, "call-1").returncode != 0
    daemon.sfactl("stop", run)


HOOK = """
echo '{{"hook_event_name": "PermissionRequest", "tool_name": "Bash", "cwd": "/srv",
"tool_input": {{"command": "make"}}}}' | {sfactl} ask
"""


def test_a_hook_asks(start: Start) -> None:
    daemon = start()
    script = HOOK.format(sfactl=f"{PYTHON} -m sfactl")
    runs = [daemon.sfactl("spawn", "--", "sh", "-c", script).stdout.strip() for _ in range(2)]
    (call,) = wait_until(lambda: info(daemon, runs[0])["approvals"], "it asks")
    assert (call["tool"], call["cwd"]) == ("Bash", "/srv")
    assert json.loads(call["arguments"]) == {"command": "make"}
    daemon.sfactl("approve", runs[0], "call-1")
    wait_until(lambda: info(daemon, runs[1])["approvals"], "the other asks")
    daemon.sfactl("deny", runs[1], "call-1", "--message", "never that")
    assert daemon.sfactl("wait", *runs).returncode == 0
    decisions = [json.loads(daemon.output(run))["hookSpecificOutput"]["decision"] for run in runs]
    assert decisions == [{"behavior": "allow"}, {"behavior": "deny", "message": "never that"}]


CODEX = """
import hashlib, json, subprocess, sys, tomllib
settings = tomllib.loads("\\n".join(
    word for at, word in enumerate(sys.argv) if sys.argv[at - 1] == "-c"))["hooks"]
(group,), (state,) = settings["PermissionRequest"], settings["state"].values()
hooks = [{{**group["hooks"][0], "async": False}}]
identity = {{"event_name": "permission_request", "hooks": hooks}}
text = json.dumps(identity, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
assert state["trusted_hash"] == "sha256:" + hashlib.sha256(text.encode()).hexdigest()
if sys.argv[-1] == "app-server":
    for line in sys.stdin:
        if json.loads(line)["method"] == "hooks/list":
            hook = {{"command": group["hooks"][0]["command"], "trustStatus": "{trust}"}}
            print(json.dumps({{"id": 2, "result": {{"data": [{{"hooks": [hook]}}]}}}}), flush=True)
    sys.exit()
for asks in ({{"hook_event_name": "PermissionRequest", "tool_name": "Bash"}}, "nonsense"):
    done = subprocess.run(
        group["hooks"][0]["command"], shell=True, input=json.dumps(asks), capture_output=True,
        text=True)
    print(done.returncode, "allow" in done.stdout, "no person" in done.stderr)
print(sys.argv.index("exec") < sys.argv.index("--approve-for-me"), sys.argv[-1])
"""


def as_codex(directory: Path, monkeypatch: pytest.MonkeyPatch, trust: str) -> None:
    program, script = directory / "codex", directory / "codex.py"
    script.write_text(CODEX.format(trust=trust))
    program.write_text(f'#!/bin/sh\nexec {PYTHON} {script} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")


def test_a_codex_that_does_not_trust_the_hook(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version may hash it in another way. A model would answer in the person's place."""
    as_codex(tmp_path, monkeypatch, "modified")
    refused = start().sfactl("spawn", "--approvals", "--", "codex", "exec", "go")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "codex does not say that it trusts the hook" in refused.stderr


@pytest.mark.parametrize("words", [["--", "codex", "exec", "go"], ["codex", "go"]])
def test_codex_is_given_the_hook(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """Trusted by the hash of Codex. A hook that fails denies."""
    as_codex(tmp_path, monkeypatch, "trusted")
    daemon = start()
    run = daemon.sfactl("spawn", "--approvals", *words).stdout.strip()
    wait_until(lambda: info(daemon, run)["approvals"], "it asks")
    daemon.sfactl("approve", run, "call-1")
    assert daemon.sfactl("wait", run).returncode == 0, daemon.errors(run)
    assert daemon.output(run) == "0 True False\n2 False True\nTrue go\n"


def test_a_program_that_cannot_ask(start: Start) -> None:
    refused = start().sfactl("spawn", "--approvals", "--", "gemini", "go")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "it works with claude and codex" in refused.stderr


def test_a_hook_that_is_no_hook(start: Start) -> None:
    daemon = start()
    for text, why in (("x", "is not the JSON of a hook"), ("{}", "its hook PermissionRequest")):
        done = daemon.sfactl("run", "--", "sh", "-c", f"echo '{text}' | {PYTHON} -m sfactl ask")
        assert done.returncode == 2, done
        assert why in done.stderr


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
    """A person sees a whole command before allowing it."""
    hidden = Approval(
        call="call-1", tool="Bash", arguments="x" * 400 + "; rm -rf /", cwd="/", since=NOW
    )
    assert "; rm -rf /" in asked(hidden)
    assert "(110 characters more: sfactl info) in /" in asked(hidden, 300)
