"""The commands that continue sessions of the known programs."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfad.agents.command import Command
from sfad.agents.counters import Meter
from sfad.agents.program import program_called, sorted_words
from sfad.agents.registered import resumed_command
from sfad.protocol.known import AGENTS
from tests.together import together

ID = "01a21656-55de-7543-8daa-8bccd3ed9a0e"
NEW = "5f3c1d6e-0000-4000-8000-000000000001"
RESUMABLE = [name for name in AGENTS if name != "aider"]


def resumed(command: str, *, terminal: bool = False, task: str | None = "go on") -> str | None:
    """Return the command that continues a session of a command, as a shell reads it."""
    argv = [word.encode() for word in shlex.split(command)]
    found = resumed_command(Command(argv, b"/", []), ID, task, terminal=terminal)
    return None if found is None else shlex.join(word.decode() for word in found)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("claude -p 'do x'", f"claude -p --resume {ID} -- 'go on'"),
        (
            "claude 'do x' --print --model opus --session-id=1",
            f"claude -p --model opus --resume {ID} -- 'go on'",
        ),
        (
            "claude -p --allowedTools Bash Read --verbose -- x",
            f"claude -p --allowedTools Bash Read --verbose --resume {ID} -- 'go on'",
        ),
        (f"claude -p -r {NEW} --fork-session x", f"claude -p --resume {ID} -- 'go on'"),
        (
            "timeout 60 npx -y @anthropic-ai/claude-code -p x",
            f"timeout 60 npx -y @anthropic-ai/claude-code -p --resume {ID} -- 'go on'",
        ),
        ("codex exec --json x", f"codex exec --json resume {ID} -- 'go on'"),
        ("codex -c a=1 exec -m gpt x", f"codex -c a=1 exec -m gpt resume {ID} -- 'go on'"),
        (f"codex e --json resume {NEW} x", f"codex exec --json resume {ID} -- 'go on'"),
        ("codex -c exec=1 exec -i image.png x", f"codex -c exec=1 exec resume {ID} -- 'go on'"),
        ("gemini -p x -y -m pro", f"gemini -y -m pro --resume {ID} '--prompt=go on'"),
        (
            "gemini --resume latest --prompt=x -o json",
            f"gemini -o json --resume {ID} '--prompt=go on'",
        ),
        (
            "opencode run --format json -m a/b do it -f file",
            f"opencode run --format json -m a/b --session {ID} -- 'go on'",
        ),
        ("qwen --session-id 1 --prompt=x --yolo", f"qwen --yolo --resume {ID} '--prompt=go on'"),
        ("copilot -p x --allow-all", f"copilot --allow-all --resume={ID} '--prompt=go on'"),
    ],
)
def test_a_command_in_text(command: str, expected: str) -> None:
    assert resumed(command) == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("claude --model opus 'do x'", f"claude --model opus --resume {ID}"),
        ("codex --yolo x", f"codex --yolo resume {ID}"),
        (f"codex resume -m a {NEW} x", f"codex -m a resume {ID}"),
        ("gemini -i x --yolo", f"gemini --yolo --resume {ID}"),
        ("opencode --prompt x", f"opencode --session {ID}"),
        ("opencode project -m a/b", f"opencode project -m a/b --session {ID}"),
        ("qwen -i x", f"qwen --resume {ID}"),
        ("copilot -i x", f"copilot --resume={ID}"),
    ],
)
def test_a_command_in_a_terminal(command: str, expected: str) -> None:
    assert resumed(command, terminal=True, task=None) == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("claude 'do x'", f"claude -p --resume {ID} -- 'go on'"),
        ("codex x", f"codex exec --skip-git-repo-check resume {ID} -- 'go on'"),
        ("opencode --mini --prompt x", f"opencode run --session {ID} -- 'go on'"),
    ],
)
def test_what_ran_in_a_terminal_continues_without_one(command: str, expected: str) -> None:
    assert resumed(command) == expected


@pytest.mark.parametrize(
    "command",
    ["sh -c 'claude -p x'", "true", "aider --message=x", "claude -p --new-option value x"],
)
def test_no_command_is_guessed(command: str) -> None:
    assert resumed(command) is None


ODD = [
    "",
    "-",
    "--dangerously-skip-permissions",
    "-c",
    "../x",
    "a/b",
    "a b",
    "a\n",
    "_",
    "x" * 129,
    "\u202e",
    "é",
]
"""What a run may print as the id of its session, and no agent does."""


@together("session", ODD)
@together("name", RESUMABLE)
def test_no_other_text_becomes_a_word_of_a_command(name: str, session: str) -> None:
    command = Command([name.encode(), b"x"], b"/", [])
    assert resumed_command(command, ID, None, terminal=True) is not None
    assert resumed_command(command, session, None, terminal=True) is None
    own = Command([b"bot"], b"/", [], resume_argv=[b"bot", b"--session={session}"])
    told = resumed_command(own, ID, None, terminal=False)
    assert told == [b"bot", f"--session={ID}".encode()]
    assert resumed_command(own, session, None, terminal=False) is None


@pytest.mark.parametrize("name", RESUMABLE)
def test_what_continues_a_session_names_it_and_is_metered_as_before(name: str) -> None:
    program = program_called(name)
    command = [
        word.replace("{task}", "x").replace("{session}", NEW)
        for word in program.command
        if word not in ("{options}",)
    ]
    continued = shlex.split(resumed(shlex.join(command)) or "")
    assert program.prints_events(continued[1:])
    if program.session_files is not None:
        assert program.session_files.session_id(continued) == ID
    assert resumed(shlex.join(continued)) == shlex.join(continued), "it continues in the same way"


def test_totals_of_a_session_do_not_count_twice() -> None:
    """Neither program names its session on the command line here, so only the argument tells that
    it continues one."""
    thread = (
        b'{"type":"thread.started","thread_id":"t"}\n'
        b'{"type":"turn.completed","usage":{"input_tokens":%d,"output_tokens":%d}}\n'
    )
    for resumed_, used in ((False, [(4500, 240)]), (True, [])):
        meter = program_called("codex").meter(["codex", "exec", "--json", "x"], resumed=resumed_)
        meter.feed(thread % (4500, 240))
        assert [(tokens.input, tokens.output) for tokens in meter.reading.models.values()] == used
    for resumed_, used in ((False, [(4500, 240)]), (True, [(1500, 80)])):
        meter = program_called("qwen").meter(
            ["qwen", "--output-format", "stream-json", "x"], resumed=resumed_
        )
        feed_qwen(meter)
        assert [(tokens.input, tokens.output) for tokens in meter.reading.models.values()] == used


def feed_qwen(meter: Meter) -> None:
    """Feed an answer with 1500 and 80 tokens, and a result with 4500 and 240."""
    usage = b'"usage":{"input_tokens":1500,"output_tokens":80}'
    meter.feed(b'{"type":"system","subtype":"init","session_id":"s","model":"q"}\n')
    meter.feed(
        b'{"type":"assistant","message":{"id":"m","model":"q","content":[{"type":"text","text":"a"}],'
        + usage
        + b"}}\n"
    )
    meter.feed(
        b'{"type":"result","subtype":"success","is_error":false,"usage":{"input_tokens":4500,"output_tokens":240}}\n'
    )


def test_a_resumed_qwen_counts_its_answers_and_not_the_totals_of_its_session() -> None:
    meter = program_called("qwen").meter(["qwen", "--output-format", "stream-json", "--resume", ID])
    feed_qwen(meter)
    assert (meter.reading.models["q"].input, meter.reading.models["q"].output) == (1500, 80)
    assert meter.reading.partial, "calls that the program makes beside its answers are not told"


WORDS = st.lists(
    st.sampled_from(["-a", "--valued", "--valued=x", "--listed", "--gone", "word", "x", "-"])
)


@given(WORDS)
def test_no_word_is_lost_but_those_left_out(words: list[str]) -> None:
    options, others = sorted_words(words, valued={"--valued"}, listed={"--listed"})
    assert sorted([*options, *others]) == sorted(words)
    kept, rest = sorted_words(words, valued={"--valued"}, listed={"--listed"}, without={"--gone"})
    assert (rest, [word for word in options if word != "--gone"]) == (others, kept)


def test_opencode_tells_its_session_in_each_event() -> None:
    meter = program_called("opencode").meter(["opencode", "run", "--format", "json", "x"])
    meter.feed(b'{"type":"step_start","sessionID":"ses_1","part":{"id":"p","type":"step-start"}}\n')
    assert (meter.reading.session, meter.reading.blank) == ("ses_1", False)
