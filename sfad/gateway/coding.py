"""What a body holds under its content encoding (RFC 9110, section 8.4), within bounds."""

import sys
import zlib
from collections.abc import Callable
from typing import Protocol


class UnreadableBodyError(Exception):
    """The body is not what its encoding says, or more than is read."""


class Coding:
    """Decodes a body piece by piece, under all of its encodings."""

    def __init__(self, encodings: str) -> None:
        """`encodings`: the header's value. Raises `UnreadableBodyError` for an encoding that is not known."""
        names = [name for name in (name.strip().lower() for name in encodings.split(",")) if name not in {"", "identity"}]
        if len(names) > _MAX_ENCODINGS:
            raise UnreadableBodyError(f"it has {len(names)} content encodings; the most is {_MAX_ENCODINGS}")
        self._decoders = [_new(name) for name in reversed(names)]

    def feed(self, data: bytes, most: int) -> bytes:
        """Return what a piece holds, at most `most` bytes. Raises `UnreadableBodyError`, also if it is more."""
        for decode in self._decoders:
            data = decode(data, most)
            if len(data) > most:
                break
        if len(data) > most:
            raise UnreadableBodyError(f"it is longer than {most} bytes")
        return data


_MAX_ENCODINGS = 4
_MAX_MEMBERS = 100
"""In one piece. Each costs a copy of the rest."""
_Decode = Callable[[bytes, int], bytes]
"""Returns what a piece holds; where that is more than a number of bytes, a few bytes more than that."""


def _new(name: str) -> _Decode:
    make = _KNOWN.get(name)
    if make is None:
        raise UnreadableBodyError(f"its content encoding '{name[:40]}' is not one of {', '.join(sorted(_KNOWN))}")
    return make()


def _gzip() -> _Decode:
    # members follow one another (RFC 1952, section 2.2), and zeros after the last one are common
    return _members(lambda: zlib.decompressobj(zlib.MAX_WBITS | 16), zlib.error, padding=True)


def _deflate() -> _Decode:
    decode: _Decode | None = None

    def first(data: bytes, most: int) -> bytes:
        # some servers leave out the header of zlib that RFC 9110 asks for
        nonlocal decode
        if decode is None and data:
            bits = zlib.MAX_WBITS if data[0] & 0x0F == 8 else -zlib.MAX_WBITS
            decode = _members(lambda: zlib.decompressobj(bits), zlib.error)
        return decode(data, most) if decode is not None else b""

    return first


def _brotli() -> _Decode:
    import brotli  # type: ignore[import-untyped]

    state = brotli.Decompressor()

    def decode(data: bytes, most: int) -> bytes:
        try:
            out = bytes(state.process(data, output_buffer_limit=most + 1))
            # the limit is that of one block of output, so what is left is asked for until it is too much
            while len(out) <= most and not state.can_accept_more_data():
                out += state.process(b"", output_buffer_limit=most + 1 - len(out))
        except brotli.error as error:
            raise UnreadableBodyError(str(error)) from error
        return out

    return decode


def _zstd() -> _Decode:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd

    return _members(zstd.ZstdDecompressor, zstd.ZstdError)  # frames follow one another (RFC 8878, section 3)


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def _members(start: Callable[[], _Decompressor], failure: type[Exception], *, padding: bool = False) -> _Decode:
    """Decode members that follow one another, each with a decompressor of its own."""
    state = start()

    def decode(data: bytes, most: int) -> bytes:
        nonlocal state
        out = b""
        try:
            for _ in range(_MAX_MEMBERS):
                if state.eof:
                    data = data.lstrip(b"\0") if padding else data
                    state = start() if data else state
                if not data or len(out) > most:
                    return out
                out += state.decompress(data, most + 1 - len(out))
                data = state.unused_data
        except failure as error:
            raise UnreadableBodyError(str(error)) from error
        raise UnreadableBodyError(f"a piece of it has more than {_MAX_MEMBERS} compressed members")

    return decode


_KNOWN: dict[str, Callable[[], _Decode]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "br": _brotli,
    "zstd": _zstd,
}
