"""Frames: any split of the bytes gives the same bodies, and no peer can make this side hold more
than it accepts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfad.protocol.framing import (
    HEADER,
    MAX_REPLY,
    MAX_REQUEST,
    FrameDecoder,
    FrameTooLarge,
    ProtocolError,
    frame,
)
from tests.tiers import examples

BODIES = st.lists(st.binary(max_size=40), max_size=6)


def test_the_bytes_of_a_frame() -> None:
    assert frame(b"") == b"\0\0\0\0"
    assert frame(b"abc") == b"\0\0\0\3abc"
    assert frame(b"x" * 0x010203)[:4] == b"\0\1\2\3"


@given(BODIES)
@settings(max_examples=examples(30), deadline=None, database=None)
def test_every_split_in_two(bodies: list[bytes]) -> None:
    stream = b"".join(map(frame, bodies))
    for cut in range(len(stream) + 1):
        decoder = FrameDecoder(40)
        assert [*decoder.feed(stream[:cut]), *decoder.feed(stream[cut:])] == bodies
        assert decoder.pending == 0


@given(BODIES, st.data())
@settings(max_examples=examples(100), deadline=None, database=None)
def test_any_split(bodies: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(frame, bodies))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    decoder = FrameDecoder(40)
    found = [
        body
        for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)
        for body in decoder.feed(stream[a:b])
    ]
    assert found == bodies
    assert decoder.pending == 0


def test_byte_by_byte_the_buffer_holds_one_frame() -> None:
    decoder = FrameDecoder(100)
    for byte in frame(b"x" * 100) * 3:
        list(decoder.feed(bytes([byte])))
        assert decoder.pending < HEADER + 100


def test_the_limit_itself_is_accepted() -> None:
    assert list(FrameDecoder(3).feed(frame(b"abc"))) == [b"abc"]


@pytest.mark.parametrize("size", [4, 2**31, 2**32 - 1])
def test_too_large_is_refused_on_the_header_alone(size: int) -> None:
    decoder = FrameDecoder(3)
    assert list(decoder.feed(size.to_bytes(4, "big")[:3])) == []
    with pytest.raises(
        FrameTooLarge, match=f"a frame of {size} bytes was announced; at most 3 are accepted"
    ) as caught:
        list(decoder.feed(size.to_bytes(4, "big")[3:]))
    assert (caught.value.size, caught.value.limit) == (size, 3)
    assert isinstance(caught.value, ProtocolError)


def test_what_came_before_one_that_is_too_large_is_still_delivered() -> None:
    bodies = FrameDecoder(3).feed(frame(b"ok") + frame(b"abcd"))
    assert next(bodies) == b"ok"
    with pytest.raises(FrameTooLarge):
        next(bodies)


def test_out_of_step_stays_out_of_step() -> None:
    """What follows the refused header must not be taken for a frame."""
    decoder = FrameDecoder(3)
    with pytest.raises(FrameTooLarge):
        list(decoder.feed(frame(b"abcd")))
    with pytest.raises(FrameTooLarge):
        list(decoder.feed(frame(b"ok")))


@given(st.lists(st.binary(min_size=1, max_size=64), max_size=50))
@settings(max_examples=examples(100), deadline=None, database=None)
def test_memory_is_bounded_whatever_arrives(chunks: list[bytes]) -> None:
    limit = 16
    decoder = FrameDecoder(limit)
    for chunk in chunks:
        try:
            bodies = list(decoder.feed(chunk))
        except FrameTooLarge:
            assert decoder.pending <= limit + HEADER + len(chunk)
            return
        assert all(len(body) <= limit for body in bodies)
        assert decoder.pending < limit + HEADER


def test_bodies_are_copies() -> None:
    decoder = FrameDecoder(10)
    (first,) = decoder.feed(frame(b"first"))
    list(decoder.feed(frame(b"other")))
    assert first == b"first"
    assert isinstance(first, bytes)


def test_the_caps() -> None:
    assert MAX_REQUEST == 4 * 2**20
    assert MAX_REPLY == 64 * 2**20
