"""A meter that continues from a dump reads what the dumped meter would have read."""

from __future__ import annotations

from base64 import b85decode, b85encode
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfad.agents import Meter, Reading, named
from sfad.agents import line_meter as module
from sfad.agents.counters import MAX_LINE
from tests.agents.recordings import COMMANDS, lines, read, samples
from tests.agents.test_recordings import JUNK
from tests.agents.test_robustness import GOOD, PROGRAMS
from tests.tiers import examples, first, sampled

SAMPLES = samples()
SMALLEST_FIRST = sorted(SAMPLES, key=lambda name: len(SAMPLES[name][1]))


def meter(program: str, saved: bytes | None = None, argv: list[str] | None = None) -> Meter:
    found = named(program)
    assert found is not None
    return found.meter(COMMANDS[program] if argv is None else argv, saved)


def read_on(program: str, *parts: bytes, argv: list[str] | None = None) -> Reading:
    """Return what is read in the parts, each of them by another daemon."""
    one = meter(program, argv=argv)
    for part in parts:
        one.feed(part)
        one = meter(program, one.dump(), argv)
    return one.reading


@first(3)
@pytest.mark.parametrize("name", sampled(SMALLEST_FIRST, keep=8))
def test_every_split_reads_the_same(name: str) -> None:
    program, data = SAMPLES[name]
    whole, before = read(program, data), meter(program)
    for at in range(len(data) + 1):
        dumped = before.dump()
        after = meter(program, dumped)
        assert after.reading == before.reading
        assert after.dump() == dumped
        after.feed(data[at:])
        assert after.reading == whole
        before.feed(data[at : at + 1])


@first(3)
@pytest.mark.parametrize("name", SAMPLES)
def test_a_daemon_for_every_byte_reads_the_same(name: str) -> None:
    program, data = SAMPLES[name]
    assert read_on(program, *(data[at : at + 1] for at in range(len(data)))) == read(program, data)


