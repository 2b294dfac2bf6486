"""A registered agent and its words become a command."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfad.agents import chosen
from sfad.agents.command import Command
from sfad.agents.registered import FilledIn, Registered, argv_of, filled_in, registered
from sfad.config import BUILT_IN, Agent, load
from sfad.core.state.policy import Invalid
from sfad.core.state.request import ToolLists
from sfad.protocol import known
from sfad.protocol.messages import Spawn
from sfad.protocol.types import Limit, LimitKind

KNOWN = registered(load().config, load().settings)
REVIEWER = Registered(
    "reviewer",
    Agent(
        command=("claude", "-p", "{task}", "--model", "{model}"),
        type="code-reviewer",
        meter="claude",
        limits=("cost=1.50", "turns=20:warn"),
        stdin=True,
    ),
    "/etc/sfad/sfad.toml",
)
LINT = Registered("lint", Agent(command=("ruff", "check"), kind="skill"), "/etc/sfad/sfad.toml")
AGENTS = KNOWN | {"reviewer": REVIEWER, "lint": LINT}


def asked(agent: str, *words: str, **fields: object) -> Spawn:
    """Return what a client sends."""
    given = [word.encode() for word in words]
    return Spawn(id=1, argv=given, cwd=b"/", env=[], agent=agent, **fields)  # type: ignore[arg-type]


def filled(request: Spawn, agents: Mapping[str, Registered]) -> FilledIn:
    """Return what the entry of an agent makes of a request."""
    tools = ToolLists(tuple(request.allowed_tools), tuple(request.blocked_tools))
    return filled_in(request, agents, tools, request.limits)


def command(agent: str, *words: str, **fields: object) -> list[str]:
    """Return the command of the agent, with SESSION for its session id."""
    spawn = filled(asked(agent, *words, **fields), AGENTS)
    return [
        "SESSION" if spawn.agent_session and word == spawn.agent_session.encode() else word.decode()
        for word in spawn.argv
    ]


CLAUDE = [
    "claude",
    "-p",
    "--output-format",
    "stream-json",
    "--verbose",
    "--include-partial-messages",
    "--session-id",
    "SESSION",
]


@pytest.mark.parametrize(
    ("words", "made"),
    [
        (["claude", "look at it"], [*CLAUDE, "--", "look at it"]),
        (["claude", "--model", "opus", "look"], [*CLAUDE, "--model", "opus", "--", "look"]),
        (
            ["claude", "look", "--allowedTools", "Bash"],
            [*CLAUDE, "--allowedTools", "Bash", "--", "look"],
        ),
        (["claude", "-p", "hi"], [*CLAUDE, "--", "hi"]),
        (["claude", "--", "- fix"], [*CLAUDE, "--", "- fix"]),
        (["claude", "--model", "opus", "--", "- fix"], [*CLAUDE, "--model", "opus", "--", "- fix"]),
        (["claude", "--", "--model", "opus", "hi"], [*CLAUDE, "--model", "opus", "--", "hi"]),
        (["claude", "--continue", "go on"], [*CLAUDE[:-2], "--continue", "--", "go on"]),
        (["codex", "exec", "--json", "hi"], ["codex", "exec", "--json", "--", "hi"]),
        (["codex", "-m", "x", "hi"], ["codex", "exec", "--json", "-m", "x", "--", "hi"]),
        (
            ["gemini", "-m", "flash", "-p", "hi"],
            ["gemini", "--output-format", "stream-json", "-m", "flash", "--prompt=hi"],
        ),
        (["opencode", "run", "hi"], ["opencode", "run", "--format", "json", "--", "hi"]),
        (["aider", "--message", "hi"], ["aider", "--yes-always", "--message=hi"]),
        (["reviewer", "look"], ["claude", "-p", "look"]),
        (["reviewer", "--verbose", "look"], ["claude", "-p", "look", "--verbose"]),
        (["lint", "--", "src/"], ["ruff", "check", "src/"]),
        (["lint", "a", "b"], ["ruff", "check", "a", "b"]),
        (["lint"], ["ruff", "check"]),
    ],
)
def test_words_become_a_command(words: list[str], made: list[str]) -> None:
    assert command(*words) == made


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["claude"],
            (
                "needs a task, as in: sfactl run claude 'look at HEAD~1'. "
                "To run the program's own command line: sfactl run -- claude"
            ),
        ),
        (["codex", "exec"], "needs a task"),
        (["claude", "--help"], "needs a task, .* sfactl run -- claude --help"),
        (
            ["claude", "mcp", "list"],
            "quote it: sfactl run claude 'mcp list'. .* sfactl run -- claude mcp list",
        ),
        (["codex", "exec", "look", "at"], "quote it: sfactl run codex 'look at'"),
        (
            ["sleep", "60"],
            "no agent 'sleep'; known: aider, claude, .*reviewer.* '--' before it: -- sleep 60",
        ),
    ],
)
def test_the_error_for_odd_words_says_what_was_probably_meant(words: list[str], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        command(*words)


def test_placeholders_come_from_the_request() -> None:
    made = command("reviewer", "--verbose", placeholders={"task": "{model} of a", "model": "opus"})
    assert made == ["claude", "-p", "{model} of a", "--model", "opus", "--verbose"], (
        "a value is not looked into"
    )


def test_no_value_becomes_an_option_of_the_program() -> None:
    for name in ("task", "model"):
        with pytest.raises(
            Invalid, match=f"the {name} begins with '-', and claude could take it for an option"
        ):
            command(
                "reviewer",
                placeholders={"task": "go", "model": "opus"}
                | {name: "--dangerously-skip-permissions"},
            )
    for name in KNOWN:
        told = {"task": "--yolo", "model": "--yolo"} | (
            {"instructions": "--yolo"} if name == "claude" else {}
        )
        made = command(name, placeholders=told)
        assert "--yolo" not in made[: made.index("--") if "--" in made else None]


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_a_task_after_dashes_is_one_argument_unchanged(task: str) -> None:
    assert command("claude", "--", task)[-1] == task
    assert command("gemini", "--", task)[-1] == f"--prompt={task}"


def test_a_task_that_is_not_utf_8_is_unchanged() -> None:
    spawn = Spawn(id=1, argv=[b"--", b"\xff"], cwd=b"/", env=[], agent="claude")
    assert filled(spawn, AGENTS).argv[-1] == b"\xff"


def test_each_attempt_has_a_session_of_its_own() -> None:
    spawn = filled(asked("claude", "go"), AGENTS)
    given = Command(spawn.argv, b"/", [], agent_session=spawn.agent_session)
    sessions = [argv_of(given, attempt)[7].decode() for attempt in (1, 2, 3, 2)]
    assert sessions[0] == spawn.agent_session
    assert len(set(sessions)) == 3
    assert sessions[1] == sessions[3], "the next daemon knows it, too"
    assert [str(uuid.UUID(session)) for session in sessions] == sessions
    assert filled(asked("claude", "go"), AGENTS).agent_session != spawn.agent_session


def test_a_built_in_agent_is_not_an_identity_and_prints_what_its_meter_reads() -> None:
    for name in KNOWN:
        spawn = filled(asked(name, "go"), KNOWN)
        assert (spawn.agent, spawn.name, KNOWN[name].source) == (None, None, BUILT_IN)
        meter = chosen([word.decode() for word in spawn.argv])
        assert (meter.name if meter else "none") == {"aider": "none"}.get(name, name)


def test_what_the_request_says_takes_precedence_over_the_entry() -> None:
    plain = filled(asked("reviewer", "look"), AGENTS)
    assert (plain.agent, plain.name, plain.run_type, plain.meter) == (
        "reviewer",
        "reviewer",
        "code-reviewer",
        "claude",
    )
    assert plain.stdin == "pipe"
    assert [
        (limit.kind, limit.threshold, limit.action, limit.source) for limit in plain.limits
    ] == [
        ("cost", 1.5, None, "agent reviewer"),
        ("turns", 20, "warn", "agent reviewer"),
    ]
    cost = Limit(kind=LimitKind.COST, threshold=9.0, source="--limit cost")
    own = filled(
        asked(
            "reviewer",
            "look",
            name="r2",
            run_type="qa",
            meter="none",
            limits=[cost],
            stdin="descriptor",
        ),
        AGENTS,
    )
    assert (own.agent, own.name, own.run_type, own.meter, own.stdin) == (
        "reviewer",
        "r2",
        "qa",
        "none",
        "descriptor",
    )
    assert [(limit.kind, limit.threshold) for limit in own.limits] == [("cost", 9.0), ("turns", 20)]
    assert filled(asked("reviewer", "look", log=False), AGENTS).meter is None, (
        "there is nothing to read"
    )
    assert filled(asked("lint"), AGENTS).kind == "skill"


def test_an_entry_of_the_config_replaces_a_built_in_one(tmp_path: Path) -> None:
    file = tmp_path / "sfad.toml"
    file.write_text(
        '[agents.claude]\ncommand = ["my-claude", "{task}"]\n[agents."a.b"]\ncommand = ["x"]'
    )
    loaded = load([file])
    found = registered(loaded.config, loaded.settings)
    assert list(found) == [
        "a.b",
        "aider",
        "claude",
        "codex",
        "copilot",
        "gemini",
        "opencode",
        "qwen",
    ]
    assert (found["claude"].source, found["a.b"].source, found["codex"].source) == (
        str(file),
        str(file),
        BUILT_IN,
    )
    spawn = filled(asked("claude", "go"), found)
    assert (spawn.argv, spawn.agent) == ([b"my-claude", b"go"], "claude")


def test_an_entry_takes_each_meter_that_the_command_line_takes() -> None:
    assert get_args(get_type_hints(Agent)["meter"]) == ("auto", *known.METERS)
    assert set(KNOWN) == set(known.AGENTS)
