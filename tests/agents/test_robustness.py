"""Broken, huge and hostile output. Nothing raises, memory stays flat, and good lines after it
count."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfad.agents import Reading, named
from sfad.agents.counters import MAX_LINE, MAX_MODELS, MAX_NAME, MAX_TOOLS, MAX_WORDS
from sfad.protocol.texts.units import MOST_COUNTED, MOST_SPENT
from tests.agents.recordings import JSONL, STREAMS, USAGE_EVENTS, in_all, lines, read, samples
from tests.tiers import examples, first

SAMPLES = samples()
PROGRAMS = sorted({program for program, _ in SAMPLES.values()})
GOOD = {
    program: next(data for of, data in SAMPLES.values() if of == program) for program in PROGRAMS
}
GOOD["claude"] = (STREAMS / "claude-success.jsonl").read_bytes()
GOOD["codex"] = (STREAMS / "codex-success.jsonl").read_bytes()
MIB = 1 << 20


def check(reading: Reading) -> None:
    """Check what is true of each reading, whatever was printed."""
    counts = [reading.turns or 0, reading.messages or 0, reading.skipped_lines]
    for used in reading.models.values():
        counts += [used.input, used.output, used.cached, used.cache_write]
        assert used.cached + used.cache_write <= used.input
    assert all(type(count) is int and 0 <= count <= 10**15 for count in counts)
    assert reading.cost_usd is None or (
        type(reading.cost_usd) is float and 0 <= reading.cost_usd <= 1e15
    )
    assert len(reading.tools) <= MAX_TOOLS
    assert len(reading.models) <= MAX_MODELS + 1
    texts = [*reading.tools, *reading.models, reading.failed or ""]
    assert all(text.isprintable() for text in texts)
    assert max(map(len, texts)) <= max(MAX_NAME, MAX_WORDS)
    json.dumps(texts, ensure_ascii=False).encode()


@pytest.mark.parametrize("program", PROGRAMS)
@settings(max_examples=examples(40), deadline=None)
@given(data=st.lists(st.binary(max_size=200), max_size=5))
def test_bytes_of_any_kind(program: str, data: list[bytes]) -> None:
    check(read(program, *data, b"\n", GOOD[program]))


VALUES: list[Any] = [
    None,
    True,
    -1,
    0.5,
    1e300,
    10**30,
    2**63,
    "x",
    "\ud800",
    "x\n\x1b\u202e" * 100,
    [],
    [1],
    [{}],
    {},
    {"a": {"type": 1}},
]


def variants(value: Any) -> Iterator[Any]:
    """Yield the value with each of its parts, in turn, replaced by each of `VALUES`, or removed."""
    yield from VALUES
    if isinstance(value, dict):
        for key in value:
            yield {other: part for other, part in value.items() if other != key}
            yield from ({**value, key: changed} for changed in variants(value[key]))
    elif isinstance(value, list) and value:
        yield from ([changed, *value[1:]] for changed in variants(value[0]))


@first(4)
@pytest.mark.parametrize("name", SAMPLES)
def test_wrong_types_anywhere(name: str) -> None:
    program, data = SAMPLES[name]
    events = [json.loads(line) for line in data.splitlines()]
    stream = b"".join(lines(changed) for event in events[1:] for changed in variants(event))
    assert stream.count(b"\n") > 50
    check(read(program, stream, data))


@pytest.mark.parametrize("program", PROGRAMS)
def test_good_lines_after_broken_ones_count(program: str) -> None:
    kind = USAGE_EVENTS[program].encode()
    broken = [
        b'{"type":"' + kind + b'"',
        b'{"type":"' + kind + b'","x":"\xff\xfe"',
        b'{"type":"' + kind + b'","x":\x00}',
        b'{"type":"' + kind + b'","x":' + b"[" * 500_000,
        b'{"type":"' + kind + b'","x":' + b'{"a":' * 150_000 + b"}" * 150_000 + b"}",
        b'{"type":"' + kind + b'","x":"\\ud800\\udc',
        b'{"type":"' + kind + b'","x":NaN}',
        b'{"type":"' + kind + b'","x":' + b"9" * 5000 + b"e99999}",
        b'[{"type":"' + kind + b'"}]',
        b'"{\\"type\\":\\"' + kind + b'\\"}"',
        b' {"type":"' + kind + b'"}',
        b"\xef\xbb" + b'{"type":"' + kind + b'"}',
        b"\xef\xbb\xbf\xef\xbb\xbf" + b'{"type":"' + kind + b'"}',
        b'"type":"' + kind + b'"',
        b"\x00\xff" * 1000,
        b"",
    ]
    good = read(program, GOOD[program])
    for line in broken:
        assert read(program, line + b"\n" + GOOD[program]) == good, line[:60]
        assert read(program, line, b"\n", GOOD[program]) == good, line[:60]
    assert read(program, b"\n".join(broken) + b"\n" + GOOD[program]) == good


def test_an_event_quoted_in_another_event_does_not_count() -> None:
    quoted = lines({"type": "user", "text": lines(*JSONL).decode()})
    assert read("jsonl", quoted) == Reading()
    nested = lines({"type": "user", "inner": JSONL[0]})
    assert read("jsonl", nested) == Reading()


@pytest.mark.parametrize("before", [b" ", b"\t", b"text ", b"[", b"\xef"])
def test_an_object_begins_its_line(before: bytes) -> None:
    stream = before + lines({"type": "turn"})
    assert read("jsonl", stream) == Reading()
    assert read("jsonl", *(stream[at : at + 1] for at in range(len(stream)))) == Reading()


# ---- size


def padded(size: int, event: dict[str, Any]) -> bytes:
    """Return the event as a line of so many bytes, without its newline."""
    line = lines(event | {"pad": ""})[:-1]
    return line[:-2] + b"x" * (size - len(line)) + line[-2:]


@pytest.mark.parametrize("chunk", [1000, 65536, 262144, 3 * MIB])
def test_a_line_is_read_up_to_the_limit(chunk: int) -> None:
    for size, turns, skipped in [
        (MAX_LINE - 1, 1, 0),
        (MAX_LINE, 1, 0),
        (MAX_LINE + 1, None, 1),
        (2 * MAX_LINE, None, 1),
    ]:
        stream = b"text\n" + padded(size, {"type": "turn", "tool": "t"}) + b"\nmore\n"
        reading = read("jsonl", *(stream[at : at + chunk] for at in range(0, len(stream), chunk)))
        assert (reading.turns, reading.skipped_lines) == (turns, skipped)


@pytest.mark.parametrize("chunk", [262144, 64 * MIB])
def test_a_long_line_counts_as_skipped_only_if_it_may_hold_usage(chunk: int) -> None:
    long = b"y" * (20 * MIB)
    stream = b"".join(
        [
            b'{"type":"user","message":{"content":[{"type":"tool_result","content":"'
            + long
            + b'"}]}}\n',
            long + b"\n",
            b'{"type":"assistant","message":{"id":"a","content":[{"type":"text","text":"'
            + long
            + b'"}]}}\n',
            GOOD["claude"],
        ]
    )
    reading = read("claude", *(stream[at : at + chunk] for at in range(0, len(stream), chunk)))
    assert reading.skipped_lines == 1
    reading.skipped_lines = 0
    assert reading == read("claude", GOOD["claude"])


def peak(program: str, pieces: Iterable[bytes]) -> tuple[int, Reading]:
    """Return the most memory, in bytes, that a meter held while it was fed, and what it read."""
    found = named(program)
    assert found is not None
    tracemalloc.start()
    try:
        meter = found.meter([])
        for piece in pieces:
            meter.feed(piece)
        return tracemalloc.get_traced_memory()[1], meter.reading
    finally:
        tracemalloc.stop()


def test_memory_stays_flat_in_a_line_without_end() -> None:
    piece = b"z" * 65536
    for start in (b"", b"{", b'{"type":"assistant",', b"\xef"):
        held, _ = peak("claude", itertools.chain([start], itertools.repeat(piece, 400)))
        assert held < 4 * MIB


@pytest.mark.rest("at scale")
def test_memory_stays_flat_however_many_ids_and_names_there_are() -> None:
    def hostile(
        program: str, events: Callable[[int], list[dict[str, Any]]], count: int
    ) -> tuple[int, Reading]:
        return peak(program, (lines(*events(number)) for number in range(count)))

    def claude(number: int) -> list[dict[str, Any]]:
        key, name = f"{number:0120}", f"{number:0200}"
        block = {"type": "tool_use", "id": key, "name": name}
        message = {"id": key, "model": key, "content": [block], "usage": {"input_tokens": 1}}
        usage = (
            {f"{key}{n}": {"inputTokens": number} for n in range(20)} if number % 100 == 0 else {}
        )
        result = {
            "type": "result",
            "session_id": name,
            "modelUsage": usage,
            "errors": [name] * 50,
            "is_error": True,
        }
        return [{"type": "assistant", "message": message, "parent_tool_use_id": key}, result]

    def opencode(number: int) -> list[dict[str, Any]]:
        return [{"type": "tool_use", "part": {"id": f"{number:0120}", "tool": f"{number:0200}"}}]

    def generic(number: int) -> list[dict[str, Any]]:
        return [{"type": "usage", "model": f"{number:0200}", "input_tokens": MOST_COUNTED}]

    for program, events, count in (
        ("claude", claude, 5000),
        ("opencode", opencode, 5000),
        ("jsonl", generic, 5000),
    ):
        held, reading = hostile(program, events, count)
        assert held < 4 * MIB, program
        check(reading)
    assert in_all(hostile("jsonl", generic, 200)[1]).input == 200 * MOST_COUNTED


def test_names_beyond_the_bound_are_counted_without_their_name() -> None:
    events = [
        {"type": "usage", "model": f"m{n}", "input_tokens": 1} for n in range(MAX_MODELS + 10)
    ]
    reading = read("jsonl", lines(*events))
    assert reading.models[""].input == 10
    assert in_all(reading).input == len(events)


AMOUNTS = st.one_of(
    st.integers(0, 100), st.sampled_from([-1, 10**10, 10**11, 1e300, None, True, "9"])
)


@given(st.lists(st.tuples(AMOUNTS, AMOUNTS, AMOUNTS), max_size=6), st.booleans())
def test_cached_tokens_are_never_more_than_the_input(
    totals: list[tuple[Any, Any, Any]], resumed: bool
) -> None:
    """Codex: its totals grow, fall, and may begin with those of another run."""
    names = ("input_tokens", "cached_input_tokens", "cache_write_input_tokens")
    events = [
        {"type": "turn.completed", "usage": dict(zip(names, amounts, strict=True))}
        for amounts in totals
    ]
    program = named("codex")
    assert program is not None
    meter = program.meter(["codex", "exec", *["resume"] * resumed, "--json"])
    meter.feed(lines(*events))
    check(meter.reading)


def test_sums_stop_before_they_are_too_large_to_store() -> None:
    most = {
        "type": "usage",
        "input_tokens": MOST_COUNTED,
        "cost_usd": MOST_SPENT,
        "turns": MOST_COUNTED,
    }
    reading = read("jsonl", lines(most) * 110_000)
    assert (in_all(reading).input, reading.cost_usd, reading.turns) == (10**15, 1.1e9, 10**15)


def test_the_last_tools_are_kept() -> None:
    reading = read(
        "jsonl", lines(*({"type": "turn", "tool": f"t{n}"} for n in range(MAX_TOOLS + 5)))
    )
    assert reading.tools == [f"t{n}" for n in range(5, MAX_TOOLS + 5)]
