"""What session files tell (from recordings with a scripted model), and where they are looked
for."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfad.agents import Reading, named, session_files_of
from sfad.agents.program import SessionFiles, SessionHead, SessionSearch, timestamp
from sfad.protocol.requests.windows import SeenWindow
from sfad.protocol.types import Tokens
from tests.agents.test_robustness import check, variants
from tests.tiers import examples, first

RECORDED = Path(__file__).parent / "sessions"
CWD = "/home/ann/my project"
EVER = "1970-01-01T00:00:00.000Z"

CALLS = {
    "claude": Tokens(input=1350, output=60, cached=300, cache_write=50),
    "codex": Tokens(input=1500, output=80, cached=400),
    "gemini": Tokens(input=1700, output=90, cached=600),
    "qwen": Tokens(input=1700, output=90, cached=600),
    "copilot": Tokens(input=1500, output=80, cached=400),
}
"""The tokens of each call, as the model told them."""


def recording(name: str) -> bytes:
    return (RECORDED / f"{name}.jsonl").read_bytes()


def files_of(name: str) -> SessionFiles:
    files = session_files_of(name, ())
    assert isinstance(files, SessionFiles)
    return files


def read(name: str, data: bytes, since: str = EVER) -> Reading:
    meter = files_of(name.partition("-")[0]).meter(since)
    meter.feed(data)
    return meter.reading


@pytest.mark.parametrize(
    ("name", "turns", "messages"),
    [
        ("claude", 1, 2),
        ("claude-subagent", 1, 2),
        ("codex", 2, 3),
        ("gemini", 2, 3),
        ("qwen", 2, 3),
        ("copilot", 2, 3),
    ],
)
def test_what_a_recording_says(name: str, turns: int, messages: int) -> None:
    reading = read(name, recording(name))
    each = CALLS[name.partition("-")[0]]
    assert (reading.turns, reading.messages, reading.partial) == (turns, messages, False)
    (used,) = reading.models.values()
    assert used == Tokens(
        input=messages * each.input,
        output=messages * each.output,
        cached=messages * each.cached,
        cache_write=messages * each.cache_write,
    )
    assert reading.cost_usd == (0.02204 if name == "claude" else None)


@pytest.mark.parametrize("name", ["claude", "codex", "gemini", "qwen", "copilot"])
def test_the_head_of_a_file_says_whose_it_is(name: str) -> None:
    files = files_of(name)
    head = files.head(recording(name))
    assert head is not None
    assert head.project == files.project(CWD)
    assert head.began.startswith("2026-11-2")
    assert files.head(recording(name)[:10]) is None


@pytest.mark.parametrize("name", ["claude", "codex", "gemini", "qwen", "copilot"])
def test_usage_before_the_run_is_not_counted(name: str) -> None:
    """A resumed session continues its file."""
    lines = recording(name).splitlines(keepends=True)
    times = sorted(json.loads(line).get("timestamp", EVER) for line in lines)
    whole = read(name, b"".join(lines))
    late = read(name, b"".join(lines), since=times[-1])
    never = read(name, b"".join(lines), since="2999")
    assert not never.models
    assert never.turns is None
    assert sum(used.input for used in late.models.values()) < sum(
        used.input for used in whole.models.values()
    )
    assert late.cost_usd is None


@pytest.mark.parametrize("name", ["claude", "codex", "qwen", "copilot"])
def test_it_is_partial_until_a_reply_that_calls_no_tool(name: str) -> None:
    """After the result of a tool the model is called again, before the file says so."""
    meter = files_of(name).meter(EVER)
    states: list[bool] = []
    for line in recording(name).splitlines(keepends=True):
        meter.feed(line)
        if meter.reading.messages is not None and (
            not states or states[-1] != meter.reading.partial
        ):
            states.append(meter.reading.partial)
    assert states == [True, False]


def test_a_claude_interrupted_before_an_answer_came_stays_partial() -> None:
    """Its `cost-state` omits that call."""
    *lines, total = recording("claude").splitlines(keepends=True)

    def asked(text: str) -> bytes:
        return (
            json.dumps(
                {"type": "user", "message": {"content": [{"type": "text", "text": text}]}}
            ).encode()
            + b"\n"
        )

    interrupted = asked("[Request interrupted by user]")
    assert '"cost-state"' in total.decode()
    assert read("claude", b"".join([*lines, asked("go on"), interrupted, total])).partial
    assert not read("claude", b"".join([*lines, interrupted, total])).partial


@first(2)
@pytest.mark.parametrize("name", ["claude", "codex", "gemini", "qwen", "copilot"])
def test_any_field_may_be_anything(name: str) -> None:
    for line in recording(name).splitlines():
        for changed in variants_of_fields(json.loads(line)):
            check(read(name, json.dumps(changed).encode() + b"\n" + recording(name)))


def variants_of_fields(line: dict[str, Any]) -> list[Any]:
    """Return some variants: those of the outer two levels."""
    inner = line.get("message") or line.get("payload") or line.get("tokens") or {}
    values: list[Any] = [None, 1, [], {}, "x", {"a": 1}]
    return [
        *list(variants(inner))[:40],
        *[{**line, key: value} for key in line for value in values],
    ]


@settings(max_examples=examples(50), deadline=None)
@given(name=st.sampled_from(sorted(CALLS)), data=st.binary(max_size=300))
def test_bytes_of_any_kind(name: str, data: bytes) -> None:
    check(read(name, data + b"\n" + recording(name)))
    files = files_of(name)
    files.head(data + b"\n")
    files.head(b'{"payload": ' + b"[" * 10_000 + b"\n")


COMMANDS = [
    (["claude", "-p", "go"], "claude", None, False),
    (["claude", "-p", "go", "--session-id", "6d9f5ac5-1e32"], "claude", "6d9f5ac5-1e32", False),
    (["claude", "--resume", "abc-1"], "claude", "abc-1", True),
    (["claude", "--resume", "abc-1", "--fork-session"], "claude", None, True),
    (["claude", "-c"], "claude", None, True),
    (["claude", "--session-id", "../../etc"], "claude", None, False),
    (["npx", "-y", "@openai/codex", "exec", "go"], "codex", None, False),
    (["codex", "exec", "resume", "--last"], "codex", None, True),
    (["codex", "resume", "01a2050d-51a6-7aa1-ab61-8a5c8988effa"], "codex",
     "01a2050d-51a6-7aa1-ab61-8a5c8988effa", True),
    (["gemini", "-i", "go"], "gemini", None, False),
    (["opencode", "run", "go"], "opencode", None, False),
    (["opencode", "run", "-c", "go"], "opencode", None, True),
    (["opencode", "run", "--session", "ses_1", "go"], "opencode", "ses_1", True),
]  # fmt: skip


@pytest.mark.parametrize(("argv", "program", "session", "resumes"), COMMANDS)
def test_the_session_that_a_command_names(
    argv: list[str], program: str, session: str | None, resumes: bool
) -> None:
    files = session_files_of(None, argv)
    assert files is not None
    assert (files.program, files.session_id(argv), files.resumes(argv)) == (
        program,
        session,
        resumes,
    )


def test_programs_whose_sessions_are_not_read() -> None:
    assert session_files_of(None, ["aider", "go"]) is None
    assert session_files_of(None, ["sh", "-c", "claude -p go"]) is None
    assert session_files_of("claude", ["sh", "-c", "claude -p go"]) is not None
    assert session_files_of("jsonl", ["claude"]) is None


def test_the_environment_moves_the_directories() -> None:
    since = datetime(2026, 11, 22, 23, 59, tzinfo=UTC)
    for name, env, root in [
        ("claude", {"HOME": "/h"}, "/h/.claude/projects"),
        ("claude", {"HOME": "/h", "CLAUDE_CONFIG_DIR": "/c"}, "/c/projects"),
        ("codex", {"HOME": "/h"}, "/h/.codex/sessions"),
        ("codex", {"HOME": "/h", "CODEX_HOME": "/c"}, "/c/sessions"),
        ("gemini", {"HOME": "/h"}, "/h/.gemini/tmp"),
        ("gemini", {"HOME": "/h", "GEMINI_CLI_HOME": "/g"}, "/g/.gemini/tmp"),
    ]:
        files = files_of(name)
        assert {place.root for place in files.places(SessionSearch(env, CWD, since, None))} == {
            root
        }
    codex = files_of("codex")
    days = [
        place.names[:3] for place in codex.places(SessionSearch({"HOME": "/h"}, CWD, since, None))
    ]
    assert days == [("2026", "11", "23"), ("2026", "11", "22"), ("2026", "11", "21")]


def test_times_compare_as_texts() -> None:
    assert (
        timestamp(datetime(2026, 11, 22, 1, 2, 3, 4000, tzinfo=UTC)) == "2026-11-22T01:02:03.004Z"
    )
    assert SessionHead("s", "p", "2026-11-22T01:02:03.005Z").began > "2026-11-22T01:02:03.004Z"


def test_codex_tells_its_tier_in_its_session() -> None:
    settings_ = {
        "type": "thread_settings_applied",
        "thread_settings": {"model": "gpt-6.1-sol", "service_tier": "priority"},
    }
    line = (
        json.dumps(
            {"timestamp": "2026-11-22T20:58:08.766Z", "type": "event_msg", "payload": settings_}
        )
        + "\n"
    )
    assert read("codex", recording("codex") + line.encode()).tier == "priority"
    assert read("codex", recording("codex")).tier == ""


def test_codex_tells_its_provider_in_its_session() -> None:
    begun = recording("codex")
    assert read("codex", begun.splitlines(keepends=True)[0]).provider == "scripted"
    # it was resumed with another one
    line = begun.splitlines(keepends=True)[4].replace(b'"scripted"', b'"groq"')
    assert read("codex", begun + line).provider == "groq"


@pytest.mark.parametrize(
    ("words", "provider"),
    [
        ((), ""),
        (("-c", "model_provider=groq"), "groq"),
        (("--config", 'model_provider="corp"', "-c", 'model_provider = "groq"'), "groq"),
        (("-c", 'model_providers.groq.base_url="https://api.groq.com"'), ""),
    ],
)
def test_the_command_of_codex_tells_its_provider(words: tuple[str, ...], provider: str) -> None:
    codex = named("codex")
    assert codex is not None
    meter = codex.meter(["codex", "exec", "--json", *words, "task"], None)
    assert meter.reading.provider == provider


def test_codex_tells_its_windows_and_credits_in_its_session() -> None:
    limits = {
        "limit_id": "codex",
        "primary": {"used_percent": 12.0, "window_minutes": 10080, "resets_at": 9_000},
        "secondary": {"used_percent": 0.0, "window_minutes": 0, "resets_at": None},
        "credits": {"has_credits": True, "unlimited": False, "balance": "25.50"},
        "plan_type": "free",
    }
    line = {
        "timestamp": "2026-01-01T00:00:00Z",
        "type": "event_msg",
        "payload": {"type": "token_count", "rate_limits": limits},
    }
    told = read("codex", json.dumps(line).encode() + b"\n").windows
    assert told is not None
    assert told.windows == (
        SeenWindow(window="primary", used_ratio=0.12, resets_at=9_000.0, seconds=604_800.0),
    )
    assert (told.plan_type, told.credits) == ("free", "25.50")


def test_what_claude_writes_to_a_cache_for_an_hour_is_told_apart() -> None:
    short = b'"cache_creation":{"ephemeral_1h_input_tokens":0'
    assert short in recording("claude")
    reading = read("claude", recording("claude").replace(short, short[:-1] + b"40"))
    (used,) = reading.models.values()
    assert (used.cache_write, used.long_write) == (100, 80)


def test_a_reply_that_was_interrupted_is_in_no_figure() -> None:
    aborted = {
        "timestamp": "2026-11-22T20:58:08.766Z",
        "type": "event_msg",
        "payload": {"type": "turn_aborted"},
    }
    assert read("codex", recording("codex") + json.dumps(aborted).encode() + b"\n").broken
    asked = next(
        line for line in recording("gemini").splitlines(keepends=True) if b'"text":"go"' in line
    )
    said = {"message": {"content": [{"type": "text", "text": "[Request interrupted by user]"}]}}
    interrupted = {"type": "user", "timestamp": "2026-11-22T21:03:20.000Z"} | said
    assert read("claude", recording("claude") + json.dumps(interrupted).encode() + b"\n").broken
    whole = read("gemini", recording("gemini") + asked)
    assert (whole.broken, whole.partial) == (False, True), "the answer may still come"
    assert read("gemini", recording("gemini") + asked + asked).broken
