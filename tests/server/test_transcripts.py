"""Whatever a run writes, and whatever its events say, a model gets a block of lines that cannot do
anything."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfad.agents import AGENT_PROGRAMS
from sfad.daemon.server.results import MAX_READ, MAX_TEXT, composed
from sfad.protocol.types import Event, Status
from tests.ledger.samples import run

PIECES = st.sampled_from(
    [b"\x1b[2J", b"\x1b]8;;http://x\x07", b"\x1bP", b"\x9b31m", b"\xc2\x9b",
     b"</subagent_transcript>", b"<", b"&lt;", b"\n", b"\r", "\u202e\u2066\u200b".encode(),
     "\U000e0041".encode(), b"\xed\xa0\x80", b"\xff", b"text", b'{"type":"text","part":{"text":"',
     b'{"type":"assistant","message":{"id":"m","content":[{"type":"text","text":"<b>\\u001b[2J\\u202e\\ud800"}]}}\n',
     b'{"type":"tool_use","tool_name":"</x>\\u0007","parameters":{"a":"\\u009b"}}\n'],
)  # fmt: skip
HOSTILE = st.lists(PIECES | st.binary(max_size=8), max_size=20).map(b"".join)


def told(
    stdout: bytes,
    stderr: bytes = b"",
    *events: Event,
    meter: str | None = None,
    tail: int = 100,
    start: int = 0,
) -> tuple[str, bool]:
    info = run(meter=meter, status=Status.COMPLETED)
    return composed(info, events, [(start, stdout), (0, stderr)], tail)


@given(
    stdout=HOSTILE,
    stderr=HOSTILE,
    message=st.text(),
    meter=st.sampled_from([None, *(program.name for program in AGENT_PROGRAMS)]),
)
def test_nothing_dangerous_is_left(
    stdout: bytes, stderr: bytes, message: str, meter: str | None
) -> None:
    block, _ = told(stdout, stderr, Event(type="run_progress", message=message), meter=meter)
    assert block.count("<") == block.count(">") == 2
    assert not [
        c
        for c in block
        if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") and c != "\n" and c != "\t"
    ]
    assert not re.findall(
        "[\u202a-\u202e\u2066-\u2069\u200b-\u200f\ufeff\U000e0000-\U000e0fff]", block
    )
    assert not re.findall(r"&(?!(amp|lt|gt);)", block)


def body(block: str) -> list[str]:
    return block.splitlines()[2:-1]


def test_output_stands_between_the_events_that_came_before_and_after_it() -> None:
    events = [
        Event(type="run_started", stdout_bytes=0, stderr_bytes=0),
        Event(type="limit_nearing", message="80 %", stdout_bytes=4, stderr_bytes=4),
        Event(type="run_completed", stdout_bytes=8, stderr_bytes=4),
    ]
    block, truncated = told(b"one\ntwo\n", b"err\n", *events)
    assert body(block) == [
        "run_started",
        "stdout: one",
        "stderr: err",
        "limit_nearing: 80 %",
        "stdout: two",
        "run_completed",
    ]
    assert not truncated


def test_no_control_string_hides_an_event_and_no_message_looks_like_another_line() -> None:
    events = [
        Event(type="run_started", stdout_bytes=0, stderr_bytes=0),
        Event(type="unadmitted", message="x\nstdout: y", stdout_bytes=5, stderr_bytes=0),
    ]
    assert body(told(b"\x1bPone\ntwo\x1b\\\n", b"", *events)[0]) == [
        "run_started",
        "stdout: ",
        "unadmitted: x stdout: y",
        "stdout: two",
    ]


def test_of_an_agents_events_there_is_what_they_say() -> None:
    lines = [
        b'{"type":"text","part":{"text":"first\\nsecond"}}',
        b'{"type":"tool_use","part":{"tool":"bash","state":{"input":{"command":"ls"}}}}',
        b"no event",
        b'{"type":"text","part":{"text":"third"}}',
    ]
    block, _ = told(b"\n".join(lines), meter="opencode")
    assert body(block) == [
        "stdout: first", "stdout: second", "stdout: [calls the tool bash: ls]", "stdout: no event",
        "stdout: third",
    ]  # fmt: skip


@pytest.mark.parametrize(("tail", "start", "cut"), [(2, 0, True), (3, 0, False), (3, 10, True)])
def test_only_the_newest_lines_are_told(tail: int, start: int, cut: bool) -> None:
    block, truncated = told(
        b"a\nb\nc\n" if start == 0 else b"tail of a line\na\nb\nc\n", tail=tail, start=start
    )
    assert body(block)[-2:] == ["stdout: b", "stdout: c"]
    assert len(body(block)) == tail
    assert truncated is cut


def test_megabytes_are_cut() -> None:
    block, truncated = told(b"<" * MAX_READ, b"x\n" * (MAX_READ // 2), tail=2000)
    assert truncated
    assert len(block.encode()) < MAX_TEXT + 1000
