"""What `list` and `info` tell of a run's model, task and tools, and the filters by them."""

from __future__ import annotations

import json

import pytest

from .conftest import World

CONFIG = """
[agents.writer]
command = ["sh", "-c", "echo {task} >/dev/null", "{model}", "{provider}"]
type = "qa"
"""
CALLED = json.dumps({"type": "usage", "turns": 1, "model": "haiku-5", "input_tokens": 1})


@pytest.fixture
def config() -> str:
    return CONFIG


def names(daemon: World, *filters: str) -> list[str]:
    return [run["name"] for run in daemon.json("list", *filters)["runs"]]


def test_what_is_told_of_a_run_and_asked_for(daemon: World) -> None:
    daemon.sfactl(
        "session", "delegate", "--agent", "writer", "--model", "opus-5", "--provider", "anthropic",
        "--allow-tool", "Read", "--block-tool", "Bash", "--channel", "mail", "look at it",
    )  # fmt: skip
    daemon.sfactl("run", "--meter", "jsonl", "--name", "haiku", "--", "echo", CALLED)
    daemon.sfactl("run", "-q", "--type", "developer", "--name", "plain", "--", "true")
    told = ("model", "provider", "task", "allowed_tools", "blocked_tools", "type", "channel")
    rows = {run["name"]: run for run in daemon.json("list")["runs"]}
    assert [rows["writer"][name] for name in told] == [
        "opus-5", "anthropic", "look at it", ["Read"], ["Bash"], "qa", "mail",
    ]  # fmt: skip
    assert [daemon.json("info", "writer")[name] for name in told] == [
        rows["writer"][name] for name in told
    ]
    assert [rows["plain"][name] for name in told] == [
        None, None, None, [], [], "developer", "cli",
    ]  # fmt: skip
    assert rows["haiku"]["model"] == "haiku-5"
    shown = daemon.sfactl("info", "writer").stdout
    for line in ("model        opus-5 (anthropic)", "task         look at it",
                 "tools        Read", "no tools     Bash"):  # fmt: skip
        assert line in shown.splitlines()

    for served in (True, False):
        assert names(daemon, "--type", "qa") == ["writer"]
        assert names(daemon, "--type", "qa", "--type", "developer") == ["writer", "plain"]
        assert names(daemon, "--channel", "cli") == ["haiku", "plain"]
        assert names(daemon, "--model", "opus-5") == ["writer"]
        assert names(daemon, "--model", "*-5") == ["writer", "haiku"]
        assert names(daemon, "--model", "haiku-*", "--channel", "cli") == ["haiku"]
        assert names(daemon, "--model", "haiku-?") == []
        if served:
            daemon.end()
    daemon.begin()
    wide = daemon.sfactl("list", "--wide").stdout.splitlines()[0].split()
    assert {"TYPE", "CHANNEL", "MODEL"} <= set(wide)


def test_a_live_run_is_found_and_keeps_what_it_was_started_with(daemon: World) -> None:
    run = daemon.sfactl(
        "session", "spawn", "--agent", "writer", "--model", "opus-5", "wait; sleep 100",
    ).stdout.split()[0]  # fmt: skip
    assert names(daemon, "--model", "opus-*", "--status", "running") == ["writer"]
    daemon.kill()
    daemon.begin()
    found = daemon.json("info", run)
    assert (found["status"], found["task"], found["model"]) == (
        "running", "wait; sleep 100", "opus-5",
    )  # fmt: skip
    daemon.stop_all()
