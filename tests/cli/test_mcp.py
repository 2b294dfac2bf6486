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
from hypothesis import given
from hypothesis import strategies as st

from sfactl.exits import UsageError
from sfactl.mcp import json_rpc, registration, tools
from sfad.protocol import messages as m
from tests.harness import PATIENCE, Daemon

COMMAND = [sys.executable, "-P", "-m", "sfactl", "mcp", "--answer-within", "120s"]


def test_what_is_printed_can_be_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/elsewhere/pytest"])
    entry = json.loads(shlex.split(registration.explained("claude", None).splitlines()[1])[-1])
    assert ([entry["command"], *entry["args"]], entry["timeout"]) == (COMMAND, 150_000)
    entry = tomllib.loads(registration.explained("codex", None))["mcp_servers"]["sfad"]
    assert ([entry["command"], *entry["args"]], entry["tool_timeout_sec"]) == (COMMAND, 150)
    gemini, opencode = (
        json.loads(registration.explained(program, None).partition("\n")[2])
        for program in ("gemini", "opencode")
    )
    assert gemini["mcpServers"]["sfad"] == {
        "command": COMMAND[0],
        "args": COMMAND[1:],
        "timeout": 150_000,
    }
    assert opencode["mcp"]["sfad"]["command"] == COMMAND
    with pytest.raises(UsageError, match="unknown program 'vi'; choose from: claude, codex"):
        registration.explained("vi", None)
    monkeypatch.setattr(sys, "argv", ["bin/sfactl"])
    command = registration.server_command("here/s")
    assert command[:4] == [
        os.path.abspath("bin/sfactl"),
        "mcp",
        "--socket",
        os.path.abspath("here/s"),
    ]


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
def test_options_stay_apart_from_the_task(
    common: Daemon, agent: str | None, words: list[str], position: int
) -> None:
    asked = m.Spawn(
        id=0, agent=agent, argv=[word.encode() for word in words], cwd=b"/", env=[b"A=1"]
    )
    with common.client() as client:
        given = registration.with_server(asked, client)
    config, allowed = (word.decode() for word in given.argv[position : position + 2])
    assert allowed == "--allowedTools=mcp__sfad"
    server = json.loads(config.removeprefix("--mcp-config="))["mcpServers"]["sfad"]
    assert server["args"][-5:] == [
        "--socket",
        str(common.socket),
        "--answer-within",
        "120s",
        "--no-ask",
    ]
    assert [*given.argv[:position], *given.argv[position + 2 :]] == asked.argv
    assert given.env == asked.env


