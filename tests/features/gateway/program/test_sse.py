"""Server-sent events: each way to end a line, at any split, and events that are too long."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfad.features.gateway.program.apis import base
from sfad.features.gateway.program.apis.base import EventStream


def read(*pieces: bytes) -> list[bytes]:
    events = EventStream()
    return [data for piece in pieces for data in events.feed(piece)]


def split(data: bytes, at: list[int]) -> list[bytes]:
    cuts = sorted({0, len(data), *(each % (len(data) + 1) for each in at)})
    return [data[one:other] for one, other in pairwise(cuts)]


STREAM = (
    b'event: one\ndata: {"a": 1}\n\n: ping\n\ndata:two\ndata: more\nid: 7\n\nretry: 10\n\ndata: '
    b"[DONE]\n\ndata: lost"
)
DATA = [b'{"a": 1}', b"two\nmore", b"[DONE]"]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
@given(at=st.lists(st.integers(0, 200), max_size=8), empty=st.booleans())
def test_lines_may_end_in_each_way_and_pieces_anywhere(
    end: bytes, at: list[int], empty: bool
) -> None:
    pieces = split(STREAM.replace(b"\n", end), at)
    assert (
        read(*(each for piece in pieces for each in ([b"", piece] if empty else [piece]))) == DATA
    )


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_byte_by_byte(end: bytes) -> None:
    assert read(*(bytes([byte]) for byte in STREAM.replace(b"\n", end))) == DATA


@given(
    lines=st.lists(
        st.sampled_from(
            [b"data: x", b"data:", b"data", b"", b":", b"event: y", b"\xff\xfe", b"data: \xff"]
        ),
        max_size=20,
    )
)
def test_whatever_comes_the_split_does_not_matter(lines: list[bytes]) -> None:
    whole = b"\r\n".join(lines)
    assert read(*(bytes([byte]) for byte in whole)) == read(whole)


@pytest.mark.parametrize("size", [1, 1000, 1 << 16])
def test_an_event_that_is_too_long_is_skipped(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(base, "MAX_EVENT", 5000)
    long = b"data: " + b"x" * 20_000 + b"\ndata: y\n\n"
    data = b"data: before\n\n" + long + b"data: after\n\n"
    events = EventStream()
    found: list[bytes] = []
    for at in range(0, len(data), size):
        found += events.feed(data[at : at + size])
        assert events.held <= 5001 + 1
    assert found == [b"before", b"after"]


def test_an_event_of_the_longest_length_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MAX_EVENT", 1000)
    line = b"data: " + b"x" * 994
    assert (
        read(line + b"\n\n")
        == read(*split(line + b"\n\n", list(range(0, 1000, 7))))
        == [b"x" * 994]
    )


def test_many_lines_of_one_event_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MAX_EVENT", 1000)
    assert read(b"data: x\n" * 1000, b"\ndata: y\n\n") == [b"y"]


def test_many_blank_lines_are_one() -> None:
    for blank in (b"\n\n\n", b"\r\r\r\r", b"\r\n\r\n\r\n", b"\n\r\n\r" + b"\n" * 100_000):
        stream = EventStream()
        assert [*stream.feed(b"data: 1" + blank + b"data: 2\n"), *stream.feed(blank),
                *stream.feed(b"data: 3\n\n")] == [
            b"1", b"2", b"3",
        ]  # fmt: skip
