"""What command lines of agent programs ask of servers of their own."""

from __future__ import annotations

import shlex

import pytest

from sfad.agents import OWN_SERVERS
from sfad.agents.own_server import call_of, sentence, words_alone

DOES = ("-p", "--output-format", "stream-json", "--verbose")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--bg 'do it'", (*DOES, "--", "do it")),
        ("--background --model opus 'do it'", (*DOES, "--model", "opus", "--", "do it")),
        ("'do it' --bg", (*DOES, "--", "do it")),
        ("--bg -- '- first'", (*DOES, "--", "- first")),
        ("--bg --output-format json x", (*DOES, "--", "x")),
        ("-p --bg x", (*DOES, "--", "x")),
        ("--resume 12 --bg x", (*DOES, "--resume", "12", "--", "x")),
    ],
)
def test_a_task_in_the_background_is_the_same_task_without_the_server(
    line: str, words: tuple[str, ...]
) -> None:
    call = call_of("claude", OWN_SERVERS["claude"], shlex.split(line))
    assert call is not None
    assert (call.act, call.words) == ("start", words)


@pytest.mark.parametrize(
    ("line", "act", "words"),
    [
        ("agents --json", "list", ("--json",)),
        ("logs a1", "logs", ("a1",)),
        ("attach a1", "logs", ("a1",)),
        ("stop a1", "stop", ("a1",)),
        ("rm a1", "stop", ("a1",)),
    ],
)
def test_words_about_the_background(line: str, act: str, words: tuple[str, ...]) -> None:
    call = call_of("claude", OWN_SERVERS["claude"], shlex.split(line))
    assert call is not None
    assert (call.act, call.words) == (act, words)


@pytest.mark.parametrize(
    ("line", "server"),
    [
        ("claude --bg", "a session that waits for a person"),
        ("claude --tmux -w x hi", "a tmux server"),
        ("claude --tmux=classic -w x hi", "a tmux server"),
        ("claude --cloud 'do it'", "Anthropic's cloud"),
        ("claude --remote 'do it'", "Anthropic's cloud"),
        ("claude daemon run", "Claude Code's background service"),
        ("claude respawn a1", "Claude Code's background service"),
        ("claude ultrareview 7", "Anthropic's cloud"),
        ("codex cloud exec x", "OpenAI's cloud"),
        ("codex -c a=b cloud", "OpenAI's cloud"),
        ("codex remote-control start", "Codex's app-server daemon"),
        ("codex app-server daemon start", "Codex's app-server daemon"),
        ("codex queue --thread a --message b", "another session of Codex"),
        ("codex agents", "Codex's app-server daemon"),
        ("codex resume --remote unix:// x", "an app-server"),
        ("opencode run --attach http://h:1 hi", "an opencode server"),
        ("opencode run --attach=http://h:1 hi", "an opencode server"),
        ("opencode attach http://h:1", "an opencode server"),
        ("copilot --connect=x", "a session elsewhere"),
    ],
)
def test_work_that_would_be_done_elsewhere(line: str, server: str) -> None:
    program, *words = shlex.split(line)
    call = call_of(program, OWN_SERVERS[program], words)
    assert call is not None
    assert (call.act, call.server) == ("outside", server)
    if "http" in line:
        assert call.address == "http://h:1"
    assert "do not try again" in sentence(call, program, for_model=True) or "--bg" in line


@pytest.mark.parametrize(
    "line",
    [
        "claude -p stop",
        "claude -p 'use --bg'",
        "claude agents --help",
        "claude --model agents",
        "claude -- --bg",
        "claude mcp list",
        "claude --resume x y",
        "codex exec cloud",
        "codex cloud list",
        "codex app-server",
        "opencode serve",
        "opencode run attach",
        "gemini -p serve",
    ],
)
def test_what_hands_nothing_over(line: str) -> None:
    program, *words = shlex.split(line)
    assert call_of(program, OWN_SERVERS.get(program), words) is None


@pytest.mark.parametrize(
    ("line", "alone"),
    [
        ("hi", True),
        ("", True),
        ("resume --last", True),
        ("exec hi", False),
        ("-c model=x hi", False),
        ("app-server", False),
    ],
)
def test_codex_in_a_terminal_does_its_work_itself(line: str, alone: bool) -> None:
    words = words_alone(OWN_SERVERS["codex"], line.split())
    assert (words == ("-c", "check_for_update_on_startup=false")) == alone
    assert not words_alone(OWN_SERVERS["claude"], line.split())
