"""Recordings of real agents, and what they had used."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfad.agents import Reading
from sfad.protocol.types import ApiTrouble, Tokens
from tests.agents.recordings import RECORDINGS, STREAMS, program_of, read, samples
from tests.tiers import examples, first, sampled

OPUS = "claude-opus-4-8"

EXPECTED = {
    "claude-success": Reading(
        turns=2,
        messages=3,
        models={OPUS: Tokens(input=4650, output=180, cached=900, cache_write=150)},
        cost_usd=0.0238875,
        tools=["Bash", "Bash"],
        finished=True,
    ),
    "claude-shared-message-ids": Reading(
        turns=3,
        messages=4,
        models={OPUS: Tokens(input=6600, output=240, cached=1200, cache_write=200)},
        cost_usd=0.03385,
        tools=["Bash"] * 3,
        finished=True,
    ),
    "claude-error-max-budget": Reading(
        turns=2,
        messages=2,
        models={OPUS: Tokens(input=2900, output=120, cached=600, cache_write=100)},
        cost_usd=0.014925,
        tools=["Bash", "Bash"],
        finished=True,
        failed="Reached maximum budget ($0.01)",
    ),
    "claude-error-max-turns": Reading(
        turns=2,
        messages=2,
        models={OPUS: Tokens(input=2900, output=120, cached=600, cache_write=100)},
        cost_usd=0.014925,
        tools=["Bash", "Bash"],
        finished=True,
        failed="Reached maximum number of turns (2)",
    ),
    "claude-api-failure": Reading(
        turns=0,
        messages=0,
        cost_usd=0.0,
        finished=True,
        failed="API Error: 400 scripted failure",
        trouble=ApiTrouble(count=1, status=400, error="API Error: 400 scripted failure"),
    ),
    "codex-success": Reading(
        turns=2,
        messages=1,
        models={"gpt-5-codex": Tokens(input=4500, output=240, cached=1200)},
        tools=["command_execution", "command_execution"],
        finished=True,
    ),
    "codex-turn-failed": Reading(
        turns=0,
        messages=0,
        partial=True,
        finished=True,
        failed=(
            '{"error": {"message": "scripted failure", "type": '
            '"invalid_request_error", "code": "bad"}}'
        ),
        trouble=ApiTrouble(
            count=1,
            error=(
                '{"error": {"message": "scripted failure", "type": '
                '"invalid_request_error", "code": "bad"}}'
            ),
        ),
        broken=True,
    ),
    "gemini-success": Reading(
        turns=2,
        messages=1,
        models={"gemini-2.5-pro": Tokens(input=3600, output=120, cached=300)},
        tools=["run_shell_command", "run_shell_command"],
        finished=True,
    ),
    "qwen-success": Reading(
        turns=2,
        messages=3,
        models={"qwen3-coder-plus": Tokens(input=5100, output=270, cached=1800)},
        tools=["run_shell_command", "run_shell_command"],
        finished=True,
    ),
    "copilot-success": Reading(turns=2, messages=3, tools=["bash", "bash"], finished=True),
    "copilot-api-failure": Reading(
        turns=0,
        messages=0,
        finished=True,
        failed="400 Overloaded",
        trouble=ApiTrouble(
            count=1, status=400, error='{"type":"overloaded_error","message":"Overloaded"}'
        ),
    ),
    "qwen-api-failure": Reading(
        turns=0,
        messages=0,
        finished=True,
        failed="[API Error: 400 scripted failure]",
        trouble=ApiTrouble(count=1, status=400, error="[API Error: 400 scripted failure]"),
    ),
}


def test_each_recording_has_expected_figures() -> None:
    assert {path.stem for path in RECORDINGS} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_what_a_recording_says(name: str) -> None:
    path = STREAMS / f"{name}.jsonl"
    reading = read(program_of(path), path.read_bytes())
    assert reading.cost_usd == pytest.approx(EXPECTED[name].cost_usd)
    reading.cost_usd = EXPECTED[name].cost_usd
    assert len(reading.session) in {0, 36}, "a UUID, where the program tells it"
    reading.session = ""
    assert reading == EXPECTED[name]


SMALLEST_FIRST = sorted(samples(), key=lambda name: len(samples()[name][1]))


@first(3)
@pytest.mark.parametrize("name", sampled(SMALLEST_FIRST, keep=8))
def test_every_split_reads_the_same(name: str) -> None:
    program, data = samples()[name]
    whole = read(program, data)
    for at in range(len(data) + 1):
        assert read(program, data[:at], data[at:]) == whole


@pytest.mark.parametrize("name", samples())
def test_byte_by_byte_reads_the_same(name: str) -> None:
    program, data = samples()[name]
    assert read(program, *(data[at : at + 1] for at in range(len(data)))) == read(program, data)


@pytest.mark.parametrize("name", samples())
def test_other_line_ends_and_a_byte_order_mark_read_the_same(name: str) -> None:
    program, data = samples()[name]
    whole = read(program, data)
    assert read(program, data.replace(b"\n", b"\r\n")) == whole
    assert read(program, b"\xef\xbb\xbf" + data) == whole
    assert read(program, b"\xef", b"\xbb", b"\xbf" + data) == whole


@pytest.mark.parametrize("name", samples())
def test_a_view_reads_the_same(name: str) -> None:
    program, data = samples()[name]
    assert read(program, memoryview(data)) == read(program, data)


JUNK = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [
            b"\n",
            b"{",
            b"\xff\xfe\n",
            b'{"type":"result"',
            b'{"type":"assistant","message":{"id":',
            b"\x00" * 20,
            b"\r",
        ]
    ),
)


@settings(max_examples=examples(50), deadline=None)
@given(st.data())
def test_any_pieces_of_anything_read_the_same(data: st.DataObject) -> None:
    """Recordings are cut and mixed with junk: the meter reads the same, however the stream is
    divided."""
    program, stream = data.draw(st.sampled_from(list(samples().values())))
    pieces = st.lists(
        st.one_of(st.sampled_from(stream.splitlines(keepends=True)), JUNK), max_size=12
    )
    whole = b"".join(data.draw(pieces))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    parts = [whole[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert read(program, *parts) == read(program, whole)


@pytest.mark.parametrize("name", samples())
def test_the_last_line_counts_with_its_newline(name: str) -> None:
    program, data = samples()[name]
    unfinished = read(program, data.rstrip(b"\n"))
    assert not unfinished.finished
    assert read(program, data.rstrip(b"\n"), b"\n").finished