def test_variables_keep_what_they_said(
    common: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    defaults = tmp_path / "defaults.json"
    defaults.write_text('{"theme": "dark", "mcpServers": {"other": {"command": "x"}}}')
    env = {
        "OPENCODE_CONFIG_CONTENT": '{"model": "m", "mcp": {"other": {"type": "local"}}}',
        "GEMINI_CLI_SYSTEM_DEFAULTS_PATH": str(defaults),
        "NODE_OPTIONS": "--no-warnings",
    }
    found = {}
    with common.client() as client:
        for program in ("opencode", "gemini"):
            asked = m.Spawn(
                id=0,
                argv=[program.encode()],
                cwd=b"/",
                env=[f"{k}={v}".encode() for k, v in env.items()],
            )
            given = registration.with_server(asked, client)
            assert given.argv == asked.argv
            found[program] = dict(entry.decode().split("=", 1) for entry in given.env)
        with pytest.raises(UsageError, match="no way to give 'aider' an MCP server"):
            registration.with_server(
                m.Spawn(id=0, agent="aider", argv=[], cwd=b"/", env=[]), client
            )
    opencode = json.loads(found["opencode"]["OPENCODE_CONFIG_CONTENT"])
    assert (opencode["model"], set(opencode["mcp"])) == ("m", {"other", "sfad"})
    gemini = json.loads(Path(found["gemini"]["GEMINI_CLI_SYSTEM_DEFAULTS_PATH"]).read_text())
    assert (gemini["theme"], set(gemini["mcpServers"])) == ("dark", {"other", "sfad"})
    assert found["gemini"]["NODE_OPTIONS"].startswith(
        "--no-warnings --import=data:text/javascript,"
    )


def test_variables_that_a_program_held_back_are_restored() -> None:
    words = (
        "import os; from sfactl.mcp.server import restore_environment; "
        "restore_environment(); print(os.environ['FROM_ABOVE'], os.environ['OWN'])"
    )
    env = os.environ | {"FROM_ABOVE": "1", "OWN": "2"}
    cleared = [
        "env",
        "-i",
        f"PYTHONPATH={os.environ.get('PYTHONPATH', '')}",
        "OWN=3",
        sys.executable,
        "-c",
        words,
    ]
    done = subprocess.run(
        [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])", *cleared],
        env=env, capture_output=True, text=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    assert done.stdout == "1 3\n"


def test_a_call_is_read_as_models_write_it() -> None:
    assert tools.read("sessions_info", {"run_id": "a1", "wait_seconds": "30"}) == {
        "run_id": "a1",
        "wait_seconds": 30.0,
    }
    assert tools.read("sessions_log", {"run_id": "a1", "tail": "1e2"}) == {
        "run_id": "a1",
        "tail": 100,
    }
    assert tools.read("sessions_stop", {"run_id": "a1", "confirm": "True"}) == {
        "run_id": "a1",
        "confirm": True,
    }
    assert (
        tools.read("sessions_spawn", {"task": "x", "timeout_minutes": "null"})["timeout_minutes"]
        is None
    )
    assert tools.read("sessions_list", None) == {}
    assert tools.read("sessions_info", {"runId": "a1", "waitSeconds": 3}) == {
        "run_id": "a1",
        "wait_seconds": 3.0,
    }
    assert tools.read("sessions_stop", {"runId": "a1", "run_id": "a1"})["run_id"] == "a1"
    with pytest.raises(UsageError, match="run_id is given twice"):
        tools.read("sessions_stop", {"runId": "a1", "run_id": "a2"})
    with pytest.raises(UsageError, match="unknown field `runID2`"):
        tools.read("sessions_stop", {"run_id": "a1", "runID2": "a2"})


@pytest.mark.parametrize(
    ("tool", "wrong", "why"),
    [
        ("sessions_log", {}, "missing required field `run_id`"),
        ("sessions_log", {"run_id": "a1", "tail": 0}, "tail: expected `int` >= 1"),
        ("sessions_log", {"run_id": "a1", "tail": "1001"}, "tail: expected `int` <= 1000"),
        ("sessions_log", {"run_id": "a1", "tail": {}}, "tail: expected `int`, got `object`"),
        ("sessions_log", {"run_id": "a1", "tail": 1.5}, "tail: expected `int`, got `float`"),
        ("sessions_log", {"run_id": "a1", "tail": "030"}, "tail: expected `int`, got `str`"),
        (
            "sessions_log",
            {"run_id": "a1", "tail": float("inf")},
            "tail: expected `int`, got `float`",
        ),
        ("sessions_log", {"run_id": None}, "run_id: expected `str`, got `null`"),
        (
            "sessions_log",
            {"run_id": "a1", "colour": "red"},
            "unknown field `colour`; choose from: run_id, tail",
        ),
        ("sessions_list", {"a": 1}, "unknown field `a`; choose from: none, it takes no parameter"),
        (
            "sessions_info",
            {"run_id": "a1", "wait_seconds": True},
            "wait_seconds: expected `float`, got `bool`",
        ),
        (
            "sessions_info",
            {"run_id": "a1", "wait_seconds": 10**400},
            "wait_seconds: number out of range",
        ),
        (
            "sessions_stop",
            {"run_id": "a1", "confirm": "yes"},
            "confirm: expected `bool`, got `str`",
        ),
        ("sessions_spawn", {"task": ""}, "task: expected `str` of length >= 1"),
        ("sessions_spawn", {"task": "x", "model": 5}, "model: expected `str | null`, got `int`"),
        (
            "sessions_spawn",
            {"task": "x", "timeout_minutes": 0},
            "timeout_minutes: expected `float` > 0.0",
        ),
        (
            "sessions_spawn",
            {"task": "x", "limits": "{}"},
            "limits: expected `object | null`, got `str`",
        ),
        (
            "sessions_spawn",
            {"task": "x", "allowed_tools": ["a", 5]},
            "allowed_tools[1]: expected `str`, got `int`",
        ),
    ],
)
def test_a_wrong_call_is_told_its_parameter(tool: str, wrong: dict[str, object], why: str) -> None:
    with pytest.raises(UsageError) as caught:
        tools.read(tool, wrong)
    assert caught.value.message == f"{tool}: {why}"


def test_a_subagent_is_offered_no_start_and_no_stop() -> None:
    whole, part = (
        {tool["name"]: tool for tool in tools.offered(main_agent=main, agents={"a": "b"})}
        for main in (True, False)
    )
    assert set(whole) - set(part) == {"delegate_to_subagent", "sessions_spawn", "sessions_stop"}
    for tool in whole.values():
        assert "anyOf" not in json.dumps(tool["inputSchema"])
        assert len(tool["description"]) > 20
    assert whole["delegate_to_subagent"]["inputSchema"]["required"] == ["task", "tools_needed"]
    assert "a: b" in whole["sessions_spawn"]["inputSchema"]["properties"]["agent"]["description"]


def test_a_schema_says_what_a_call_may_hold() -> None:
    properties = {
        tool["name"]: tool["inputSchema"]["properties"]
        for tool in tools.offered(main_agent=True, agents={})
    }
    tail, wait = properties["sessions_log"]["tail"], properties["sessions_info"]["wait_seconds"]
    assert tail == {
        "type": "integer",
        "description": "How many lines",
        "default": 100,
        "minimum": 1,
        "maximum": 1000,
    }
    assert wait == {
        "type": "number",
        "description": "How long to wait for its end",
        "default": 0,
        "minimum": 0,
    }
    assert properties["sessions_spawn"]["blocked_tools"]["items"] == {"type": "string"}
    assert properties["sessions_spawn"]["timeout_minutes"]["exclusiveMinimum"] == 0
    assert properties["delegate_to_subagent"]["task"]["minLength"] == 1
    assert "default" not in properties["delegate_to_subagent"]["agent"]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**300), 10**300)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_json_is_read_and_written_as_the_standard_library_does(value: object) -> None:
    assert json_rpc.parse(json.dumps(value)) == value
    assert json_rpc.parse(f" \t{json.dumps(value, indent=1)}\r\n") == value
    assert json_rpc.compact(value) == json.dumps(value, separators=(",", ":"))
    assert json_rpc.readable(value) == json.dumps(value, ensure_ascii=False)


@given(st.text(alphabet='{}[]",:\\/ 01-.eEtrufalsn\0\n\x0b\u2028'))
def test_what_is_no_json_is_an_error(text: str) -> None:
    try:
        expected: object = json.loads(text)
    except ValueError:
        with pytest.raises(ValueError):  # noqa: PT011 - the message is that of the scanner
            json_rpc.parse(text)
    else:
        assert json_rpc.parse(text) == expected


@pytest.mark.parametrize(
    "text", ["NaN", "[Infinity]", "[" * 100_000, "1" * 5000, "\ufeff1", "1 1", '"\\ud8"']
)
def test_more_than_json_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the message is that of the scanner
        json_rpc.parse(text)
