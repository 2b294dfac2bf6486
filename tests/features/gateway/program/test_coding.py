"""Bodies under each content encoding, within bounds."""

from __future__ import annotations

import gzip
import random
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import suppress

import brotli  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfad.features.gateway.program.bodies.coding import Coding, UnreadableBodyError
from tests.features.gateway.program.test_sse import split
from tests.tiers import variant

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MIB = 1 << 20


def deflate(data: bytes) -> bytes:
    made = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return made.compress(data) + made.flush()


CODINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "Deflate": deflate,
    "br": brotli.compress,
    "zstd": zstd.compress,
    "identity": bytes,
    "": bytes,
}


@pytest.mark.parametrize("name", CODINGS)
@given(data=st.binary(max_size=2000), at=st.lists(st.integers(0, 5000), max_size=6))
def test_any_body_in_any_pieces(name: str, data: bytes, at: list[int]) -> None:
    coding = Coding(name)
    assert (
        b"".join(coding.feed(piece, MIB) for piece in [b"", *split(CODINGS[name](data), at)])
        == data
    )


@pytest.mark.parametrize("name", [name for name in CODINGS if name not in {"", "identity"}])
def test_a_piece_is_decoded_as_soon_as_it_is_there(name: str) -> None:
    """A stream of events is flushed after each."""
    events = [b"data: %d\n\n" % number for number in range(100)]
    if name == "br":
        compressor = brotli.Compressor()
        pieces = [compressor.process(event) + compressor.flush() for event in events]
    elif name == "zstd":
        zstd_compressor = zstd.ZstdCompressor()
        pieces = [
            zstd_compressor.compress(event, zstd.ZstdCompressor.FLUSH_BLOCK) for event in events
        ]
    else:
        wbits = {"gzip": 31, "x-gzip": 31, "deflate": 15, "Deflate": -15}[name]
        made = zlib.compressobj(wbits=wbits)
        pieces = [made.compress(event) + made.flush(zlib.Z_SYNC_FLUSH) for event in events]
    coding = Coding(name)
    assert [coding.feed(piece, MIB) for piece in pieces] == events


def test_encodings_one_over_the_other() -> None:
    body = gzip.compress(brotli.compress(zstd.compress(b"hello")))
    assert Coding("zstd, br ,gzip").feed(body, MIB) == b"hello"


@pytest.mark.parametrize("between", [b"", b"\0\0\0"])
def test_members_of_gzip_follow_one_another(between: bytes) -> None:
    body = gzip.compress(b"one ") + between + gzip.compress(b"two") + b"\0" * 100
    coding = Coding("gzip")
    assert coding.feed(body, MIB) == b"one two"
    coding = Coding("gzip")
    assert b"".join(coding.feed(bytes([byte]), MIB) for byte in body) == b"one two"


def test_frames_of_zstd_follow_one_another() -> None:
    assert Coding("zstd").feed(zstd.compress(b"one ") + zstd.compress(b"two"), MIB) == b"one two"


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_thousands_of_members_in_one_piece_are_refused(name: str) -> None:
    with pytest.raises(UnreadableBodyError, match="more than 100 compressed members"):
        Coding(name).feed(CODINGS[name](b"x") * 1000, MIB)


@pytest.mark.rest("at scale")
@pytest.mark.parametrize("name", [name for name in CODINGS if name not in {"", "identity"}])
def test_a_bomb_takes_no_more_memory_than_is_allowed(name: str) -> None:
    bomb = CODINGS[name](b"\0" * (32 * MIB))
    assert len(bomb) < MIB
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableBodyError, match="longer than 1048576 bytes"):
            Coding(name).feed(bomb, MIB)
        assert tracemalloc.get_traced_memory()[1] < 12 * MIB
    finally:
        tracemalloc.stop()


def zstd_with_window(power: int, data: bytes) -> bytes:
    made = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: power})
    return made.compress(data) + made.flush()


def test_a_frame_of_zstd_that_needs_a_large_window_is_refused() -> None:
    """24 replies with a window of 128 MiB took 1.9 GiB. RFC 9659 allows 8 MiB."""
    for power in (24, 27):
        with pytest.raises(UnreadableBodyError, match=r"memory|window"):
            Coding("zstd").feed(zstd_with_window(power, random.randbytes(100_000)), MIB)
    small = zstd_with_window(12, b"x" * 10_000)
    with pytest.raises(UnreadableBodyError, match=r"memory|window"):
        Coding("zstd").feed(small + zstd_with_window(23, random.randbytes(100_000)), MIB)


@pytest.mark.parametrize("power", [10, 12, 17, 20, 23])
def test_the_window_of_a_body_is_known(power: int) -> None:
    coding = Coding("zstd")
    coding.feed(zstd_with_window(power, random.randbytes(1 << 16)), MIB)
    assert coding.window == 1 << power
    for bits in {max(power, 10), min(power + 1, 24)}:
        coding = Coding("br")
        made = brotli.Compressor(lgwin=bits)
        coding.feed(made.process(b"x" * 1000) + made.flush(), MIB)
        assert 1 << bits >= coding.window >= 1 << min(bits, 16)
    coding = Coding("gzip, br")
    coding.feed(brotli.compress(gzip.compress(b"x"), lgwin=20), MIB)
    assert coding.window > 64 << 10


@variant
def test_a_bomb_within_a_bomb() -> None:
    inner = gzip.compress(b"\0" * (200 * MIB))
    with pytest.raises(UnreadableBodyError, match="longer"):
        Coding("gzip, gzip").feed(gzip.compress(inner), MIB)


@pytest.mark.parametrize("name", CODINGS)
def test_exactly_what_is_allowed_passes(name: str) -> None:
    body = CODINGS[name](b"\0" * 100_000)
    assert len(Coding(name).feed(body, 100_000)) == 100_000
    with pytest.raises(UnreadableBodyError):
        Coding(name).feed(body, 99_999)


@pytest.mark.parametrize("name", ["gzip", "deflate", "br", "zstd"])
@given(data=st.binary(min_size=1, max_size=300))
def test_garbage_is_an_error_or_nothing(name: str, data: bytes) -> None:
    with suppress(UnreadableBodyError):
        assert len(Coding(name).feed(data, 1000)) <= 1000


@pytest.mark.parametrize("name", ["gzip", "br", "zstd"])
def test_a_body_that_breaks_off_gives_what_came(name: str) -> None:
    body = CODINGS[name](bytes(range(256)) * 2000)
    assert (
        Coding(name).feed(body[:-4], MIB)
        == (bytes(range(256)) * 2000)[: len(Coding(name).feed(body[:-4], MIB))]
    )


@pytest.mark.parametrize("name", ["compress", "aes128gcm", "gzip;q=1", "gzip," * 5])
def test_encodings_that_are_refused(name: str) -> None:
    with pytest.raises(UnreadableBodyError):
        Coding(name)
