"""How programs are told of the MCP server, and how a model's call is read."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sfactl.exits import UsageError
from sfactl.mcp import registration, tools
from sfad.protocol import messages as m
from tests.harness import PATIENCE, Daemon

COMMAND = [sys.executable, "-P", "-m", "sfactl", "mcp", "--answer-within", "120s"]


def test_what_is_printed_can_be_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/elsewhere/pytest"])
    entry = json.loads(shlex.split(registration.explained("claude", None).splitlines()[1])[-1])
    assert ([entry["command"], *entry["args"]], entry["timeout"]) == (COMMAND, 150_000)
    entry = tomllib.loads(registration.explained("codex", None))["mcp_servers"]["sfad"]
    assert ([entry["command"], *entry["args"]], entry["tool_timeout_sec"]) == (COMMAND, 150)
    gemini, opencode = (json.loads(registration.explained(program, None).partition("\n")[2]) for program in ("gemini", "opencode"))
    assert gemini["mcpServers"]["sfad"] == {"command": COMMAND[0], "args": COMMAND[1:], "timeout": 150_000}
    assert opencode["mcp"]["sfad"]["command"] == COMMAND
    with pytest.raises(UsageError, match="unknown program 'vi'; choose from: claude, codex"):
        registration.explained("vi", None)
    monkeypatch.setattr(sys, "argv", ["bin/sfactl"])
    command = registration.server_command("here/s")
    assert command[:4] == [os.path.abspath("bin/sfactl"), "mcp", "--socket", os.path.abspath("here/s")]


@pytest.mark.parametrize(
    ("agent", "words", "position"),
    [
        (None, ["claude", "-p", "go"], 1),
        (None, ["npx", "@anthropic-ai/claude-code@2.1", "-p", "go"], 2),
        (None, ["/opt/bin/claude", "go"], 1),
        ("claude", ["go"], 1),
        ("claude", ["go", "--model", "opus"], 3),
        ("claude", ["--model", "opus", "go"], 0),
        ("claude", ["--model", "opus", "--", "go"], 0),
    ],
)
def test_options_stay_apart_from_the_task(common: Daemon, agent: str | None, words: list[str], position: int) -> None:
    asked = m.Spawn(id=0, agent=agent, argv=[word.encode() for word in words], cwd=b"/", env=[b"A=1"])
    with common.client() as client:
        given = registration.with_server(asked, client)
    config, allowed = (word.decode() for word in given.argv[position : position + 2])
    assert allowed == "--allowedTools=mcp__sfad"
    server = json.loads(config.removeprefix("--mcp-config="))["mcpServers"]["sfad"]
    assert server["args"][-5:] == ["--socket", str(common.socket), "--answer-within", "120s", "--no-ask"]
    assert [*given.argv[:position], *given.argv[position + 2 :]] == asked.argv
    assert given.env == asked.env


def test_variables_keep_what_they_said(common: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    defaults = tmp_path / "defaults.json"
    defaults.write_text('{"theme": "dark", "mcpServers": {"other": {"command": "x"}}}')
    env = {
        "OPENCODE_CONFIG_CONTENT": '{"model": "m", "mcp": {"other": {"type": "local"}}}',
        "GEMINI_CLI_SYSTEM_DEFAULTS_PATH": str(defaults),
    }
    found = {}
    with common.client() as client:
        for program in ("opencode", "gemini"):
            asked = m.Spawn(id=0, argv=[program.encode()], cwd=b"/", env=[f"{k}={v}".encode() for k, v in env.items()])
            given = registration.with_server(asked, client)
            assert given.argv == asked.argv
            found[program] = dict(entry.decode().split("=", 1) for entry in given.env)
        with pytest.raises(UsageError, match="no way to give 'aider' an MCP server"):
            registration.with_server(m.Spawn(id=0, agent="aider", argv=[], cwd=b"/", env=[]), client)
    opencode = json.loads(found["opencode"]["OPENCODE_CONFIG_CONTENT"])
    assert (opencode["model"], set(opencode["mcp"])) == ("m", {"other", "sfad"})
    gemini = json.loads(Path(found["gemini"]["GEMINI_CLI_SYSTEM_DEFAULTS_PATH"]).read_text())
    assert (gemini["theme"], set(gemini["mcpServers"])) == ("dark", {"other", "sfad"})


def test_variables_that_a_program_held_back_are_restored() -> None:
    words = (
        "import os; from sfactl.mcp.registration import restore_environment; "
        "restore_environment(); print(os.environ['FROM_ABOVE'], os.environ['OWN'])"
    )
    env = os.environ | {"FROM_ABOVE": "1", "OWN": "2"}
    cleared = ["env", "-i", f"PYTHONPATH={os.environ.get('PYTHONPATH', '')}", "OWN=3", sys.executable, "-c", words]
    done = subprocess.run(
        [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])", *cleared],
        env=env, capture_output=True, text=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    assert done.stdout == "1 3\n"


def test_a_call_is_read_as_models_write_it() -> None:
    assert tools.read("sessions_info", {"run_id": "a1", "wait_seconds": "30"}) == tools.SessionsInfo(run_id="a1", wait_seconds=30.0)
    assert tools.read("sessions_list", None) == tools.SessionsList()
    for wrong, why in (
        ({}, "missing required field `run_id`"),
        ({"run_id": "a1", "tail": 0}, ">= 1"),
        ({"run_id": "a1", "tail": {}}, "tail: expected `int`, got `object`"),
        ({"run_id": "a1", "colour": "red"}, "unknown field `colour`; choose from: run_id, tail$"),
    ):
        with pytest.raises(UsageError, match=f"sessions_log: .*{why}"):
            tools.read("sessions_log", wrong)


def test_a_subagent_is_offered_no_start_and_no_stop() -> None:
    whole, part = ({offer.name: offer for offer in tools.offered(main_agent=main, agents={"a": "b"})} for main in (True, False))
    assert set(whole) - set(part) == {"delegate_to_subagent", "sessions_spawn", "sessions_stop"}
    for offer in whole.values():
        assert "tool" not in offer.schema["properties"]
        assert "anyOf" not in json.dumps(offer.schema)
        assert len(offer.description) > 20
    assert whole["delegate_to_subagent"].schema["required"] == ["task", "tools_needed"]
    assert "a: b" in whole["sessions_spawn"].schema["properties"]["agent"]["description"]
