"""Agents by their name: `sfactl run claude "…"`, `sfactl agents`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.cli.conftest import World

CONFIG = """
[agents.reviewer]
command = ["claude", "{task}"]
description = "reviews a diff"
limits = ["turns=20"]
[limits]
max_turns = 200
"""

STAND_IN = """#!/bin/sh
for word in "$@"; do echo "[$word]"; done
case "$*" in
*nest*) exec $SFACTL run -q --raw $AGAIN again ;;
*speak*) echo '{"type": "result", "result": "My answer."}' ;;
*fail*) exit 1 ;;
esac
"""
"""In the place of Claude Code. Told to nest, it starts an agent as a model would."""


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("agents"), CONFIG)
    programs = world.directory / "bin"
    programs.mkdir()
    (programs / "claude").write_text(STAND_IN)
    (programs / "claude").chmod(0o755)
    world.env["PATH"] = f"{programs}:{os.environ['PATH']}"
    with world.served():
        yield world


def test_a_known_program_is_started_with_what_sfad_needs_and_its_profile(there: World) -> None:
    done = there.sfactl(
        "run", "--raw", "--timeout", "5m", "claude", "--model", "opus", "look at HEAD~1"
    )
    words = done.stdout.split("\n")
    assert words[:6] == [
        "[-p]",
        "[--output-format]",
        "[stream-json]",
        "[--verbose]",
        "[--include-partial-messages]",
        "[--session-id]",
    ]
    assert words[7:] == ["[--model]", "[opus]", "[--]", "[look at HEAD~1]", ""]
    assert done.stderr.startswith(
        "[agent:claude] starting: 5m (--timeout), 100 turns, 5 USD, silence 30m"
        " (profile coding-agent; change with --timeout, --limit)\n"
    )
    assert there.json("list")["runs"][-1]["meter"] == "claude"


def test_the_answer_is_shown_and_not_the_events(there: World) -> None:
    assert there.sfactl("run", "-q", "claude", "speak").stdout == "My answer.\n"
    assert '{"type": "result"' in there.sfactl("run", "-q", "--raw", "claude", "speak").stdout


def test_options_after_the_name_are_the_programs(there: World) -> None:
    assert there.sfactl("run", "-q", "--raw", "claude", "-p", "hi").stdout.endswith("[--]\n[hi]\n")
    assert (
        "[--timeout]\n"
        in there.sfactl("run", "-q", "--raw", "reviewer", "look", "--timeout", "5").stdout
    )
    refused = there.sfactl("run", "claude", "mcp", "list", code=2).stderr
    assert refused.startswith(
        "sfactl: the task of agent 'claude' is one argument; quote it: "
        "sfactl run claude 'mcp list'. "
    )
    unknown = there.sfactl("run", "sleep", "60", code=2).stderr
    assert "known: aider, claude, codex, copilot, gemini, opencode, qwen, reviewer" in unknown
    assert "write '--' before it: -- sleep 60\n" in unknown


def test_each_attempt_has_a_session_of_its_own(there: World) -> None:
    tried = there.sfactl(
        "run", "-q", "--attempts", "2", "--retry-delay", "0", "--raw", "claude", "fail", code=1
    ).stdout.splitlines()
    first, second = (tried[at + 1] for at, word in enumerate(tried) if word == "[--session-id]")
    assert first != second


def test_a_registered_agent_is_its_entry_whatever_it_is_called(there: World) -> None:
    run = there.sfactl(
        "spawn", "--name", "second-look", "reviewer", "--", "look at HEAD~1"
    ).stdout.strip()
    there.sfactl("wait", run)
    found = there.json("info", run)
    assert (found["name"], found["argv"]) == ("second-look", ["claude", "look at HEAD~1"])
    assert [
        (limit["threshold"], limit["source"])
        for limit in found["limits"]
        if limit["kind"] == "turns"
    ] == [(20, "agent reviewer")]
    looped = there.sfactl(
        "run", "-q", "--name", "other", "reviewer", "nest", code=1, AGAIN="--name third reviewer"
    ).stderr
    assert "it would call itself in a circle (reviewer → reviewer)" in looped
    assert "whatever its name" in looped


def test_a_built_in_entry_is_no_identity(there: World) -> None:
    assert (
        "in a circle (claude → claude)"
        in there.sfactl("run", "-q", "--raw", "claude", "nest", code=1, AGAIN="claude").stderr
    )
    assert there.sfactl(
        "run", "-q", "--raw", "claude", "nest", AGAIN="--name helper claude"
    ).stdout.endswith("[again]\n")
    assert there.sfactl("run", "-q", "--raw", "claude", "nest", AGAIN="reviewer").stdout.endswith(
        "[again]\n"
    )


def test_agents_are_listed_and_explained(there: World) -> None:
    listed = there.sfactl("agents").stdout
    assert "reviewer" in listed
    assert "codex: not on your PATH" in there.sfactl("agents", "codex", PATH="/nowhere").stdout
    told = there.sfactl("agents", "claude").stdout
    assert " --model={model} --append-system-prompt={instructions} {options} -- {task}\n" in told
    found = {agent["name"]: agent for agent in there.json("agents")["agents"]}
    assert (found["claude"]["source"], found["reviewer"]["source"]) == (
        "built-in",
        str(there.config),
    )
    assert found["claude"]["program"] == str(there.directory / "bin/claude")
    assert there.json("agents", "reviewer")["limits"] == ["turns=20"]
    assert "unknown agent 'x'; choose from: aider" in there.sfactl("agents", "x", code=2).stderr


def test_a_range_is_raised_in_the_config(there: World) -> None:
    there.sfactl("run", "-q", "--limit", "turns=200", "--", "true")
    refused = there.sfactl("run", "--limit", "turns=201", "--", "true", code=2).stderr
    assert f"raise limits.max_turns in {there.config}, then run: sfactl reload" in refused
    assert (
        f"raise limits.max_cost in {there.config}"
        in there.sfactl("run", "--limit", "cost=101", "--", "true", code=2).stderr
    )


def test_help_has_the_defaults_in_force(there: World) -> None:
    told = there.sfactl("run", "--help").stdout
    assert "any command            2m, 25 turns, 1.00 USD\n" in told
    assert "claude, codex, …       30m, 100 turns, 5.00 USD (profile coding-agent)\n" in told
    assert "at most                1h, 200 turns, 100.00 USD" in told
    assert f"limits.max_turns       set in {there.config}\n" in told


def test_help_without_a_daemon_reads_the_config_itself(world: World) -> None:
    world.config.write_text("[defaults]\nturns = 40\nprogram_profile = 'off'")
    told = world.sfactl("spawn", "--help").stdout
    assert "2m, 40 turns, 1.00 USD\n" in told
    assert "coding-agent" not in told
    world.config.write_text("[defaults]\nturns = 0")
    assert "unknown. sfad: " in " ".join(world.sfactl("spawn", "--help").stdout.split())