@settings(max_examples=examples(50), deadline=None)
@given(st.data())
def test_any_pieces_of_anything_read_the_same(data: st.DataObject) -> None:
    program, stream = data.draw(st.sampled_from(list(SAMPLES.values())))
    pieces = st.lists(
        st.one_of(st.sampled_from(stream.splitlines(keepends=True)), JUNK), max_size=12
    )
    whole = b"".join(data.draw(pieces))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    parts = [whole[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert read_on(program, *parts) == read(program, whole)


@pytest.mark.parametrize("start", [b'{"type":"turn","pad":"', b'{"type":"user","pad":"', b"text"])
def test_a_line_that_is_too_long(start: bytes) -> None:
    """Its beginning has already been dropped, or not yet."""
    stream = (
        lines({"type": "turn"}) + start + b"x" * (MAX_LINE + 10) + b'"}\n' + lines({"type": "turn"})
    )
    whole = read("jsonl", stream)
    assert (whole.turns, whole.skipped_lines) == (2, int(b"turn" in start))
    for at in (20, 60, MAX_LINE, MAX_LINE + 60, len(stream) - 20):
        assert read_on("jsonl", stream[:at], stream[at:]) == whole


def test_a_restored_meter_of_a_resumed_thread_excludes_earlier_usage() -> None:
    argv = ["codex", "exec", "resume", "--last", "--json"]
    used = [
        {"type": "turn.completed", "usage": {"input_tokens": n, "output_tokens": 1}}
        for n in (100, 150, 175)
    ]
    parts = [lines(event) for event in used]
    assert read_on("codex", *parts, argv=argv) == read("codex", *parts, argv=argv)
    assert read_on("codex", *parts, argv=argv).models[""].input == 75


def test_a_restored_meter_does_not_count_a_repeated_id_again() -> None:
    for program in ("claude", "opencode", "gemini"):
        once = read(program, GOOD[program])
        calls = b"".join(
            line
            for line in GOOD[program].splitlines(keepends=True)
            if b"tool_use" in line and b"result" not in line
        )
        assert read_on(program, GOOD[program], calls).turns == once.turns


# ---- what does not fit


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_broken_dump_is_refused(program: str) -> None:
    one = meter(program)
    one.feed(GOOD[program])
    good = one.dump()
    fields: list[Any] = msgspec.msgpack.decode(good)
    other: list[Any] = msgspec.msgpack.decode(
        meter("claude" if program != "claude" else "codex").dump()
    )
    bad = [b"", b"\xc1", b"null", *(good[:cut] for cut in range(len(good))), good + b"\0"]
    others: list[Any] = [None, {}, [], fields[:-1], [*fields, 1], other]
    bad += [msgspec.msgpack.encode(each) for each in others]
    bad += [
        msgspec.msgpack.encode([version, *fields[1:]])
        for version in (module.STATE - 1, module.STATE + 1)
    ]
    bad += [
        msgspec.msgpack.encode([*fields[:-1], state])
        for state in (b"", b"\xc0", b"\x81\xa1x\x01", b"\x91\xc0\xc0")
    ]
    for saved in bad:
        with pytest.raises(ValueError, match=r"."):
            meter(program, saved)


@pytest.mark.parametrize("program", PROGRAMS)
@given(saved=st.binary(max_size=80))
def test_random_bytes_are_refused(program: str, saved: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        meter(program, saved)


FROZEN = {
    line.split()[0]: b85decode(line.split()[1])
    for line in (Path(__file__).parent / "dumps.txt").read_text().splitlines()
}
"""The dumps of STATE 7 after 70 % of each sample. `python -m tests.agents.test_saved` prints those
of this build."""


def seventy(name: str) -> tuple[str, bytes, bytes]:
    program, data = SAMPLES[name]
    at = len(data) * 7 // 10
    return program, data[:at], data[at:]


@pytest.mark.parametrize("name", SAMPLES)
def test_frozen_dumps_are_read(name: str) -> None:
    """If this fails, the state of meters has changed: raise `lines.STATE`, and freeze the new
    dumps."""
    program, begun, rest = seventy(name)
    one = meter(program)
    one.feed(begun)
    assert one.dump() == FROZEN[name]
    assert module.STATE == 10
    one = meter(program, FROZEN[name])
    one.feed(rest)
    assert one.reading == read(program, SAMPLES[name][1])


# ---- how much it is


def conversation(messages: int) -> bytes:
    """Return a conversation of Claude with so many messages."""
    events = [{"type": "system", "subtype": "init"}]
    for number in range(messages):
        block = {"type": "tool_use", "id": f"toolu_{number:024}", "name": "Bash"}
        usage = {
            "input_tokens": 5000 + number,
            "output_tokens": 70,
            "cache_read_input_tokens": 4000,
        }
        message = {
            "id": f"msg_{number:024}",
            "model": "claude-opus-4-8",
            "usage": usage,
            "content": [block],
        }
        events.append({"type": "assistant", "message": message})  # type: ignore[dict-item]
    return lines(*events)


@pytest.mark.parametrize(
    ("messages", "most"), [(0, 250), (10, 2000), (100, 15_000), (5000, 160_000)]
)
def test_a_dump_is_small(messages: int, most: int) -> None:
    one = meter("claude")
    one.feed(conversation(messages))
    assert len(one.dump()) < most


def test_a_dump_is_bounded_whatever_is_printed() -> None:
    one = meter("claude")
    long = "x" * (MAX_LINE - 2000)
    for number in range(30):
        message = {
            "id": f"{number}{long}",
            "model": f"{number}{long[:100_000]}",
            "content": long[:1000],
        }
        del message["content" if number % 2 else "id"]
        one.feed(
            lines({"type": "assistant", "parent_tool_use_id": str(number), "message": message})
        )
        one.feed(lines({"type": "result", "session_id": long, "modelUsage": {}}))
    assert len(one.dump()) < 50_000


def main() -> None:
    """Print what this build dumps."""
    for name in SAMPLES:
        program, begun, _ = seventy(name)
        one = meter(program)
        one.feed(begun)
        print(name, b85encode(one.dump()).decode())


if __name__ == "__main__":
    main()
